"""vit-pytorch over its releases. The library of today, with the parts of an old release and its names, is the
reference; the slow test reads models of the old releases themselves.

    for release in 0.0.5 0.2.0 0.2.7 0.4.0 0.5.1 0.6.8 0.7.0 0.9.3 0.14.1 0.40.1 1.0.0 1.6.4; do
      pip install --target RELEASES/$release vit-pytorch==$release --no-deps; done
    VIT_PYTORCH_RELEASES=RELEASES pytest -m slow tests/exchange/test_vit_pytorch.py
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import vit_pytorch
from torch import nn

from tests.exchange.conftest import CLOSE, images, scramble, unplaced
from vit.exchange import SourceError, import_weights
from vit.weights import load_weights

OPTIONS = {"image_size": 40, "patch_size": 8, "num_classes": 5, "dim": 24, "depth": 2, "heads": 2, "mlp_dim": 40}
FN = [(r"(layers\.\d+\.[01])\.norm\.", r"\1.fn.norm."), (r"(layers\.\d+\.0)\.to_", r"\1.fn.to_"),
      (r"(layers\.\d+\.1)\.net\.0\.", r"\1.norm."), (r"(layers\.\d+\.1)\.net\.1\.", r"\1.fn.net.0."),
      (r"(layers\.\d+\.1)\.net\.4\.", r"\1.fn.net.3.")]
ONE_FN = [(r"\.fn\.norm\.", ".norm."), *FN[1:]]
NORM_IN_HEAD = [(r"transformer\.norm\.", "mlp_head.0."), (r"mlp_head\.(?=weight|bias)", "mlp_head.1.")]
BARE_PATCHES = [(r"to_patch_embedding\.2\.", "to_patch_embedding.1.")]
OLDEST_PATCHES = [(r"to_patch_embedding\.2\.", "patch_to_embedding.")]
TWO_FN = [(r"(layers\.\d+\.[01])\.norm\.", r"\1.fn.norm."), (r"\.fn\.(to_|net)", r".fn.fn.\1"),
          (r"(layers\.\d+\.1)\.norm\.", r"\1.fn.norm.")]
LAYOUTS = {  # release -> whether patches are normed, the renaming of today's names, whether scores use sqrt(dim)
    "1.0": (True, [*FN[1:], *NORM_IN_HEAD], False),
    "0.14": (False, [*FN[1:], *NORM_IN_HEAD, *BARE_PATCHES], False),
    "0.7": (False, [*FN[1:], *TWO_FN, *NORM_IN_HEAD, *BARE_PATCHES], False),
    "0.4": (False, [*FN[1:], *TWO_FN, *NORM_IN_HEAD, *OLDEST_PATCHES], True),
}


def reference_of(layout: str, **options) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """A model of today with the parts of an old release, and its state under that release's names."""
    normed, renames, wide_scale = LAYOUTS[layout]
    model = scramble(vit_pytorch.ViT(**OPTIONS, **options))
    if not normed:
        model.to_patch_embedding[1] = model.to_patch_embedding[3] = nn.Identity()
    if wide_scale:
        for attention, _ in model.transformer.layers:
            attention.scale = OPTIONS["dim"] ** -0.5
    state = {}
    for name, tensor in model.state_dict().items():
        for pattern, new in renames:
            name = re.sub(pattern, new, name)
        state[name] = tensor[None] if name in ("cls_token", "pos_embedding") else tensor  # they had a batch dimension
    return model, state


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_of_names_computes_what_it_did(layout, channels):
    reference, state = reference_of(layout, channels=channels)
    model, report = import_weights(state)
    assert not unplaced(report) and model.config.num_heads == 2 and model.config.head_dim == 64
    with torch.no_grad():
        torch.testing.assert_close(model(images(40, channels)), reference(images(40, channels)), **CLOSE)
    assert ("sqrt(dim)" in str(report.notes)) == (layout == "0.4")


def test_the_names_are_those_of_the_releases():
    """As listed by the releases 0.7.0, 0.14.1 and 0.5.1 themselves."""
    first = "transformer.layers.0"
    known = {"0.7": (f"{first}.0.fn.norm.weight", f"{first}.0.fn.fn.to_qkv.weight", f"{first}.0.fn.fn.to_out.0.bias",
                     f"{first}.1.fn.norm.bias", f"{first}.1.fn.fn.net.0.weight", f"{first}.1.fn.fn.net.3.weight",
                     "mlp_head.0.weight", "mlp_head.1.bias", "to_patch_embedding.1.weight"),
             "0.14": (f"{first}.0.norm.weight", f"{first}.0.fn.to_qkv.weight", f"{first}.0.fn.to_out.0.bias",
                      f"{first}.1.norm.bias", f"{first}.1.fn.net.0.weight", f"{first}.1.fn.net.3.weight"),
             "0.4": (f"{first}.0.fn.fn.to_qkv.weight", "patch_to_embedding.weight", "patch_to_embedding.bias")}
    for layout, names in known.items():
        assert set(names) <= set(reference_of(layout)[1])


def test_scores_of_the_oldest_releases_follow_the_number_of_heads_of_the_model(tmp_path):
    reference, state = reference_of("0.4", dim_head=12)
    with pytest.raises(SourceError, match="number of heads"):
        import_weights(state)
    model, _ = import_weights(state, num_heads=2)
    again = type(model)(model.config).eval()
    load_weights(again, {f"module.{name}": tensor for name, tensor in state.items()})
    with torch.no_grad():
        for each in (model, again):
            torch.testing.assert_close(each(images(40)), reference(images(40)), **CLOSE)


def test_a_simple_vit_with_the_norm_in_its_head():
    reference = scramble(vit_pytorch.SimpleViT(**OPTIONS))
    rename = {"transformer.norm.": "linear_head.0.", "linear_head.": "linear_head.1."}
    state = {re.sub(r"^(transformer\.norm\.|linear_head\.)", lambda found: rename[found[1]], name): tensor
             for name, tensor in reference.state_dict().items()}
    tokens = reference.transformer.norm  # before pooling today, after it then
    reference.transformer.norm, reference.to_latent = nn.Identity(), tokens
    model, report = import_weights(state, image_size=40)
    assert not unplaced(report) and model.config.final_norm == "pooled"
    with torch.no_grad():
        torch.testing.assert_close(model(images(40)), reference(images(40)), **CLOSE)


@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_the_pooling_of_a_model_in_memory(pool):
    reference = scramble(vit_pytorch.ViT(**OPTIONS, pool=pool))
    model, _ = import_weights(reference)
    with torch.no_grad():
        torch.testing.assert_close(model(images(40)), reference(images(40)), **CLOSE)
    if pool == "cls":
        reference.pool = "mean"  # of the class token too, in releases before 1.26
        with pytest.raises(SourceError, match="the model averages its class token with the patches"):
            import_weights(reference)


def test_a_head_of_two_layers_is_named_and_the_encoder_can_be_imported():
    reference, state = reference_of("0.4", dim_head=12)
    state["mlp_head.4.weight"], state["mlp_head.4.bias"] = torch.randn(3, 5), torch.randn(3)  # as in 0.2.7
    with pytest.raises(SourceError, match=r"does not use 4 tensors: mlp_head.1.weight"):
        import_weights(state, num_heads=2)
    model, _ = import_weights(state, num_heads=2, strict=False)
    reference.mlp_head = nn.Identity()
    with torch.no_grad():
        torch.testing.assert_close(model(images(40)), reference(images(40)), **CLOSE)


RELEASES = Path(os.environ.get("VIT_PYTORCH_RELEASES", "missing"))
SAVE = """
import json, sys
sys.path.insert(0, sys.argv[1])
import torch
from tests.exchange.conftest import images, scramble
try:
    from vit_pytorch.vit import ViT
except ImportError:
    from vit_pytorch.vit_pytorch import ViT
import vit_pytorch
assert vit_pytorch.__file__.startswith(sys.argv[1])
options = json.loads(sys.argv[3])
for channels in (3, 1):
    model = scramble(ViT(**options, channels=channels))
    if isinstance(model.mlp_head, torch.nn.Sequential) and len(model.mlp_head) > 2:
        model.mlp_head = model.mlp_head[:1] if hasattr(model.mlp_head[0], "normalized_shape") else torch.nn.Identity()
    with torch.no_grad():
        output = model(images(40, channels))
    torch.save({"state": model.state_dict(), "output": output}, f"{sys.argv[2]}/{channels}.pt")
"""


@pytest.mark.slow
@pytest.mark.skipif(not RELEASES.is_dir(), reason="VIT_PYTORCH_RELEASES names no folder of releases")
@pytest.mark.parametrize("release", sorted(each.parent.name for each in RELEASES.glob("*/vit_pytorch")))
def test_releases_themselves(release, tmp_path):
    code = [sys.executable, "-c", SAVE, str(RELEASES / release), str(tmp_path), json.dumps(OPTIONS)]
    subprocess.run(code, check=True, cwd=Path(__file__).parents[2])
    for channels in (3, 1):
        saved = torch.load(tmp_path / f"{channels}.pt")
        if release == "0.6.8":  # alone of those with patch_to_embedding it divides by the root of the head width
            for name in [name for name in saved["state"] if name.endswith("to_qkv.weight")]:
                saved["state"][name][:128] *= (OPTIONS["dim"] / 64) ** 0.5
        model, _ = import_weights(saved["state"], num_heads=2)
        with torch.no_grad():
            torch.testing.assert_close(model(images(40, channels)), saved["output"], **CLOSE)
