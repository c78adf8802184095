"""Names, sizes and configs."""

import json
import warnings

import pytest
import timm
import torch

from vit.models import TimmConfig, VisionTransformerConfig, create_model, list_models, model_from_config
from vit.models.zoo import SIZES


def count(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "options", "parameters"),
    [
        ("vit_base_patch16_224", {}, 86_567_656),
        ("vit_base_patch16_384", {}, 86_859_496),
        ("vit_base_patch32_224", {}, 88_224_232),
        ("vit_large_patch16_224", {}, 304_326_632),
        ("vit_large", {"registers": 0, "positions": "sincos"}, 304_326_632 - 197 * 1024),
    ],
)
def test_published_parameter_counts(name: str, options: dict, parameters: int) -> None:
    with torch.device("meta"):
        assert count(create_model(name, **options)) == parameters


@pytest.mark.parametrize(
    ("name", "theirs", "options"),
    [
        ("vit_micro", "vit_tiny_patch16_224", {"embed_dim": 64, "depth": 4, "num_heads": 2}),
        ("vit_tiny", "vit_tiny_patch16_224", {}),
        ("vit_small", "vit_small_patch16_224", {}),
        ("vit_medium", "vit_base_patch16_224", {"embed_dim": 512, "num_heads": 8}),
        ("vit_so400m", "vit_base_patch16_224",
         {"patch_size": 14, "embed_dim": 1152, "depth": 27, "num_heads": 16, "mlp_ratio": 3.7362}),
        ("vit_huge", "vit_huge_patch14_224", {}),
        ("vit_giant", "vit_giant_patch14_224", {}),
        ("vit_gigantic", "vit_gigantic_patch14_224", {}),
    ],
)
def test_every_size_has_as_many_parameters_as_timms(name: str, theirs: str, options: dict) -> None:
    with torch.device("meta"):
        assert count(create_model(name)) == count(timm.create_model(theirs, num_classes=1000, **options))


def test_names_determine_patch_and_image_size() -> None:
    config = create_model("vit_tiny_patch8_64", num_classes=3, depth=1).config
    assert (config.image_size, config.patch_size, config.dim, config.depth) == ((64, 64), (8, 8), 192, 1)
    with torch.device("meta"):
        assert create_model("vit_huge").config.patch_size == (14, 14)


def test_list_models_by_pattern() -> None:
    assert {f"vit_{size}" for size in SIZES} <= set(list_models())
    assert "vit_so400m_patch14_224" in list_models("vit_so400m*") and "vit_small_patch16_224" in list_models()
    assert all(name.startswith("vit_tiny") for name in list_models("vit_tiny*"))
    assert list_models("resnet*") == []


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("vit_smal_patch16_224", {}, "no model 'vit_smal_patch16_224'; nearest: vit_small_patch16_224"),
        ("resnet18", {}, "no model 'resnet18'; nearest: timm:resnet18"),
        ("photo", {}, "no model 'photo'; nearest: vit_micro, vit_tiny"),
        ("timm/resnet19", {}, "timm has no model 'resnet19'; nearest: timm:resnet18"),
        ("timm:@@@@", {}, r"timm has no model '@@@@'; timm.list_models\(\) lists the names"),
        ("timm:vit_tiny_patch16_224", {"image_size": (32, 8)},
         r"image_size \(32, 8\) is smaller than a patch of vit_tiny_patch16_224, \(16, 16\); use"),
        ("vit_tiny", {"imagesize": 32}, "no option 'imagesize'; nearest: image_size"),
        ("timm:resnet18", {"drop_pth": 0.1}, "no option 'drop_pth'; nearest: drop_path"),
        ("vit_tiny_patch16_224", {"image_size": 100},
         "image_size 100 is not divisible by patch_size 16; nearest valid: 96, 112"),
        ("vit_tiny", {"dim": 100}, "dim 100 is not divisible by num_heads 3; nearest dim: 99, 102"),
        ("vit_tiny", {"pool": "clas"}, "pool=clas is unknown; nearest: class"),
        ("vit_tiny", {"pool": "class", "class_token": False}, "needs class_token=true"),
        ("vit_tiny", {"stem": "conv", "patch_norm": True}, "^patch_norm=true needs stem=linear, not stem=conv"),
        ("vit_tiny", {"stem": "conv", "patch_bias": False}, "^patch_bias=false needs stem=linear, not stem=conv"),
        ("vit_tiny", {"drop_path": 1.0}, r"drop_path is 1.0, but must lie in \[0, 1\)"),
        ("vit_tiny", {"depth": 0}, "depth is 0, but must be a whole number above 0"),
        ("vit_tiny", {"dim": "64"}, "dim is '64', but must be a whole number above 0"),
        ("vit_tiny", {"depth": 1.5}, "depth is 1.5, but must be a whole number above 0"),
        ("vit_tiny", {"registers": "2"}, "registers is '2', but must be a whole number of at least 0"),
        ("vit_tiny", {"norm_eps": float("nan")}, "norm_eps is nan, but must be a number above 0"),
        ("vit_tiny", {"layer_scale": float("inf")}, "layer_scale is inf, but must be a number above 0, or null"),
        ("vit_tiny", {"dropout": "0.1"}, r"dropout is '0.1', but must lie in \[0, 1\)"),
        ("vit_tiny", {"block": ["serial"]}, r"block=\['serial'\] is unknown; nearest: serial"),
        ("vit_tiny", {"stem": "conv", "patch_size": 14}, "powers of two"),
        ("vit_tiny", {"block": "paralell"}, "block=paralell is unknown; nearest: parallel"),
        ("vit_tiny", {"block": "parallel", "pre_norm": False}, "position of its norms; set pre_norm=true"),
        ("vit_tiny", {"block": "res_post_norm", "layer_scale": 0.1}, "set layer_scale=null with it, not 0.1"),
        ("vit_tiny", {"positions": "rotary", "head_dim": 30}, "head_dim divisible by 4, but it is 30; nearest: 28, 32"),
        ("vit_tiny", {"rotary_mixed": True}, "rotary_mixed=true needs positions=rotary or learned_rotary, not learned"),
        ("vit_tiny", {"image_size": (32, 32, 3)}, "must be one whole number above 0"),
        ("vit_tiny", {"image_size": -16}, "image_size is -16, but must be one whole number above 0"),
        ("vit_tiny", {"image_size": 32.5}, "image_size is 32.5, but must be one whole number above 0"),
        ("vit_tiny", {"patch_size": (0, 4)}, r"patch_size is \(0, 4\), but must be one whole number above 0"),
        ("vit_tiny", {"image_size": "32"}, "image_size is 32, but must be one whole number"),
        ("vit_tiny", {"layer_scale": 0.0}, "layer_scale is 0.0"),
    ],
)
def test_invalid_names_and_values_are_errors_of_one_line(name: str, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        create_model(name, **options)
    assert "\n" not in str(error.value)


def test_pixels_that_a_timm_model_leaves_out_are_named() -> None:
    with pytest.warns(UserWarning, match="vit_tiny_patch16_224 reads 96x32 of the 100x32 pixels"):
        model = create_model("timm:vit_tiny_patch16_224", image_size=(100, 32), num_classes=3).eval()
    images = torch.randn(1, 3, 100, 32)
    changed = torch.cat([images[:, :, :96], torch.randn(1, 3, 4, 32)], dim=2)
    assert torch.equal(model(images), model(changed))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        create_model("timm:vit_tiny_patch16_224", image_size=(96, 32), num_classes=3)
        create_model("timm:resnet18", image_size=33, num_classes=3)


CONFIGS = [
    VisionTransformerConfig(image_size=16, patch_size=(4, 8), dim=24, depth=1, num_heads=2, num_classes=3),
    TimmConfig("resnet18", image_size=32, in_chans=1, num_classes=3),
    TimmConfig("timm:vit_tiny_patch16_224", image_size=(32, 48), num_classes=3),
    TimmConfig("timm/resnet18", num_classes=3),  # former prefix
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.kind)
def test_a_config_survives_json_and_builds_the_model_again(config) -> None:
    values = json.loads(json.dumps(config.to_dict()))
    assert type(config).from_dict(values) == config
    model = model_from_config(values)
    assert model.config == config
    images = torch.randn(2, config.in_chans, *config.image_size)
    assert model.eval()(images).shape == (2, 3)


def test_only_known_kinds_are_built() -> None:
    with pytest.raises(ValueError, match="kind 'os.system' is unknown; it must be one of vit, timm"):
        model_from_config({"kind": "os.system"})
    with pytest.raises(ValueError, match="no option 'num_class'; nearest: num_classes"):
        model_from_config({"kind": "vit", "num_class": 3})


@pytest.mark.parametrize(("former", "current"), [
    ({"rotary_places": "centred"}, {"rotary_coordinates": "centred"}),
    ({"rotary_pairs": "halves"}, {"rotary_pairs": "rotate_half"}),
    ({"rotary_pairs": "neighbours"}, {"rotary_pairs": "interleaved"}),
    ({"block": "branch_norm"}, {"block": "res_post_norm"}),
])
def test_former_names_in_a_config_are_accepted(former: dict, current: dict) -> None:
    values = {"kind": "vit", "image_size": 8, "patch_size": 4, "dim": 16, "depth": 1, "num_heads": 2,
              "positions": "rotary"}
    config = model_from_config({**values, **former}).config
    assert config == model_from_config({**values, **current}).config
    assert config.to_dict().items() >= current.items()
    sizes = {key: value for key, value in values.items() if key != "kind"}
    assert create_model("vit_tiny", **sizes, **former).config.to_dict().items() >= current.items()


def test_former_names_of_layers_stay_importable() -> None:
    from vit import nn

    assert (nn.BranchNormBlock, nn.Halves, nn.Neighbours) == (nn.ResPostNormBlock, nn.RotateHalf, nn.Interleaved)
