"""Positions: tables that are added to tokens, rotary positions for queries and keys, and resampling of tables.

A table is a tensor (1,N,D); an `nn.Parameter` is learned, a plain tensor is fixed.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn


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
    paper; else the same channels with all sines before all cosines, as in tensor2tensor and Marian.

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
        columns_first: the first half of the channels encodes the column instead of the row, as in MAE's decoder.
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


# (n, axis) -> coordinates (n,) of the n tokens along an axis of a grid
Coordinates = Callable[[int, int], Tensor]


def steps(n: int, axis: int, offset: float = 0.0) -> Tensor:
    """Coordinates 0, 1, 2, ... plus an offset: (n,)."""
    return torch.arange(n, dtype=torch.float64) + offset


def stretched(n: int, axis: int, span: tuple[int, ...], offset: float = 0.0) -> Tensor:
    """Coordinates 0, 1, 2, ... scaled to a grid of `span`, for other resolutions (EVA-02, arXiv 2303.11331): (n,)."""
    return steps(n, axis, offset) / n * span[axis]


def centred(n: int, axis: int) -> Tensor:
    """The centres of n equal intervals of [-2 pi, 2 pi] (DINOv3, arXiv 2508.10104): (n,)."""
    return 2 * math.pi * (2 * (torch.arange(n, dtype=torch.float64) + 0.5) / n - 1)


def aligned(n: int, axis: int, grid: tuple[int, ...], coordinates: Coordinates) -> Tensor:
    """Coordinates of n tokens that divide the same extent as the tokens of a `grid`, for the image in another
    resolution: (n,). A token at the same point of the image has the same coordinate in both.
    """
    full = coordinates(grid[axis], axis)
    step = full[1] - full[0] if len(full) > 1 else 1.0
    return full[0] + step * ((torch.arange(n, dtype=torch.float64) + 0.5) * len(full) / n - 0.5)


def buffer_name(name: str, grid: tuple[int, int]) -> str:
    """The name of the buffer for a further grid, such as `table_6x6`"""
    return f"{name}_{grid[0]}x{grid[1]}"


def grid_coordinates(grid: tuple[int, ...], prefix: int, coordinates: Coordinates, columns_first: bool) -> Tensor:
    """Coordinates of all tokens, (prefix+N,axes); prefix tokens are at the origin, where the rotation is zero."""
    axes = torch.meshgrid(*(coordinates(n, axis) for axis, n in enumerate(grid)), indexing="ij")
    patches = torch.stack(axes[::-1] if columns_first else axes, dim=-1).reshape(-1, len(grid))
    return torch.cat([patches.new_zeros(prefix, len(grid)), patches])


def pair_width(head_dim: int, axes: int) -> int:
    """Number of channels that one frequency takes on all axes: a pair per axis.

    Raises:
        ValueError: `head_dim` is not a multiple of it.
    """
    unit = 2 * axes
    if head_dim % unit:
        near = head_dim // unit * unit
        raise ValueError(f"head_dim {head_dim} is not divisible by {unit}, as rotary positions on {axes} axes need; "
                         f"nearest: {near or unit}, {near + unit}")
    return unit


class RotateHalf:
    """Channel pairs (i, i + K/2) of a head, as in Llama and DINOv3."""

    @staticmethod
    def join(first: Tensor, second: Tensor) -> Tensor:
        """The first and the second channels of the pairs, (...,K/2) each -> (...,K)"""
        return torch.cat([first, second], dim=-1)

    @staticmethod
    def swap(x: Tensor) -> Tensor:
        """(...,K) -> (...,K) with the channels of each pair swapped"""
        return x.roll(x.shape[-1] // 2, dims=-1)


class Interleaved:
    """Channel pairs (2i, 2i + 1) of a head, as in the RoPE paper (arXiv 2104.09864) and EVA-02."""

    @staticmethod
    def join(first: Tensor, second: Tensor) -> Tensor:
        """The first and the second channels of the pairs, (...,K/2) each -> (...,K)"""
        return torch.stack([first, second], dim=-1).flatten(-2)

    @staticmethod
    def swap(x: Tensor) -> Tensor:
        """(...,K) -> (...,K) with the channels of each pair swapped"""
        return x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)


Pairs = type[RotateHalf] | type[Interleaved]


@dataclass(frozen=True, slots=True)
class Rotation:
    """Rotates the channel pairs of queries or keys by angles that depend on the position: `rotation(q)`.

    Args:
        cos, sin: of the angles, per channel (...,N,K); the sine is negated for the first channel of a pair.
        pairs: `RotateHalf` or `Interleaved`.
    """

    cos: Tensor
    sin: Tensor
    pairs: Pairs

    def __call__(self, x: Tensor) -> Tensor:
        """(B,H,N,K) -> (B,H,N,K)"""
        return torch.addcmul(x * self.cos.to(x.dtype), self.pairs.swap(x), self.sin.to(x.dtype))


def per_channel(angles: Tensor, pairs: Pairs) -> Tensor:
    """Angles of the pairs (...,K/2) -> cosines and signed sines (2,...,K) for `Rotation`"""
    cos, sin = angles.cos(), angles.sin()
    return torch.stack([pairs.join(cos, cos), pairs.join(-sin, sin)])


class Rotary(nn.Module):
    """Rotary positions (RoPE, arXiv 2104.09864), axial on grids (arXiv 2403.13298).

    Dot products of rotated queries and keys depend only on the offset of two tokens. A grid of one axis is a text. The
    first `prefix` tokens are not rotated.

    Args:
        theta: longest wavelength over 2 pi, in tokens; 100 suits image grids, 10,000 texts.
        coordinates: coordinates of the tokens along an axis.
        columns_first: the first half of the pairs encodes the column instead of the row.
        pairs: `RotateHalf` or `Interleaved`.

    Raises:
        ValueError: `head_dim` is not divisible by twice the number of axes.
    """

    def __init__(
        self,
        grid: tuple[int, ...],
        head_dim: int,
        prefix: int = 0,
        theta: float = 100.0,
        coordinates: Coordinates = steps,
        columns_first: bool = False,
        pairs: Pairs = RotateHalf,
    ) -> None:
        super().__init__()
        self.pairs, self.grid, self.prefix = pairs, grid, prefix
        self.theta, self.head_dim = theta, head_dim
        self.coordinates, self.columns_first = coordinates, columns_first
        self.axes, self.unit = len(grid), pair_width(head_dim, len(grid))
        self.register_buffer("table", self.build_table(grid, coordinates), persistent=False)  # (2,N,K)

    def build_table(self, grid: tuple[int, ...], coordinates: Coordinates) -> Tensor:
        """Cosines and sines of all tokens of a grid, (2,N,K)."""
        count = self.head_dim // self.unit
        frequencies = self.theta ** (-torch.arange(count, dtype=torch.float64) / count)
        tokens = grid_coordinates(grid, self.prefix, coordinates, self.columns_first)
        angles = (tokens[..., None] * frequencies).flatten(1)  # (N,K/2)
        return per_channel(angles, self.pairs).float()

    def add_grid(self, grid: tuple[int, int]) -> None:
        """Prepare the table of the same image in another grid, for `forward`."""
        table = self.build_table(grid, partial(aligned, grid=self.grid, coordinates=self.coordinates))
        self.register_buffer(buffer_name("table", grid), table.to(self.table.device), persistent=False)

    def forward(self, positions: Tensor | None = None, grid: tuple[int, int] | None = None) -> Rotation:
        """positions (N',) or (B,N'), indices into the table; all tokens by default -> their rotation

        Args:
            grid: one that `add_grid` has prepared; by default that of the constructor.
        """
        table = self.table if grid is None else self.get_buffer(buffer_name("table", grid))
        if positions is None:
            return self.rotation(table)
        table = table[:, positions]
        return self.rotation(table if positions.ndim == 1 else table.unsqueeze(2))  # (2,N',K) or (2,B,1,N',K)

    def rotation(self, table: Tensor) -> Rotation:
        """table (2,...,N,K) of cosines and sines -> rotation"""
        return Rotation(*table, self.pairs)

    def part(self, start: int, length: int) -> Rotation:
        """The rotation of `length` tokens from position `start` on.

        Raises:
            ValueError: there are fewer positions, or the tokens are part of a 2-D grid and need explicit positions.
        """
        if self.axes > 1 and length != self.table.shape[1]:
            raise ValueError(f"{length} tokens are not all {self.table.shape[1]} of the grid; pass their positions")
        if start + length > self.table.shape[1]:
            raise ValueError(f"the sequence has {start + length} tokens, but max_len is {self.table.shape[1]}; "
                             "truncate it or raise max_len")
        return self.rotation(self.table[:, start : start + length])


class MixedRotary(nn.Module):
    """RoPE-Mixed (arXiv 2403.13298): rotary positions with learned directions and wavelengths per head and block.

    Both axes rotate every channel pair, so that diagonal offsets are encoded as well.

    Args:
        theta: longest wavelength at initialization over 2 pi, in tokens.
        prefix, coordinates, columns_first, pairs: as in `Rotary`.

    Raises:
        ValueError: `head_dim` is not divisible by 4.
    """

    def __init__(
        self,
        grid: tuple[int, int],
        head_dim: int,
        depth: int,
        num_heads: int,
        prefix: int = 0,
        theta: float = 10.0,
        coordinates: Coordinates = steps,
        columns_first: bool = False,
        pairs: Pairs = RotateHalf,
    ) -> None:
        super().__init__()
        self.pairs, self.grid, self.prefix = pairs, grid, prefix
        self.coordinates, self.columns_first = coordinates, columns_first
        pair_width(head_dim, len(grid))
        speeds = theta ** (-torch.arange(head_dim // 4) / (head_dim // 4))
        first = torch.rand(depth, num_heads, 1) * 2 * math.pi
        directions = torch.cat([first, first + math.pi / 2], dim=-1).repeat_interleave(head_dim // 4, dim=-1)
        freqs = torch.stack([directions.cos(), directions.sin()]) * speeds.repeat(2)
        self.freqs = nn.Parameter(freqs)  # (2,depth,H,K/2)
        tokens = grid_coordinates(grid, prefix, coordinates, columns_first)
        self.register_buffer("tokens", tokens.float(), persistent=False)  # (N,2)

    def add_grid(self, grid: tuple[int, int]) -> None:
        """As `Rotary.add_grid`."""
        coordinates = partial(aligned, grid=self.grid, coordinates=self.coordinates)
        tokens = grid_coordinates(grid, self.prefix, coordinates, self.columns_first).float()
        self.register_buffer(buffer_name("tokens", grid), tokens.to(self.tokens.device), persistent=False)

    def forward(
        self, positions: Tensor | None = None, grid: tuple[int, int] | None = None
    ) -> tuple[Rotation, ...]:
        """positions (N',) or (B,N'), all by default -> a rotation per block of (H,N',K) or (B,H,N',K)

        Args:
            grid: as in `Rotary`.
        """
        tokens = self.tokens if grid is None else self.get_buffer(buffer_name("tokens", grid))
        tokens = (tokens if positions is None else tokens[positions]).float()
        first, second = tokens.unsqueeze(-3)[..., None].unbind(-2)  # (...,1,N,1)
        angles = [first * a[:, None] + second * b[:, None] for a, b in self.freqs.float().unbind(1)]  # (...,H,N,K/2)
        return tuple(Rotation(*per_channel(each, self.pairs), self.pairs) for each in angles)

    def part(self, start: int, length: int) -> tuple[Rotation, ...]:
        """`forward` of all tokens, with the signature of `Rotary.part`.

        Raises:
            ValueError: the tokens are part of the grid and need explicit positions.
        """
        if start or length != len(self.tokens):
            raise ValueError(f"{length} tokens are not all {len(self.tokens)} of the grid; pass their positions")
        return self()


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
