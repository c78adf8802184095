"""Images of another size than that of the model: the same scene in fewer pixels."""

import pytest
import torch
from timm.layers import resample_abs_pos_embed

from vit.models import VisionTransformer, create_model

FULL, SMALL_SIZE = (32, 48), (16, 32)  # grids of 4x6 and 2x4 patches
VALUES = {"patch_size": 8, "dim": 24, "depth": 2, "num_heads": 3, "num_classes": 5}
BARE = {"class_token": False, "pool": "mean"}  # no prefix token, so that a common shift of all positions has no effect


def model(image_size: tuple[int, int], **options) -> VisionTransformer:
    torch.manual_seed(0)
    made = create_model("vit_tiny", image_size=image_size, **{**VALUES, **options}).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return made


def pixels(size: tuple[int, int]) -> torch.Tensor:
    return torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("options", [
    {}, {"registers": 2, "pool": "attention"}, {"prefix_positions": False}, {"dist_token": True}, {"stem": "compact"},
])
def test_a_learned_table_is_resampled_as_in_timm(options: dict) -> None:
    full, small = model(FULL, **options), model(SMALL_SIZE, **options)
    full.add_image_sizes([SMALL_SIZE])
    weights = full.state_dict()
    prefix = full.config.prefix if full.config.prefix_positions else 0
    weights["embed.pos_embed"] = resample_abs_pos_embed(weights["embed.pos_embed"], (2, 4), (4, 6), prefix)
    small.load_state_dict(weights)
    torch.testing.assert_close(full(pixels(SMALL_SIZE)), small(pixels(SMALL_SIZE)), rtol=0, atol=1e-5)
    for got, expected in zip(full.features(pixels(SMALL_SIZE)), small.features(pixels(SMALL_SIZE)), strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("options", "other"), [
    ({"rotary_coordinates": "centred", "registers": 2}, {}),  # an interval that does not depend on the grid
    ({**BARE, "rotary_span": (3, 5)}, {}),
    ({**BARE}, {"rotary_span": (4, 6)}),  # of the full grid
    ({**BARE, "rotary_offset": 1.0, "rotary_mixed": True, "rotary_columns_first": True}, {"rotary_span": (4, 6)}),
])
def test_rotary_positions_are_those_of_the_same_points_of_the_scene(options: dict, other: dict) -> None:
    options = {"positions": "rotary", **options}
    full, small = model(FULL, **options), model(SMALL_SIZE, **options | other)
    full.add_image_sizes([SMALL_SIZE])
    small.load_state_dict(full.state_dict())
    torch.testing.assert_close(full(pixels(SMALL_SIZE)), small(pixels(SMALL_SIZE)), rtol=0, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"positions": "rotary"}, {"positions": "sincos"}])
def test_full_size_and_saved_names_are_unchanged(options: dict) -> None:
    plain, scaled = model(FULL, **options), model(FULL, **options)
    scaled.add_image_sizes([SMALL_SIZE, FULL])
    assert plain.state_dict().keys() == scaled.state_dict().keys()
    assert torch.equal(plain(pixels(FULL)), scaled(pixels(FULL)))
    with pytest.raises(ValueError, match="images are 16x32 pixels, but the model was built for image_size 32x48"):
        plain(pixels(SMALL_SIZE))
    with pytest.raises(ValueError, match="images are 16x16 pixels, but the model was built for image_size 32x48"):
        scaled(pixels((16, 16)))


def test_rotations_follow_the_indices_of_dropped_patches() -> None:
    """Dropping no patch by index gives the same result as dropping none."""
    full = model(FULL, positions="learned_rotary", patch_dropout=0.01).train()  # rounds to all patches
    full.add_image_sizes([SMALL_SIZE])
    dropped = full(pixels(SMALL_SIZE))
    full.encoder.patch_dropout.rate = 0
    torch.testing.assert_close(dropped, full(pixels(SMALL_SIZE)), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("options", "text"), [
    ({"positions": "relative"}, "positions=relative has a bias for each pair of patches"),
    ({"attention": "local"}, "attention=local has a window along the rows of patches"),
    ({"mixer": "conv1d"}, "mixer=conv1d depends on the order of the patches"),
    ({**BARE, "pool": "sum"}, "pool=sum depends on the number of patches"),
])
def test_models_with_one_size(options: dict, text: str) -> None:
    with pytest.raises(ValueError, match=f"{text}, so that this model has one image_size"):
        model(FULL, **options).add_image_sizes([SMALL_SIZE])
