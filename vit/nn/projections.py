"""The heads of attention, and the projections from tokens to their queries, keys and values."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vit.nn.cpu import linear

# (dim, num_heads, widths) -> a module (B,N,D) -> (B,N,sum of H*width): for each of `widths`, such as those of queries,
# keys and values, the H heads of that width one after the other
Projection = Callable[[int, int, Sequence[int]], nn.Module]


@dataclass(frozen=True, slots=True)
class Heads:
    """Number and widths of the heads of attention.

    Args:
        num_heads: H.
        head_dim: K, width of the queries and keys of a head.
        value_dim: width of the values of a head.
    """

    num_heads: int
    head_dim: int
    value_dim: int

    @classmethod
    def split(cls, dim: int, num_heads: int) -> "Heads":
        """Heads that share the width of the model, D / H each (arXiv 1706.03762, section 3.2.2).

        Raises:
            ValueError: `dim` is not divisible by `num_heads`.
        """
        if dim % num_heads:
            raise ValueError(f"dim {dim} is not divisible by num_heads {num_heads}; change one, or pass Heads")
        return cls(num_heads, dim // num_heads, dim // num_heads)

    @classmethod
    def full(cls, dim: int, num_heads: int) -> "Heads":
        """Heads that are each as wide as the model: H times the parameters and the cost of `split`."""
        return cls(num_heads, dim, dim)


def stacked(dim: int, num_heads: int, widths: Sequence[int], bias: bool = True) -> nn.Linear:
    """The usual projection: one linear layer, faster than a layer for each of queries, keys and values."""
    parts = [num_heads * width for width in widths]
    layer = nn.Linear(dim, sum(parts), bias)
    layer.parts = parts  # initialized as one matrix each
    return layer


class KeylessBias(nn.Linear):
    """The qkv projection without a bias on the keys (BEiT, arXiv 2106.08254; EVA-02, arXiv 2303.11331).

    A key bias adds a constant to all scores of a query, to which softmax is invariant without rotary positions.
    """

    def __init__(self, dim: int, num_heads: int, widths: Sequence[int]) -> None:
        self.parts = [num_heads * width for width in widths]
        super().__init__(dim, sum(self.parts), bias=False)
        self.q_bias = nn.Parameter(torch.zeros(self.parts[0]))
        self.v_bias = nn.Parameter(torch.zeros(self.parts[2]))

    def forward(self, x: Tensor) -> Tensor:
        """(B,N,D) -> (B,N,sum of parts)"""
        bias = torch.cat([self.q_bias, self.q_bias.new_zeros(self.parts[1]), self.v_bias])
        return linear(x, self.weight, bias)


class Sliced(nn.Module):
    """Each head projects only its own slice of the input, D / H channels, by its own matrices.

    This is the projection of `stacked` with block-diagonal matrices: 1/H of its parameters and cost.

    Raises:
        ValueError: `dim` is not divisible by `num_heads`.
    """

    def __init__(self, dim: int, num_heads: int, widths: Sequence[int], bias: bool = True) -> None:
        super().__init__()
        width = Heads.split(dim, num_heads).head_dim
        self.widths = list(widths)
        self.weight = nn.Parameter(torch.empty(num_heads, sum(widths), width))
        self.bias = nn.Parameter(torch.zeros(num_heads, sum(widths))) if bias else None
        for matrix in (part for head in self.weight.detach() for part in head.split(self.widths)):
            nn.init.xavier_uniform_(matrix)

    def forward(self, x: Tensor) -> Tensor:
        """(B,N,D) -> (B,N,sum of H*width)"""
        heads = torch.einsum("bnhk,hwk->bnhw", x.unflatten(-1, (len(self.weight), -1)), self.weight.to(x.dtype))
        heads = heads if self.bias is None else heads + self.bias
        return torch.cat([part.flatten(2) for part in heads.split(self.widths, dim=-1)], dim=-1)


class Unprojected(nn.Module):
    """No projection: queries, keys and values are the tokens themselves, so that the scores are x_i . x_j.

    Raises:
        ValueError: the heads do not share the width of the tokens.
    """

    def __init__(self, dim: int, num_heads: int, widths: Sequence[int]) -> None:
        super().__init__()
        if any(width * num_heads != dim for width in widths):
            raise ValueError(f"without a projection heads are slices of the {dim} channels, so {num_heads} heads are "
                             f"{dim / num_heads:g} wide, not {' and '.join(map(str, sorted(set(widths))))}")
        self.copies = len(widths)

    def forward(self, x: Tensor) -> Tensor:
        """(B,N,D) -> (B,N,copies*D)"""
        return x.repeat(1, 1, self.copies)
