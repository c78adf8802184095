"""Where a token stands: tables that are added to tokens, tables that turn queries and keys, and resampling.

A table is a tensor (1,N,D); an `nn.Parameter` is learned, a plain tensor is fixed.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def learned(length: int, dim: int) -> nn.Parameter:
    """A table to learn, (1,length,D)."""
    return nn.Parameter(nn.init.normal_(torch.empty(1, length, dim), std=dim**-0.5))


def sincos_1d(length: int, dim: int, temperature: float = 10_000.0) -> Tensor:
    """Sines, then cosines, of falling frequency (arXiv 1706.03762): (1,length,D)."""
    if dim % 2:
        raise ValueError(f"dim {dim} is not divisible by 2, as sin-cos positions need; nearest: {dim - 1}, {dim + 1}")
    frequencies = temperature ** (-torch.arange(dim // 2, dtype=torch.float64) / (dim // 2))
    angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies  # (N,D/2)
    return torch.cat([angles.sin(), angles.cos()], dim=1).float()[None]


def sincos_2d(grid: tuple[int, int], dim: int, temperature: float = 10_000.0) -> Tensor:
    """Half of the channels tell the row, half the column (MoCo v3, arXiv 2104.02057; MAE): (1,rows*columns,D)."""
    if dim % 4:
        near = dim // 4 * 4
        raise ValueError(f"dim {dim} is not divisible by 4, as 2-D sin-cos positions need; nearest: {near}, {near + 4}")
    rows, columns = grid
    row = sincos_1d(rows, dim // 2, temperature)[0, :, None].expand(-1, columns, -1)
    column = sincos_1d(columns, dim // 2, temperature)[0, None].expand(rows, -1, -1)
    return torch.cat([row, column], dim=-1).reshape(1, rows * columns, dim)


def sincos_2d_simple(grid: tuple[int, int], dim: int, temperature: float = 10_000.0) -> Tensor:
    """The table of "Better plain ViT baselines" (arXiv 2205.01580) and vit-pytorch's SimpleViT: (1,rows*columns,D).

    The first half of the channels tells the column, and the lowest frequency is reached; `sincos_2d` stops before it.
    """
    if dim % 4 or dim < 8:
        near = max(dim // 4 * 4, 8)
        raise ValueError(f"dim {dim} is not divisible by 4 or below 8, as these positions need; nearest: {near}")
    frequencies = temperature ** (-torch.arange(dim // 4, dtype=torch.float64) / (dim // 4 - 1))
    angles = [torch.arange(n, dtype=torch.float64)[:, None] * frequencies for n in grid]  # (rows,D/4), (columns,D/4)
    row, column = (torch.cat([angle.sin(), angle.cos()], dim=1).float() for angle in angles)
    row, column = row[:, None].expand(-1, grid[1], -1), column[None].expand(grid[0], -1, -1)
    return torch.cat([column, row], dim=-1).reshape(1, -1, dim)


# (n, axis) -> where the n tokens along an axis of a grid stand, (n,)
Places = Callable[[int, int], Tensor]


def steps(n: int, axis: int, offset: float = 0.0) -> Tensor:
    """One after another: 0, 1, 2 ..."""
    return torch.arange(n, dtype=torch.float64) + offset


def stretched(n: int, axis: int, span: tuple[int, ...], offset: float = 0.0) -> Tensor:
    """As far apart as if `span[axis]` tokens stood there, whatever their number (EVA-02, arXiv 2303.11331)."""
    return steps(n, axis, offset) / n * span[axis]


def centred(n: int, axis: int) -> Tensor:
    """The middles of n equal parts of the way from -2 pi to 2 pi, whatever their number (DINOv3, arXiv 2508.10104)."""
    return 2 * math.pi * (2 * (torch.arange(n, dtype=torch.float64) + 0.5) / n - 1)


def spots(grid: tuple[int, ...], prefix: int, places: Places, columns_first: bool) -> Tensor:
    """Where every token stands, (prefix+N,axes); those of the prefix stand at the origin, which turns nothing."""
    axes = torch.meshgrid(*(places(n, axis) for axis, n in enumerate(grid)), indexing="ij")
    where = torch.stack(axes[::-1] if columns_first else axes, dim=-1).reshape(-1, len(grid))
    return torch.cat([where.new_zeros(prefix, len(grid)), where])


def pair_width(head_dim: int, axes: int) -> int:
    """Channels of a pair on every axis, which must fill a head exactly."""
    unit = 2 * axes
    if head_dim % unit:
        near = head_dim // unit * unit
        raise ValueError(f"head_dim {head_dim} is not divisible by {unit}, as rotary positions on {axes} axes need; "
                         f"nearest: {near or unit}, {near + unit}")
    return unit


class Halves:
    """Channel i of a head's K turns with channel i + K/2 (as in Llama and DINOv3)."""

    @staticmethod
    def join(first: Tensor, second: Tensor) -> Tensor:
        """What the first and the second channels of the pairs get, (...,K/2) each -> (...,K)"""
        return torch.cat([first, second], dim=-1)

    @staticmethod
    def swap(x: Tensor) -> Tensor:
        """(...,K) -> (...,K), where every channel stands in its partner's place"""
        return x.roll(x.shape[-1] // 2, dims=-1)


class Neighbours:
    """Channel 2i turns with channel 2i + 1: the pairs of the first paper (arXiv 2104.09864) and of EVA-02."""

    @staticmethod
    def join(first: Tensor, second: Tensor) -> Tensor:
        """What the first and the second channels of the pairs get, (...,K/2) each -> (...,K)"""
        return torch.stack([first, second], dim=-1).flatten(-2)

    @staticmethod
    def swap(x: Tensor) -> Tensor:
        """(...,K) -> (...,K), where every channel stands in its partner's place"""
        return x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)


Pairs = type[Halves] | type[Neighbours]


@dataclass(frozen=True, slots=True)
class Rotation:
    """Turns the pairs of channels of queries and keys, each by the angle of its token: `rotation(q)`.

    Args:
        cos, sin: of the angles, per channel (...,N,K); for the first channel of a pair the sine is negated.
        pairs: which channels turn together.
    """

    cos: Tensor
    sin: Tensor
    pairs: Pairs

    def __call__(self, x: Tensor) -> Tensor:
        """(B,H,N,K) -> (B,H,N,K)"""
        return torch.addcmul(x * self.cos.to(x.dtype), self.pairs.swap(x), self.sin.to(x.dtype))


def per_channel(angles: Tensor, pairs: Pairs) -> Tensor:
    """Angles of the pairs (...,K/2) -> their cosines and signed sines (2,...,K), as a `Rotation` has them."""
    cos, sin = angles.cos(), angles.sin()
    return torch.stack([pairs.join(cos, cos), pairs.join(-sin, sin)])


class Rotary(nn.Module):
    """Positions as rotations of queries and keys (arXiv 2104.09864), along each axis of a grid (arXiv 2403.13298).

    A dot product then depends on the offset between two tokens alone. A grid of one axis is a text. The first `prefix`
    tokens are not turned.

    Args:
        theta: longest wavelength over 2 pi, in tokens; 100 suits image grids, 10,000 texts.
        places: where the tokens stand along an axis.
        columns_first: the first half of the pairs tells the column instead of the row.
        pairs: which channels turn together.
    """

    def __init__(
        self,
        grid: tuple[int, ...],
        head_dim: int,
        prefix: int = 0,
        theta: float = 100.0,
        places: Places = steps,
        columns_first: bool = False,
        pairs: Pairs = Halves,
    ) -> None:
        super().__init__()
        self.pairs = pairs
        self.axes, unit = len(grid), pair_width(head_dim, len(grid))
        frequencies = theta ** (-torch.arange(head_dim // unit, dtype=torch.float64) / (head_dim // unit))
        where = spots(grid, prefix, places, columns_first)
        angles = (where[..., None] * frequencies).flatten(1)  # (N,K/2)
        self.register_buffer("table", per_channel(angles, pairs).float(), persistent=False)  # (2,N,K)

    def forward(self, places: Tensor | None = None) -> Rotation:
        """Of all tokens, or of those at places (N') or (B,N')."""
        if places is None:
            return self.rotation(self.table)
        table = self.table[:, places]
        return self.rotation(table if places.ndim == 1 else table.unsqueeze(2))  # (2,N',K) or (2,B,1,N',K)

    def rotation(self, table: Tensor) -> Rotation:
        """(2,...,N,K)"""
        return Rotation(*table, self.pairs)

    def part(self, start: int, length: int) -> Rotation:
        """Of `length` tokens from `start` on.

        Raises:
            ValueError: there are not so many positions, or they are a part of a grid, which has no order.
        """
        if self.axes > 1 and length != self.table.shape[1]:
            raise ValueError(f"{length} tokens are not the {self.table.shape[1]} of the whole grid; give their places")
        if start + length > self.table.shape[1]:
            raise ValueError(f"the sequence has {start + length} tokens, but max_len is {self.table.shape[1]}; "
                             "cut it or raise max_len")
        return self.rotation(self.table[:, start : start + length])


class MixedRotary(nn.Module):
    """Rotary positions of a grid whose directions and wavelengths each head of each block learns (RoPE-Mixed,
    arXiv 2403.13298): both axes turn every pair of channels, so that diagonals are seen as well.

    Args:
        theta: longest wavelength at the start over 2 pi, in tokens.
        prefix, places, columns_first, pairs: as in `Rotary`.
    """

    def __init__(
        self,
        grid: tuple[int, int],
        head_dim: int,
        depth: int,
        num_heads: int,
        prefix: int = 0,
        theta: float = 10.0,
        places: Places = steps,
        columns_first: bool = False,
        pairs: Pairs = Halves,
    ) -> None:
        super().__init__()
        self.pairs = pairs
        pair_width(head_dim, len(grid))
        speeds = theta ** (-torch.arange(head_dim // 4) / (head_dim // 4))
        first = torch.rand(depth, num_heads, 1) * 2 * math.pi
        directions = torch.cat([first, first + math.pi / 2], dim=-1).repeat_interleave(head_dim // 4, dim=-1)
        freqs = torch.stack([directions.cos(), directions.sin()]) * speeds.repeat(2)
        self.freqs = nn.Parameter(freqs)  # (2,depth,H,K/2)
        self.register_buffer("where", spots(grid, prefix, places, columns_first).float(), persistent=False)  # (N,2)

    def forward(self, places: Tensor | None = None) -> tuple[Rotation, ...]:
        """Per block: of all tokens (H,N,K), or of those at places (N') or (B,N'), (H,N',K) or (B,H,N',K)."""
        where = (self.where if places is None else self.where[places]).float()
        first, second = where.unsqueeze(-3)[..., None].unbind(-2)  # (...,1,N,1)
        angles = [first * a[:, None] + second * b[:, None] for a, b in self.freqs.float().unbind(1)]  # (...,H,N,K/2)
        return tuple(Rotation(*per_channel(each, self.pairs), self.pairs) for each in angles)

    def part(self, start: int, length: int) -> tuple[Rotation, ...]:
        """`forward` of all tokens.

        Raises:
            ValueError: others are asked for; a part of a grid has no order.
        """
        if start or length != len(self.where):
            raise ValueError(f"{length} tokens are not the {len(self.where)} of the whole grid; give their places")
        return self()


def resample(pos_embed: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """A learned table for another grid: (1,P+rows*columns,D) -> (1,P+rows'*columns',D), the P prefix rows untouched.

    Bicubic with antialiasing, in float32, as timm does it.
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
