"""Tokens times a matrix of weights, by whichever library is quick at it."""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LARGE = 2**21  # multiplications from which on oneDNN, which takes longer to begin, is the quicker one


class Linear(nn.Linear):
    """`nn.Linear`, which computes by `linear`."""

    def forward(self, x: Tensor) -> Tensor:
        """(...,D) -> (...,E)"""
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, packed: "Packed | None" = None) -> Tensor:
    """x (...,D), weight (E,D), bias (E,) -> x weight^T + bias (...,E)

    On a CPU in float32 torch leaves this to MKL, which knows of AMD's processors that they have AVX2 and not that they
    may have AVX-512: there oneDNN is twice as fast. Without gradients large products go to it
    (benchmarks/linear_on_cpu.py).

    Args:
        packed: remembers the weights for the next product with them.
    """
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or torch.jit.is_tracing():
        return F.linear(x, weight, bias)
    if x.numel() * weight.shape[0] < LARGE or not plain(x) or (onednn := by_onednn()) is None:
        return F.linear(x, weight, bias)
    if packed is not None and x.numel() > weight.shape[1]:  # a single row gains nothing
        weight = packed.take(weight, onednn)
    return onednn.product(x, weight, bias, "none", [], "")


def plain(x: Tensor) -> bool:
    """Whether its product is one of float32 on a CPU."""
    return x.device.type == "cpu" and x.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")


class OneDNN(NamedTuple):
    """The operators by which torch's compiler has oneDNN compute `F.linear`."""

    product: Callable[..., Tensor]
    pack: Callable[..., Tensor]


@cache
def by_onednn() -> OneDNN | None:
    """None where this torch has none, or others than are known here."""
    x = torch.ones(2, 3)
    try:
        with torch.inference_mode():
            found = OneDNN(torch.ops.mkldnn._linear_pointwise, torch.ops.mkldnn._reorder_linear_weight)
            products = [found.product(x, weight, x[:, 0], "none", [], "") for weight in (x, found.pack(x, 2))]
            return found if all(torch.equal(each, F.linear(x, x, x[:, 0])) for each in products) else None
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return None


class Packed:
    """A copy of one matrix of weights, laid out as oneDNN multiplies it.

    To lay it out takes half of a product's time where rows are few, and pays when the same weights are multiplied again
    and again, as for every token that is written. They must not change meanwhile.
    """

    def __init__(self) -> None:
        self.weight: Tensor | None = None

    def take(self, weight: Tensor, onednn: OneDNN) -> Tensor:
        """The copy, made of the `weight` that is given first."""
        if self.weight is None:
            self.weight = onednn.pack(weight, 2)
        return self.weight
