"""The distillation token against timm's VisionTransformerDistilled, random weights throughout."""

import json

import pytest
import timm
import torch
from timm.models.deit import VisionTransformerDistilled

from vit.bundle import load_bundle, save_bundle
from vit.data import Preprocessing
from vit.models import create_model, model_from_config
from vit.weights import from_timm, infer_config, load_weights, timm_arguments, to_timm

SIZES = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": 5}
OURS = {"image_size": 16, "patch_size": 4, "dim": 32, "depth": 2, "num_heads": 4, "num_classes": 5, "dist_token": True}


def random(model):
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model.eval()


def images(rows=3):
    return torch.randn(rows, 3, 16, 16, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("options", [({}, {}), ({"init_values": 0.1, "qkv_bias": False, "reg_tokens": 0},
                                                {"layer_scale": 0.1, "qkv_bias": False})])
def test_logits_are_those_of_timm(options):
    theirs = random(VisionTransformerDistilled(**SIZES, **options[0]))
    model = create_model("vit_tiny", **{**OURS, "mlp_ratio": 4.0, **options[1]}).eval()
    report = load_weights(model, theirs.state_dict())
    assert report.count("loaded") == len(model.state_dict()) == len(theirs.state_dict()) == len(report.rows)
    torch.testing.assert_close(model(images()), theirs(images()), rtol=0, atol=1e-5)
    for each in (model, theirs):
        each.train().set_distilled_training(True)
    for ours, other in zip(model(images()), theirs(images()), strict=True):
        torch.testing.assert_close(ours, other, rtol=0, atol=1e-5)
    model.set_distilled_training(False)
    assert model(images()).shape == (3, 5)


def test_the_architecture_is_inferred_from_the_tensors():
    state = from_timm(VisionTransformerDistilled(**SIZES).state_dict())
    values = infer_config(state, {"num_heads": 4, "norm_eps": 1e-6, "activation": "gelu"})
    assert values["dist_token"] and values["pool"] == "class" and values["prefix_positions"]
    model_from_config(values).load_state_dict(state)


def test_a_timm_folder_is_a_distilled_one(tmp_path):
    model = random(create_model("vit_tiny", **OURS))
    classes, preprocessing = ["a", "b", "c", "d", "e"], Preprocessing(16)
    save_bundle(tmp_path / "model", model, classes, preprocessing)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["architecture"] == "deit_base_distilled_patch16_224"
    theirs = timm.create_model(f"local-dir:{tmp_path / 'model'}", pretrained=True).eval()
    torch.testing.assert_close(theirs(images()), model(images()), rtol=0, atol=1e-5)
    again = load_bundle(tmp_path / "model").model
    assert again.config == model.config and torch.equal(again(images()), model(images()))
    other = timm.create_model(f"local-dir:{tmp_path / 'model'}", pretrained=True, num_classes=7)  # both heads anew
    assert other(images()).shape == (3, 7)


@pytest.mark.parametrize(("options", "reason"), [
    ({"registers": 2}, "no registers"),
    ({"positions": "sincos"}, "a learned position table only"),
    ({"prefix_positions": False}, "a learned position table only"),
    ({"mlp": "swiglu"}, "no SwiGLU blocks"),
    ({"positions": "rotary"}, "a learned position table only"),
])
def test_what_timm_cannot_express_keeps_our_names(options, reason, tmp_path):
    model = random(create_model("vit_tiny", **{**OURS, **options}))
    assert f"timm's distilled VisionTransformer has {reason}" in timm_arguments(model.config)
    with pytest.warns(UserWarning, match="saved under vit's own names"):
        save_bundle(tmp_path / "model", model, ["a", "b", "c", "d", "e"], Preprocessing(16))
    again = load_bundle(tmp_path / "model").model
    assert torch.equal(again(images()), model(images())) and again.config == model.config


def test_names_survive_the_round_trip():
    model = random(create_model("vit_tiny", **OURS))
    there = to_timm(model.state_dict(), model.config)
    assert {"dist_token", "head_dist.weight"} <= set(there)
    back = from_timm(there, model.config)
    assert back.keys() == model.state_dict().keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in model.state_dict().items())


def test_other_classes_make_both_heads_new():
    source = random(create_model("vit_tiny", **OURS))
    model = create_model("vit_tiny", **{**OURS, "num_classes": 9, "image_size": 32})
    report = load_weights(model, source.state_dict())
    assert {r.name for r in report.rows if r.status == "new"} == {f"{h}.{k}" for h in ("head", "head_dist")
                                                                for k in ("weight", "bias")}
    assert [r.name for r in report.rows if r.status == "resized"] == ["embed.pos_embed"]
    assert torch.equal(model.embed.pos_embed[:, :2], source.embed.pos_embed[:, :2])
    same = create_model("vit_tiny", **OURS)
    assert load_weights(same, source.state_dict(), head=False).count("new") == 4


@pytest.mark.parametrize("options", [{"pool": "mean"}, {"final_norm": "pooled"}])
def test_invalid_combinations_are_errors(options):
    with pytest.raises(ValueError, match="dist_token=true needs class_token=true, pool=class"):
        create_model("vit_tiny", **{**OURS, **options})
