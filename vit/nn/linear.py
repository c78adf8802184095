"""Tokens times a matrix of weights, by whichever library is quick at it."""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.nn.bare import calls_more

LARGE = 2**21  # multiplications from which on oneDNN, which takes longer to begin, is the quicker one


def apply_linear(layer: nn.Module, x: Tensor) -> Tensor:
    """`layer(x)`, (...,D) -> (...,E), where large products of a plain `nn.Linear` are computed as by `linear`.

    The layers of a model are `nn.Linear` itself, so that quantisation and other tools which select layers by their type
    find them. A layer with hooks, another `forward` or another type is called as it is.
    """
    if torch.is_grad_enabled() or (onednn := quicker(x, getattr(layer, "out_features", 0))) is None:
        return layer(x)
    return onednn.product(x, layer.weight, layer.bias, "none", [], "") if is_plain(layer) else layer(x)


def is_plain(layer: nn.Module) -> bool:
    """Whether a call of the layer is the product of `nn.Linear` with a plain matrix, and nothing else."""
    is_linear = type(layer).forward is nn.Linear.forward and type(layer.weight) in (nn.Parameter, Tensor)
    return is_linear and not calls_more(layer)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, packed: "Packed | None" = None) -> Tensor:
    """x (...,D), weight (E,D), bias (E,) -> x weight^T + bias (...,E)

    On a CPU in float32 torch leaves this to MKL, which knows of AMD's processors that they have AVX2 and not that they
    may have AVX-512: there oneDNN is twice as fast. Without gradients large products go to it
    (benchmarks/linear_on_cpu.py).

    Args:
        packed: remembers the weights for the next product with them.
    """
    if (onednn := quicker(x, weight.shape[0])) is None:
        return F.linear(x, weight, bias)
    if packed is not None and x.numel() > weight.shape[1]:  # a single row gains nothing
        weight = packed.take(weight, onednn)
    return onednn.product(x, weight, bias, "none", [], "")


def quicker(x: Tensor, width: int) -> "OneDNN | None":
    """The operators to compute x (...,D) -> (...,width) by; None where `F.linear` is as quick, or must be used."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or torch.jit.is_tracing():
        return None
    return by_onednn() if x.numel() * width >= LARGE and is_float_on_cpu(x) else None


def is_float_on_cpu(x: Tensor) -> bool:
    """Whether a product of x is computed in float32 on a CPU."""
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
