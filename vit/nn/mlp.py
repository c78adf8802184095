"""The part of a block that works on each token alone."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.nn.drop import Dropout
from vit.nn.linear import apply_linear
from vit.nn.norm import same

Activation = Callable[[Tensor], Tensor]  # nn.GELU(), F.relu, ...


def quick_gelu(x: Tensor) -> Tensor:
    """A sigmoid in place of the normal distribution (arXiv 1606.08415, section 4), as OpenAI's CLIP has it."""
    return x * torch.sigmoid(1.702 * x)


class Mlp(nn.Module):
    """Widen, bend, narrow.

    Args:
        hidden: inner width, four times `dim` in most transformers.
        dropout: rate on the hidden units.
        norm: acts on the hidden units before they are narrowed (NormFormer, arXiv 2110.09456); None for none.
    """

    def __init__(
        self,
        dim: int,
        hidden: int,
        activation: Activation = F.gelu,
        dropout: float = 0.0,
        norm: nn.Module | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden, bias)
        self.activation = activation
        self.drop = Dropout(dropout)
        self.norm = norm or same
        self.fc2 = nn.Linear(hidden, dim, bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B,N,D) -> (B,N,D)"""
        return apply_linear(self.fc2, self.norm(self.drop(self.activation(apply_linear(self.fc1, x)))))


class SwiGLU(nn.Module):
    """An MLP whose hidden units are gated by a second projection (arXiv 2002.05202).

    Gate and value share one product, `fc1`, gate first, as in timm's SwiGLUPacked. With 2/3 of an Mlp's `hidden` it
    has as many parameters. The arguments are those of `Mlp`.
    """

    def __init__(
        self,
        dim: int,
        hidden: int,
        activation: Activation = F.silu,
        dropout: float = 0.0,
        norm: nn.Module | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, 2 * hidden, bias)
        self.activation = activation
        self.drop = Dropout(dropout)
        self.norm = norm or same
        self.fc2 = nn.Linear(hidden, dim, bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B,N,D) -> (B,N,D)"""
        gate, value = apply_linear(self.fc1, x).chunk(2, dim=-1)
        return apply_linear(self.fc2, self.norm(self.drop(self.activation(gate) * value)))
