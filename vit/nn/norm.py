"""The norms to choose from; each is called with a width."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

Norm = Callable[[int], nn.Module]  # a class or a partial, called with the width


class LayerNorm(nn.LayerNorm):
    """Mean and variance (arXiv 1607.06450), with the eps of the ViT papers instead of torch's 1e-5."""

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__(dim, eps=eps)


class RMSNorm(nn.RMSNorm):
    """Scale only (arXiv 1910.07467): no mean, no shift."""

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__(dim, eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        """(...,D) -> (...,D); in the input's precision, where autocast would mix two and leave the fast kernel."""
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


def same(x: Tensor) -> Tensor:
    """No norm, no scale: what stands where there might be one. Not a module, for a short step feels every call."""
    return x
