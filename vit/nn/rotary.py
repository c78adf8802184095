"""Rotary positions: rotations of the channel pairs of queries and keys."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

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


def grid_buffer(rotary: "Rotary | MixedRotary", name: str, grid: tuple[int, int]) -> Tensor:
    """The buffer of the whole image in a grid, (2,N,K) or (N,2); it is prepared if it is missing."""
    if grid == rotary.grid:
        return rotary.get_buffer(name)
    if not hasattr(rotary, buffer_name(name, grid)):
        rotary.add_grid(grid)
    return rotary.get_buffer(buffer_name(name, grid))


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


@dataclass(slots=True)  # torch.compile of torch 2.10 cannot create frozen ones
class Rotation:
    """Rotates the channel pairs of queries or keys by angles that depend on the position: `rotation(q)`.

    Args:
        cos, sin: cosine and sine of the angle of each channel (...,N,K); the sine is negated for the first channel of a
            pair.
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

    def packed(self, grids: Sequence[tuple[int, int]]) -> Rotation:
        """The (rows, columns) of whole images -> the rotation of their tokens, one image after another"""
        return self.rotation(torch.cat([grid_buffer(self, "table", grid) for grid in grids], dim=1))

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
        theta: longest wavelength at initialization over 2 pi, in tokens; 10 in the paper.
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
        return self.rotations(tokens if positions is None else tokens[positions])

    def packed(self, grids: Sequence[tuple[int, int]]) -> tuple[Rotation, ...]:
        """As `Rotary.packed`, a rotation per block."""
        return self.rotations(torch.cat([grid_buffer(self, "tokens", grid) for grid in grids]))

    def rotations(self, tokens: Tensor) -> tuple[Rotation, ...]:
        """Coordinates of tokens (N,2) or (B,N,2) -> a rotation per block of (H,N,K) or (B,H,N,K)"""
        tokens = tokens.float()
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
