"""Normalization layers; each is constructed with a width."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

Norm = Callable[[int], nn.Module]  # a class or a partial that takes the width


class LayerNorm(nn.LayerNorm):
    """Layer normalization (arXiv 1607.06450) with the eps of the ViT papers, 1e-6, instead of torch's 1e-5."""

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__(dim, eps=eps)


class RMSNorm(nn.RMSNorm):
    """Root mean square normalization (arXiv 1910.07467): a scale without mean and shift."""

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__(dim, eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        """(...,D) -> (...,D), in the input's dtype: autocast would mix two dtypes and miss the fused kernel."""
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


def identity(x: Tensor) -> Tensor:
    """any shape -> the same; a function instead of `nn.Identity`, because a module call costs time in short steps."""
    return x
