"""Feed-forward layers of a block."""

import torch.nn.functional as F
from torch import Tensor, nn

from vit.nn.activations import Activation
from vit.nn.cpu.linear import apply_linear
from vit.nn.drop import Dropout
from vit.nn.norm import identity


class Mlp(nn.Module):
    """Two linear layers with an activation between them (arXiv 1706.03762, section 3.3).

    Args:
        hidden: inner width, four times `dim` in most transformers.
        dropout: rate on the hidden units.
        norm: applied to the hidden units before the second layer (NormFormer, arXiv 2110.09456); None for none.
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
        self.drop = Dropout(dropout) if dropout else identity
        self.norm = norm or identity
        self.fc2 = nn.Linear(hidden, dim, bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B,N,D) -> (B,N,D)"""
        return apply_linear(self.fc2, self.norm(self.drop(apply_linear(self.fc1, x, self.activation))))


class SwiGLU(nn.Module):
    """An MLP whose hidden units are gated by a second projection (arXiv 2002.05202).

    Gate and value are packed in `fc1`, gate first, as in timm's SwiGLUPacked. An Mlp with 1.5 times the hidden units
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
        self.drop = Dropout(dropout) if dropout else identity
        self.norm = norm or identity
        self.fc2 = nn.Linear(hidden, dim, bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B,N,D) -> (B,N,D)"""
        gate, value = apply_linear(self.fc1, x).chunk(2, dim=-1)
        return apply_linear(self.fc2, self.norm(self.drop(self.activation(gate) * value)))
