"""Linear layers on the CPU: large products are computed by oneDNN where it is faster than torch's default."""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.nn.fast_call import has_custom_call

LARGE = 2**21  # multiplications from which on oneDNN is faster; its overhead per call is higher


def apply_linear(layer: nn.Module, x: Tensor) -> Tensor:
    """`layer(x)`, (...,D) -> (...,E), with large products of a plain `nn.Linear` computed as in `linear`.

    The layers of a model stay `nn.Linear`, so that quantisation and other tools that select layers by type find them. A
    layer with hooks, with another `forward` or of another type is called normally.
    """
    if torch.is_grad_enabled() or (onednn := faster_onednn(x, getattr(layer, "out_features", 0))) is None:
        return layer(x)
    return onednn.product(x, layer.weight, layer.bias, "none", [], "") if is_plain_linear(layer) else layer(x)


def is_plain_linear(layer: nn.Module) -> bool:
    """Whether a call of the layer does nothing but the product of `nn.Linear` with a plain weight tensor."""
    is_linear = type(layer).forward is nn.Linear.forward and type(layer.weight) in (nn.Parameter, Tensor)
    return is_linear and not has_custom_call(layer)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, packed: "Packed | None" = None) -> Tensor:
    """x (...,D), weight (E,D), bias (E,) -> x weight^T + bias (...,E)

    In float32 on a CPU torch calls MKL, which uses AVX2 instead of AVX-512 on AMD processors; there oneDNN is twice as
    fast. It computes large products without gradients (benchmarks/linear_on_cpu.py).

    Args:
        packed: caches the weight in oneDNN's layout for further products.
    """
    if (onednn := faster_onednn(x, weight.shape[0])) is None:
        return F.linear(x, weight, bias)
    if packed is not None and x.numel() > weight.shape[1]:  # a single row gains nothing
        weight = packed.get(weight, onednn)
    return onednn.product(x, weight, bias, "none", [], "")


def faster_onednn(x: Tensor, width: int) -> "OneDNN | None":
    """oneDNN's operators for x (...,D) -> (...,width); None where `F.linear` is as fast or must be used."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or torch.jit.is_tracing():
        return None
    return load_onednn() if x.numel() * width >= LARGE and is_float_on_cpu(x) else None


def is_float_on_cpu(x: Tensor) -> bool:
    """Whether a product with x is computed in float32 on a CPU."""
    return x.device.type == "cpu" and x.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")


class OneDNN(NamedTuple):
    """The operators that torch's compiler uses to compute `F.linear` with oneDNN."""

    product: Callable[..., Tensor]
    pack: Callable[..., Tensor]


@cache
def load_onednn() -> OneDNN | None:
    """oneDNN's operators, or None where this build of torch lacks them or their signature differs."""
    x = torch.ones(2, 3)
    try:
        with torch.inference_mode():
            found = OneDNN(torch.ops.mkldnn._linear_pointwise, torch.ops.mkldnn._reorder_linear_weight)
            products = [found.product(x, weight, x[:, 0], "none", [], "") for weight in (x, found.pack(x, 2))]
            return found if all(torch.equal(each, F.linear(x, x, x[:, 0])) for each in products) else None
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return None


class Packed:
    """A copy of one weight matrix in oneDNN's layout.

    Packing takes half of the time of a product with few rows, so it pays for weights that are used many times, as in
    generation. The weights must not change in between.
    """

    def __init__(self) -> None:
        self.weight: Tensor | None = None

    def get(self, weight: Tensor, onednn: OneDNN) -> Tensor:
        """weight (E,D) -> its packed copy; the first call's weight is packed, and later calls return that copy."""
        if self.weight is None:
            self.weight = onednn.pack(weight, 2)
        return self.weight
