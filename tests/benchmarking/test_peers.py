"""The peers are the same network: parameters, operations and, with equal weights, outputs."""

import importlib.util

import pytest
import torch

import vit
from vit.benchmarking.peers import MODEL_PEERS, MissingPeer, build_peer, count_parameters, difference
from vit.models import flops
from vit.models.flops import count_flops

SMALL = {"image_size": 32, "patch_size": 8, "dim": 96, "depth": 2, "num_heads": 3, "num_classes": 7}
PLAIN = ("timm", "torchvision", "transformers")


def small(**changes):
    torch.manual_seed(0)
    model = vit.create_model("vit_tiny", **{**SMALL, **changes}).eval()
    torch.nn.init.normal_(model.head.weight, std=0.2)
    return model


@pytest.mark.parametrize("name", PLAIN)
def test_a_peer_with_equal_weights_computes_the_same(name):
    model = small()
    peer = build_peer(name, model)
    assert peer.has_same_weights and peer.extra_parameters == 0
    assert count_parameters(peer.network) == count_parameters(model)
    assert difference(model, peer.network.eval(), torch.randn(2, 3, 32, 32)) < 1e-5


@pytest.mark.parametrize("name", MODEL_PEERS)
def test_a_peer_computes_as_many_operations(name):
    model = small()
    assert count_flops(build_peer(name, model).network, (1, 3, 32, 32)) == flops(model)


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_vit_pytorch_is_the_model_with_its_norms_and_without_its_biases(pool):
    """Its parameters are those of this project's model of the same architecture, and its import computes the same."""
    model = small(pool=pool, class_token=pool == "class")
    peer = build_peer("vit-pytorch", model)
    same = small(pool=pool, class_token=pool == "class", stem="normed", qkv_bias=False, norm_eps=1e-5)
    assert count_parameters(peer.network) == count_parameters(model) + peer.extra_parameters == count_parameters(same)
    assert "norms around the patch projection" in peer.remark
    assert build_peer("vit-pytorch", same).extra_parameters == 0 and build_peer("vit-pytorch", same).remark is None
    imported = vit.import_weights(peer.network.eval())[0].eval()
    assert difference(imported, peer.network, torch.randn(2, 3, 32, 32)) < 1e-4


@pytest.mark.parametrize(("changes", "missing"), [
    ({"registers": 2}, {"torchvision", "vit-pytorch"}),
    ({"norm": "rms"}, {"torchvision", "transformers", "vit-pytorch"}),
    ({"pool": "mean", "class_token": False}, {"torchvision"}),
    ({"block": "res_post_norm"}, {"torchvision", "transformers", "vit-pytorch"}),
    ({"activation": "silu"}, {"torchvision", "vit-pytorch"}),
])
def test_a_peer_that_lacks_a_part_names_it(changes, missing):
    model, found = small(**changes), {}
    for name in MODEL_PEERS:
        try:
            network = build_peer(name, model).network
            assert count_flops(network, (1, 3, 32, 32)) >= flops(model)
        except MissingPeer as error:
            found[name] = str(error)
    assert missing <= set(found), found
    assert all(len(reason) > 20 for reason in found.values())


def test_a_library_that_is_not_installed_is_named(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "vit_pytorch" else find(name))
    with pytest.raises(MissingPeer, match=r'vit-pytorch is not installed: pip install "vitwright\[bench\]"'):
        build_peer("vit-pytorch", small())


def test_a_library_without_classifiers_is_named():
    with pytest.raises(MissingPeer, match="ctranslate2 has no image classifiers"):
        build_peer("ctranslate2", small())
