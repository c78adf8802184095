"""Other patch sizes, channels, resolutions and aspect ratios than the source's, compared with timm."""

import dataclasses

import pytest
import timm
import torch
import torch.nn.functional as F
from timm.layers import resample_patch_embed
from timm.models import adapt_input_conv

from tests.weights.formats.test_timm import foreign
from vit.models import VisionTransformer, VisionTransformerConfig, create_model
from vit.weights import infer_config, load_weights
from vit.weights.formats.timm import TIMM
from vit.weights.resizing import adapt_channels, resize_patches

CLOSE = {"rtol": 0, "atol": 1e-5}


def weight(channels: int = 3, size: tuple[int, int] = (8, 8)) -> torch.Tensor:
    return torch.randn(10, channels, *size, generator=torch.Generator().manual_seed(0)) * 0.1


@pytest.mark.parametrize(("old", "new"), [
    ((8, 8), (16, 16)), ((16, 16), (8, 8)), ((16, 16), (14, 14)), ((8, 16), (12, 10)), ((8, 8), (8, 8)),
])
def test_patches_as_timm_resamples_them(old: tuple, new: tuple) -> None:
    ours = resize_patches(weight(size=old), new)
    assert ours.shape == (10, 3, *new) and ours.dtype == torch.float32
    torch.testing.assert_close(ours, resample_patch_embed(weight(size=old), list(new)), **CLOSE)


def test_a_larger_patch_gives_the_token_of_the_smaller_one() -> None:
    patch = torch.randn(5, 3, 8, 8)
    larger = F.interpolate(patch, size=(20, 12), mode="bicubic", antialias=True)
    tokens = F.conv2d(larger, resize_patches(weight(), (20, 12)))
    torch.testing.assert_close(tokens, F.conv2d(patch, weight()), rtol=0, atol=1e-5)


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 7])
def test_channels_as_timm_adapts_them(channels: int) -> None:
    ours = adapt_channels(weight(), channels)
    torch.testing.assert_close(ours, adapt_input_conv(channels, weight()), rtol=0, atol=1e-6)
    grey = torch.randn(2, 1, 8, 8)
    if channels % 3 == 0 or channels == 1:  # others count some colours more often
        before = F.conv2d(grey.expand(-1, 3, -1, -1), weight())
        torch.testing.assert_close(F.conv2d(grey.expand(-1, channels, -1, -1), ours), before, **CLOSE)


CHANGES = {
    "resolution": {"image_size": (64, 64)},
    "aspect": {"image_size": (32, 96)},
    "patches": {"patch_size": (8, 8)},
    "all": {"image_size": (48, 64), "patch_size": (16, 8), "in_chans": 1, "num_classes": 4},
}
FAMILIES = ("DeiT", "reg4 gap", "CLIP", "SigLIP", "EVA-02 CLIP 16", "rope reg gap", "RoPE-ViT ape",
            "RoPE-Mixed ape", "DINOv3", "PE core")


@pytest.mark.parametrize("family", FAMILIES)
def test_models_as_timm_resizes_them(family: str) -> None:
    reference = foreign(family)
    state = TIMM.convert(reference.state_dict())
    config = VisionTransformerConfig.from_dict(
        infer_config(state, TIMM.config_values(reference.state_dict(), {"module": reference})))
    for name, change in CHANGES.items():
        model = VisionTransformer(dataclasses.replace(config, **change)).eval()
        report = load_weights(model, reference.state_dict(), source_grid=config.grid)
        assert {row.status for row in report.rows if not row.name.startswith("head.")} <= {"loaded", "resized", "fused"}
        resized = foreign(family)
        resized.set_input_size(img_size=model.config.image_size, patch_size=model.config.patch_size)
        if "in_chans" in change:
            kernel = resized.patch_embed.proj
            kernel.weight = torch.nn.Parameter(adapt_input_conv(1, kernel.weight.detach()))
            resized.head = model.head  # new, for other classes
        x = torch.randn(2, model.config.in_chans, *model.config.image_size)
        with torch.no_grad():
            torch.testing.assert_close(model(x), resized(x), **CLOSE, msg=lambda text, name=name: f"{name}: {text}")


def test_the_report_has_the_details() -> None:
    small = {"dim": 24, "depth": 2, "num_heads": 3, "num_classes": 5}
    old = create_model("vit_tiny", **small, image_size=32, patch_size=8)
    new = create_model("vit_tiny", **small, image_size=32, patch_size=(16, 8), in_chans=1)
    report = load_weights(new, old.state_dict())
    rows = {row.name: row for row in report.rows if row.status == "resized"}
    assert rows["embed.proj.weight"].how == "patches of 8x8 to 16x8 pixels, 3 channels to 1"
    assert rows["embed.pos_embed"].how == "grid of 4x4 to 2x4 patches"


def test_a_timm_model_loads_timms_and_vits_names() -> None:
    name, options = "eva02_tiny_patch14_224", {"img_size": 28, "depth": 1, "num_classes": 3}
    first, second = (timm.create_model(name, **options) for _ in range(2))
    report = load_weights(second, first.state_dict())
    assert {row.status for row in report.rows} == {"loaded"}
