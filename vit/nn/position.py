"""Position tables, which are added to tokens, their resampling, and relative positions, which are added to scores.

A table is a tensor (1,N,D); an `nn.Parameter` is learned, a plain tensor is fixed. A relative position bias is a number
for each head that depends on the offset of two tokens. Rotary positions are in `vit.nn.rotary`.
"""

import math
from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.nn.masks import attention_mask, restrict
from vit.nn.rotary import Interleaved, RotateHalf


def learned(length: int, dim: int) -> nn.Parameter:
    """A learned position table, (1,length,D)."""
    return nn.Parameter(nn.init.normal_(torch.empty(1, length, dim), std=dim**-0.5))


def sincos(length: int, frequencies: Tensor, interleaved: bool = False) -> Tensor:
    """Sines and cosines of the positions 0, 1, 2, ... times the frequencies (F,): (length,2F).

    Args:
        interleaved: sine and cosine of each frequency in turn, instead of all sines before all cosines.
    """
    angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies  # (length,F)
    join = Interleaved.join if interleaved else RotateHalf.join
    return join(angles.sin(), angles.cos()).float()


def sincos_1d(length: int, dim: int, temperature: float = 10_000.0, interleaved: bool = False) -> Tensor:
    """Sinusoidal position table (arXiv 1706.03762, section 3.5): (1,length,D).

    PE(pos, 2i) = sin(pos / temperature^(2i/D)), PE(pos, 2i+1) = cos(pos / temperature^(2i/D)) if interleaved, as in the
    paper; otherwise the same channels with all sines before all cosines, as in transformers' Marian. tensor2tensor has
    that order, too, but exponents i / (D/2 - 1), so that the lowest frequency is 1/temperature.

    Raises:
        ValueError: `dim` is not divisible by 2.
    """
    if dim % 2:
        raise ValueError(f"dim {dim} is not divisible by 2, as sin-cos positions need; nearest: {dim - 1}, {dim + 1}")
    frequencies = temperature ** (-torch.arange(dim // 2, dtype=torch.float64) / (dim // 2))
    return sincos(length, frequencies, interleaved)[None]


def sincos_2d(
    grid: tuple[int, int], dim: int, temperature: float = 10_000.0, columns_first: bool = False,
    interleaved: bool = False,
) -> Tensor:
    """2-D sinusoidal table (MoCo v3, arXiv 2104.02057; MAE): (1,rows*columns,D).

    Args:
        columns_first: the first half of the channels encodes the column instead of the row, as in MAE. In MoCo v3 the
            half named `w` encodes the row.
        interleaved: as in `sincos_1d`.

    Raises:
        ValueError: `dim` is not divisible by 4.
    """
    if dim % 4:
        near = dim // 4 * 4
        raise ValueError(f"dim {dim} is not divisible by 4, as 2-D sin-cos positions need; nearest: {near}, {near + 4}")
    row, column = (sincos_1d(n, dim // 2, temperature, interleaved)[0] for n in grid)
    return join_axes(row, column, columns_first)


def sincos_2d_simple(
    grid: tuple[int, int], dim: int, temperature: float = 10_000.0, interleaved: bool = False
) -> Tensor:
    """The table of "Better plain ViT baselines" (arXiv 2205.01580) and vit-pytorch's SimpleViT: (1,rows*columns,D).

    Unlike in `sincos_2d`, the column comes before the row, and the lowest frequency 1/temperature is included.

    Raises:
        ValueError: `dim` is not divisible by 4 or below 8.
    """
    if dim % 4 or dim < 8:
        near = max(dim // 4 * 4, 8)
        raise ValueError(f"dim {dim} must be divisible by 4 and at least 8 for these positions; nearest: {near}")
    frequencies = temperature ** (-torch.arange(dim // 4, dtype=torch.float64) / (dim // 4 - 1))
    row, column = (sincos(n, frequencies, interleaved) for n in grid)
    return join_axes(row, column, columns_first=True)


def join_axes(row: Tensor, column: Tensor, columns_first: bool) -> Tensor:
    """Tables of the rows (R,D/2) and of the columns (C,D/2) -> the table of the grid, (1,R*C,D)"""
    row, column = row[:, None].expand(-1, len(column), -1), column[None].expand(len(row), -1, -1)
    return torch.cat([column, row] if columns_first else [row, column], dim=-1).flatten(0, 1)[None]


# values of the config key `positions` that stand for a fixed table of an image grid
SINCOS_TABLES = {"sincos": sincos_2d, "sincos_simple": sincos_2d_simple}


def fixed_table(positions: str, grid: tuple[int, int], dim: int, channels: str = "halves") -> Tensor:
    """The fixed table of an image grid, (1,rows*columns,D), by the values of the config keys `positions` and
    `sincos_channels`.
    """
    return SINCOS_TABLES[positions](grid, dim, interleaved=channels == "interleaved")


def resample(pos_embed: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """Resample a learned table to another grid: (1,P+rows*columns,D) -> (1,P+rows'*columns',D).

    Bicubic with antialiasing, in float32, as in timm; the P prefix rows are unchanged.

    Raises:
        ValueError: the table has fewer rows than the old grid has patches.
    """
    prefix = pos_embed.shape[1] - math.prod(old)
    if prefix < 0:
        raise ValueError(f"pos_embed has {pos_embed.shape[1]} rows, fewer than the {math.prod(old)} of a grid {old}")
    if old == new:
        return pos_embed
    first, patches = pos_embed[:, :prefix], pos_embed[:, prefix:]
    image = patches.float().unflatten(1, old).permute(0, 3, 1, 2)  # (1,D,rows,columns)
    image = F.interpolate(image, size=new, mode="bicubic", antialias=True)
    return torch.cat([first, image.permute(0, 2, 3, 1).flatten(1, 2).to(pos_embed.dtype)], dim=1)


class RelativePositions(nn.Module):
    """Continuous relative position bias (Swin v2, arXiv 2111.09883): an MLP maps the offset to one number per head.

    The MLP reads the signed logarithm of the offset in rows and columns, which extrapolates to larger grids. Prefix
    tokens get no bias. This is the form of timm's ViTs, `RelPosMlp` with mode "cr", as are the names of the parameters.
    The code of Swin v2 divides the offsets by the largest one and multiplies by 8 before the logarithm, has 512 hidden
    units and no last bias, and limits the result to 16 sigmoid(bias).

    Args:
        grid: (rows, columns) of the patches.
        prefix: number of tokens before the patches.
        hidden: inner width of the MLP.
    """

    def __init__(self, grid: tuple[int, int], num_heads: int, prefix: int = 0, hidden: int = 128) -> None:
        super().__init__()
        self.prefix = prefix
        layers = {"fc1": nn.Linear(2, hidden), "act": nn.ReLU(), "fc2": nn.Linear(hidden, num_heads)}
        self.mlp = nn.Sequential(OrderedDict(layers))
        rows, columns = grid
        axes = torch.meshgrid(torch.arange(1 - rows, rows), torch.arange(1 - columns, columns), indexing="ij")
        offsets = torch.stack(axes, dim=-1).flatten(0, 1).float()  # (offsets,2)
        coordinates = torch.cartesian_prod(torch.arange(rows), torch.arange(columns))  # (N,2)
        shifted = coordinates[:, None] - coordinates + torch.tensor([rows - 1, columns - 1])  # (N,N,2), all >= 0
        self.register_buffer("offsets", offsets.sign() * offsets.abs().log1p(), persistent=False)
        self.register_buffer("index", shifted[..., 0] * (2 * columns - 1) + shifted[..., 1], persistent=False)  # (N,N)

    def forward(self, mask: Tensor | None = None, N: int | None = None, S: int | None = None) -> Tensor:
        """mask as in `Attention` -> bias to add to the scores, (1,H,N,N), or (B,H,N,N) with -inf where masked

        Args:
            N, S: numbers of queries and keys, which are determined by the grid here.
        """
        bias = self.mlp(self.offsets)[self.index].permute(2, 0, 1)  # (H,patches,patches)
        bias = F.pad(bias, (self.prefix, 0, self.prefix, 0))[None]  # (1,H,N,N)
        return with_mask(bias, mask)


class TextRelativePositions(nn.Module):
    """Relative position bias of texts (T5, arXiv 1910.10683): a number per head for each range of offsets.

    Half of the ranges are single offsets, the others grow logarithmically up to `longest`, from which on all offsets
    share one. Unlike in T5 every block has its own table.

    Args:
        causal: keys lie before their query, as in a decoder, so that all ranges serve one direction.
        buckets: number of ranges.
    """

    def __init__(self, num_heads: int, causal: bool = False, buckets: int = 32, longest: int = 128) -> None:
        super().__init__()
        self.table = nn.Embedding(buckets, num_heads)
        self.causal, self.buckets, self.longest = causal, buckets, longest

    def forward(self, mask: Tensor | None, N: int, S: int) -> Tensor:
        """mask as in `Attention`, N queries, S keys -> bias to add to the scores, (1 or B,H,N,S), -inf where masked

        The last query is aligned with the last key. With fewer queries than keys and a mask, as for beams that share a
        cache, positions are counted among the keys that a query's mask allows.
        """
        if mask is not None and N < S:
            rank = (mask if mask.dtype == torch.bool else mask > -torch.inf).cumsum(-1)  # (B,N,S)
            offsets = rank - rank[..., -1:]
        else:
            device = self.table.weight.device
            offsets = torch.arange(S, device=device) - torch.arange(S - N, S, device=device)[:, None]
            offsets = offsets[None]  # (1,N,S)
        return with_mask(self.table(self.bucket(offsets)).permute(0, 3, 1, 2), mask)

    def bucket(self, offsets: Tensor) -> Tensor:
        """Offsets of keys from their queries, any shape -> indices of their ranges, the same shape"""
        count = self.buckets if self.causal else self.buckets // 2
        later = 0 if self.causal else (offsets > 0) * count
        distance = -offsets.clamp(max=0) if self.causal else offsets.abs()
        exact = count // 2
        growth = (distance.clamp(min=1) / exact).log() / math.log(self.longest / exact) * (count - exact)
        return later + torch.where(distance < exact, distance, (exact + growth.long()).clamp(max=count - 1))


def with_mask(bias: Tensor, mask: Tensor | None) -> Tensor:
    """bias (1 or B,H,N,S) and a mask as in `Attention` -> their combination, (1 or B,H,N,S)"""
    if mask is None:
        return bias
    mask = attention_mask(mask, False, bias, bias)[0]  # (B,H or 1,N or 1,S)
    return restrict(bias, mask) if mask.dtype == torch.bool else bias + mask
