"""Tokens times a matrix of weights, by whichever library is quick at it."""

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LARGE = 2**21  # multiplications from which on oneDNN, which takes longer to begin, is the quicker one


class Linear(nn.Linear):
    """`nn.Linear`, which computes by `linear`."""

    def forward(self, x: Tensor) -> Tensor:
        """(...,D) -> (...,E)"""
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (...,D), weight (E,D), bias (E,) -> x weight^T + bias (...,E)

    On a CPU in float32 torch leaves this to MKL, which knows of AMD's processors that they have AVX2 and not that they
    may have AVX-512: there oneDNN is twice as fast. Without gradients large products go to it
    (benchmarks/linear_on_cpu.py).
    """
    if not plain(x) or x.numel() * len(weight) < LARGE or (product := by_onednn()) is None:
        return F.linear(x, weight, bias)
    return product(x, weight, bias, "none", [], "")


def plain(x: Tensor) -> bool:
    """Whether its product is one of float32 on a CPU, of which nobody but the caller wants to know."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or torch.jit.is_tracing():
        return False
    return x.device.type == "cpu" and x.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")


@cache
def by_onednn() -> Callable[..., Tensor] | None:
    """The operator by which torch's compiler has oneDNN compute `F.linear`; None where this torch has none, or another
    than is known here.
    """
    x = torch.ones(2, 3)
    try:
        with torch.inference_mode():
            product = torch.ops.mkldnn._linear_pointwise
            return product if torch.equal(product(x, x, x[:, 0], "none", [], ""), F.linear(x, x, x[:, 0])) else None
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return None
