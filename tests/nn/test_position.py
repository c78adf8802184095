"""Tables and their resampling against timm's and the papers' formulas."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from timm.layers import RotaryEmbeddingCat, apply_rot_embed_cat, build_sincos2d_pos_embed, resample_abs_pos_embed
from timm.layers.pos_embed_sincos import RotaryEmbeddingDinoV3, RotaryEmbeddingMixed
from vit_pytorch.simple_vit import posemb_sincos_2d

from vit.nn import (
    Interleaved,
    MixedRotary,
    Rotary,
    RotateHalf,
    centred,
    learned,
    resample,
    sincos_1d,
    sincos_2d,
    steps,
    stretched,
)
from vit.nn.position import fixed_table, sincos_2d_simple


@pytest.mark.parametrize("prefix", [0, 1, 5])
@pytest.mark.parametrize(("old", "new"), [((4, 4), (7, 7)), ((6, 3), (4, 9)), ((5, 8), (8, 5)), ((3, 3), (3, 3))])
def test_resample_equals_timm(old: tuple, new: tuple, prefix: int) -> None:
    table = torch.randn(1, prefix + old[0] * old[1], 12)
    expected = resample_abs_pos_embed(table, list(new), list(old), num_prefix_tokens=prefix)
    assert torch.equal(resample(table, old, new), expected)


def test_resample_keeps_half_precision() -> None:
    table = torch.randn(1, 17, 8).bfloat16()
    assert resample(table, (4, 4), (2, 3)).dtype == torch.bfloat16


def test_resample_refuses_a_grid_that_is_too_large() -> None:
    with pytest.raises(ValueError, match=r"10 rows, fewer than the 16"):
        resample(torch.zeros(1, 10, 8), (4, 4), (2, 2))


def test_sincos_2d_has_the_channels_of_timms_in_another_order() -> None:
    grid, dim = (3, 5), 16
    theirs = build_sincos2d_pos_embed(list(grid), dim).unflatten(1, (2, 2, dim // 4))  # sin|cos, row|column
    expected = theirs.transpose(1, 2).flatten(1)
    torch.testing.assert_close(sincos_2d(grid, dim)[0], expected)


def test_sincos_1d_equals_the_formula() -> None:
    position, i = np.arange(7)[:, None], np.arange(4)
    angles = position / 10_000 ** (2 * i / 8)
    expected = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    torch.testing.assert_close(sincos_1d(7, 8)[0].double(), torch.from_numpy(expected), rtol=0, atol=1e-6)


def test_interleaved_sincos_equals_the_papers_formula() -> None:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos of the same (arXiv 1706.03762, section 3.5)."""
    table = sincos_1d(7, 8, interleaved=True)[0]
    for pos in range(7):
        for i in range(4):
            angle = pos / 10_000 ** (2 * i / 8)
            assert table[pos, 2 * i : 2 * i + 2].tolist() == pytest.approx([math.sin(angle), math.cos(angle)], abs=1e-6)
    row, column = (sincos_1d(n, 8, interleaved=True)[0] for n in (2, 3))
    torch.testing.assert_close(sincos_2d((2, 3), 16, interleaved=True)[0, 4], torch.cat([row[1], column[1]]))


WIDTH, GRID = 16, [3, 5]
ROTARIES = {
    "steps": (steps, RotaryEmbeddingCat(WIDTH, in_pixels=False, feat_shape=GRID, temperature=50.0)),
    "from 1": (partial(steps, offset=1.0),
               RotaryEmbeddingCat(WIDTH, in_pixels=False, feat_shape=GRID, temperature=50.0, grid_offset=1.0)),
    "stretched": (partial(stretched, span=(8, 6)), RotaryEmbeddingCat(
        WIDTH, in_pixels=False, feat_shape=GRID, temperature=50.0, ref_feat_shape=[8, 6])),
    "columns first": (steps, RotaryEmbeddingCat(
        WIDTH, in_pixels=False, feat_shape=GRID, temperature=50.0, grid_indexing="xy")),
    "halves": (steps, RotaryEmbeddingCat(
        WIDTH, in_pixels=False, feat_shape=GRID, temperature=50.0, rotate_half=True)),
    "centred": (centred, RotaryEmbeddingDinoV3(WIDTH, 50.0, feat_shape=GRID, rotate_half=True)),
}


@pytest.mark.parametrize("case", ROTARIES)
def test_rotary_equals_timms(case: str) -> None:
    positions, theirs = ROTARIES[case]
    pairs = RotateHalf if theirs.rotate_half else Interleaved
    ours = Rotary(tuple(GRID), WIDTH, 0, 50.0, positions, columns_first=case == "columns first", pairs=pairs)
    x = torch.randn(2, 4, 15, WIDTH)
    expected = apply_rot_embed_cat(x, theirs.get_embed(), half=theirs.rotate_half)
    torch.testing.assert_close(ours()(x), expected, rtol=0, atol=1e-5)


def mixed_pair(columns_first: bool) -> tuple[MixedRotary, RotaryEmbeddingMixed]:
    """Ours and timm's for 3 blocks of 4 heads, with the same random frequencies."""
    torch.manual_seed(0)
    theirs = RotaryEmbeddingMixed(
        4 * WIDTH, 3, 4, temperature=10.0, feat_shape=GRID, grid_indexing="xy" if columns_first else "ij")
    ours = MixedRotary(tuple(GRID), WIDTH, 3, 4, columns_first=columns_first, pairs=Interleaved)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


@pytest.mark.parametrize("columns_first", [False, True])
def test_mixed_rotary_equals_timms(columns_first: bool) -> None:
    ours, theirs = mixed_pair(columns_first)
    x = torch.randn(2, 4, 15, WIDTH)
    for turn, angles in zip(ours.part(0, 15), theirs.get_embed(), strict=True):
        torch.testing.assert_close(turn(x), apply_rot_embed_cat(x, angles), rtol=0, atol=1e-5)


def test_mixed_rotary_is_initialized_as_timms_except_the_directions() -> None:
    ours, theirs = (each.freqs.detach().square().sum(0).sqrt() for each in mixed_pair(False))
    torch.testing.assert_close(MixedRotary(tuple(GRID), WIDTH, 3, 4).freqs.square().sum(0).sqrt(), theirs)
    torch.testing.assert_close(ours, theirs)


def test_mixed_rotary_of_some_tokens_is_part_of_all() -> None:
    rotary, positions = MixedRotary((2, 3), 8, 2, 5, prefix=1), torch.tensor([[0, 3, 6], [0, 1, 2]])
    x = torch.randn(5, 7, 8)
    for some, one, every in zip(rotary(positions), rotary(positions[0]), rotary(), strict=True):
        turned = every(x)  # (H,N,K)
        for i, each in enumerate(positions):
            torch.testing.assert_close(some(x[:, positions].transpose(0, 1))[i], turned[:, each])
        torch.testing.assert_close(one(x[:, positions[0]]), turned[:, positions[0]])
        assert torch.equal(turned[:, 0], x[:, 0])  # the class token has no position
    with pytest.raises(ValueError, match="6 tokens are not all 7 of the grid"):
        rotary.part(0, 6)
    with pytest.raises(ValueError, match="head_dim 6 is not divisible by 4.*; nearest: 4, 8"):
        MixedRotary((2, 3), 6, 2, 5)


def test_scaled_positions_have_one_range_at_every_resolution() -> None:
    assert stretched(4, 0, (8, 6)).tolist() == [0, 2, 4, 6] and stretched(12, 1, (8, 6))[-1] == 5.5
    torch.testing.assert_close(centred(6, 0), -centred(6, 0).flip(0))


def test_simple_sincos_equals_vit_pytorchs() -> None:
    theirs = posemb_sincos_2d(3, 5, 16)  # sin and cos of the column, sin and cos of the row
    torch.testing.assert_close(sincos_2d_simple((3, 5), 16)[0], theirs)
    torch.testing.assert_close(fixed_table("sincos_simple", (3, 5), 16)[0], theirs)
    pairs = theirs.unflatten(1, (2, 2, 4)).transpose(2, 3).flatten(1)  # sine and cosine of a frequency in turn
    torch.testing.assert_close(fixed_table("sincos_simple", (3, 5), 16, "interleaved")[0], pairs)


@pytest.mark.parametrize(("dim", "nearest"), [(10, 8), (4, 8), (14, 12)])
def test_simple_sincos_of_a_width_without_two_frequencies_is_an_error(dim: int, nearest: int) -> None:
    with pytest.raises(ValueError, match=f"dim {dim} must be divisible by 4 and at least 8.*; nearest: {nearest}"):
        sincos_2d_simple((2, 2), dim)


def test_a_learned_table_starts_with_rows_of_length_one() -> None:
    torch.manual_seed(0)
    assert learned(400, 256).detach().square().sum(-1).mean() == pytest.approx(1, abs=0.02)
