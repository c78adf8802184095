"""Normalization layers; each is constructed with a width."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

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


class BatchNorm(nn.BatchNorm1d):
    """Batch normalization (arXiv 1502.03167) over the tokens of a batch: a mean and a variance per channel.

    In training they are those of all tokens of the local batch that are not masked, so that texts depend on each other;
    in evaluation the running averages. Norms that get no mask, within attention and MLP or in an embedding, include
    padding.
    """

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__(dim, eps=eps)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """x (...,D), mask (...), False for padding -> (...,D)"""
        if mask is None or not self.training or mask.shape != x.shape[:-1]:
            return super().forward(x.flatten(0, -2)).view_as(x)
        tokens = mask[..., None].float()  # (B,N,1)
        count, axes = tokens.sum().clamp(min=1), tuple(range(x.ndim - 1))
        mean = (x.float() * tokens).sum(axes) / count
        variance = ((x.float() - mean).square() * tokens).sum(axes) / count
        if self.momentum:  # 0 in `unchanged_statistics`
            self.update(mean.detach(), variance.detach() * count / (count - 1).clamp(min=1))  # unbiased, as torch's
        return ((x - mean) * (variance + self.eps).rsqrt() * self.weight + self.bias).to(x.dtype)

    def update(self, mean: Tensor, variance: Tensor) -> None:
        """Update the running averages with the mean (D,) and the variance (D,) of a batch."""
        self.num_batches_tracked.add_(1)
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(variance, self.momentum)


@contextmanager
def unchanged_statistics(model: nn.Module) -> Iterator[None]:
    """A context in which batch norms in training leave their running averages unchanged."""
    norms = [(part, part.momentum, part.num_batches_tracked) for part in model.modules()
             if isinstance(part, _BatchNorm)]
    for part, _, _ in norms:
        part.momentum, part.num_batches_tracked = 0.0, None  # no tensor is changed, nor saved or not saved for backward
    try:
        yield
    finally:
        for part, momentum, count in norms:
            part.momentum, part.num_batches_tracked = momentum, count


def masked_norm(norm: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    """x (B,N,D), mask (B,N), which only batch normalization depends on -> (B,N,D)"""
    return norm(x, mask) if isinstance(norm, BatchNorm) else norm(x)


def identity(x: Tensor) -> Tensor:
    """any shape -> the same; a function instead of `nn.Identity`, because a module call costs time in short steps."""
    return x
