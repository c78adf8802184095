"""Images smaller than the model's: positions of their own part of the grid, and padding without influence."""

import pytest
import torch

from vit.nn import (
    Attention,
    Block,
    ConvStem,
    Encoder,
    LayerNorm,
    LinearPatches,
    MaskedConvStem,
    Mlp,
    PatchEmbed,
    PooledConvStem,
    Prefix,
    Rotary,
    learned,
    sincos_2d,
)
from vit.nn.init import init_weights

D, IMAGE, PATCH = 16, (8, 24), (4, 4)  # a grid of 2 x 6
CLOSE = {"rtol": 0, "atol": 1e-5}


def embed(stem=LinearPatches, prefix: bool = False, **options) -> PatchEmbed:
    torch.manual_seed(0)
    options = {"pos_embed": learned(12 + 2 * prefix, D), **options}
    made = PatchEmbed(stem(3, D, PATCH), IMAGE, prefix=Prefix(prefix, registers=int(prefix)), flexible=True, **options)
    init_weights(made)
    if stem is PooledConvStem:  # its norms have running statistics
        made(torch.randn(4, 3, *IMAGE) + 1)
    return made.eval()


@pytest.mark.parametrize("prefix", [False, True])
@pytest.mark.parametrize("prefix_rows", [False, True])
def test_positions_are_those_of_the_upper_left_part(prefix: bool, prefix_rows: bool) -> None:
    rows = 2 if prefix and prefix_rows else 0
    made = embed(prefix=prefix, pos_embed=learned(12 + rows, D))
    image = torch.randn(1, 3, 8, 24)
    whole = made(image)[:, made.prefix :].unflatten(1, (2, 6))
    for height, width in ((8, 12), (4, 24), (4, 4)):
        part = made(image[:, :, :height, :width])
        expected = whole[:, : height // 4, : width // 4].flatten(1, 2)
        torch.testing.assert_close(part[:, made.prefix :], expected, **CLOSE)
        torch.testing.assert_close(part[:, : made.prefix], made(image)[:, : made.prefix], **CLOSE)


def stack(rotary: bool, prefix: int = 0) -> Encoder:
    torch.manual_seed(0)
    blocks = [Block(D, Attention(D, 2), Mlp(D, 2 * D)) for _ in range(2)]
    made = Encoder(blocks, LayerNorm(D), rotary=Rotary((2, 6), D // 2, prefix) if rotary else None)
    init_weights(made)
    return made.eval()


@pytest.mark.parametrize("stem", [LinearPatches, MaskedConvStem, PooledConvStem])
@pytest.mark.parametrize("positions", ["learned", "sincos", "rotary"])
def test_padding_of_any_colour_changes_no_output(stem, positions: str) -> None:
    tables = {"learned": learned(14, D), "sincos": sincos_2d((2, 6), D), "rotary": None}
    made, encoder = embed(stem, True, pos_embed=tables[positions]), stack(positions == "rotary", 2)

    def outputs_of(images: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        full = None if mask is None else torch.nn.functional.pad(mask, (2, 0), value=True)
        return encoder(made(images, mask), full, positions=made.positions(images))

    images = torch.randn(3, 3, 8, 20) * 50  # 2 x 5 patches, of which each image has its own part
    sizes = [(2, 3), (1, 5), (2, 5)]
    mask = torch.zeros(3, 2, 5, dtype=torch.bool)
    for i, (rows, columns) in enumerate(sizes):
        mask[i, :rows, :columns] = True
        images[i, :, : 4 * rows, : 4 * columns] = torch.randn(3, 4 * rows, 4 * columns)
    batch = outputs_of(images, mask.flatten(1))
    for i, (rows, columns) in enumerate(sizes):
        alone = outputs_of(images[i : i + 1, :, : 4 * rows, : 4 * columns])
        own = torch.cat([torch.tensor([True, True]), mask[i].flatten()])
        torch.testing.assert_close(batch[i, own], alone[0], **CLOSE)


def test_the_masked_stem_loads_the_weights_of_the_other() -> None:
    ours, other = MaskedConvStem(3, D, (4, 8)), ConvStem(3, D, (4, 8))
    ours.load_state_dict(other.state_dict())
    x = torch.randn(2, 3, 8, 16)
    assert ours(x).shape == other(x).shape and ours(x).is_contiguous()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: embed(ConvStem), "mixes an image with its padding; use MaskedConvStem"),
        (lambda: embed()(torch.zeros(1, 3, 8, 10)), "image_size 10 is not divisible by patch_size 4; nearest.*8, 12"),
        (lambda: embed()(torch.zeros(1, 3, 8, 28)), "8x28 pixels, but the model was built for image_size 8x24"),
        (lambda: embed()(torch.zeros(1, 3, 8, 2)), "image_size 2 is not divisible by patch_size 4; nearest valid: 4"),
        (lambda: embed()(torch.zeros(1, 1, 8, 24)), "1 channels"),
        (lambda: stack(True)(torch.zeros(1, 5, D)), "5 tokens are not all 12 of the grid; pass their positions"),
    ],
)
def test_errors_name_both_numbers(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_only_a_prepared_grid_other_than_the_models_is_a_scaled_one() -> None:
    made = embed()
    made.scaled_grids = frozenset({(2, 6), (4, 12), (1, 3)})
    found = {size: made.scaled_grid(torch.zeros(1, 3, *size)) for size in ((8, 24), (16, 48), (4, 12), (4, 8))}
    assert found == {(8, 24): None, (16, 48): (4, 12), (4, 12): (1, 3), (4, 8): None}
