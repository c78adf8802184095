"""Linear layers in 8-bit integers on a CPU (arXiv 1712.05877).

A weight has a scale per output channel, an input a scale and a zero point per layer. The ranges of the inputs are
measured once, on given images, so that the prediction for an image does not depend on the others of its batch; later
values outside them are clipped. oneDNN multiplies uint8 by int8 and sums in int32; bias and GELU are computed in
float32. The weights of the model stay as they are: a quantized layer has another `forward` as long as it is used.
"""

import warnings
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.nn import Block, Mlp
from vit.nn.cpu.linear import is_plain_linear
from vit.nn.norm import identity

LEVELS, WEIGHT_LEVELS = 255, 127  # uint8 of inputs, int8 of weights without -128
SMALLEST = 1e-12  # scale of a constant input or a channel of zeros
Ranges = dict[nn.Linear, tuple[float, float]]  # the smallest and the largest input of each layer


class Int8Linear:
    """A linear layer with quantized weights, and the quantization of its input.

    Args:
        low, high: range of the input; zero is always part of it.
    """

    def __init__(self, layer: nn.Linear, low: float, high: float) -> None:
        low, high = min(low, 0.0), max(high, 0.0)
        self.scale = max((high - low) / LEVELS, SMALLEST)
        self.zero_point = round(-low / self.scale)
        weight = layer.weight.detach().float()
        self.scales = (weight.abs().amax(1) / WEIGHT_LEVELS).clamp(min=SMALLEST)  # (E,)
        self.zero_points = torch.zeros(len(weight), dtype=torch.int32)
        levels = (weight / self.scales[:, None]).round().to(torch.int8)
        self.weight = torch.ops.onednn.qlinear_prepack(levels, None)
        self.bias = None if layer.bias is None else layer.bias.detach().float()

    def __getstate__(self) -> dict[str, Any]:
        """The attributes for pickle and deepcopy, which cannot copy a weight in oneDNN's layout."""
        return {**vars(self), "weight": self.weight.to_dense().t().contiguous()}  # (E,D) int8

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.weight = torch.ops.onednn.qlinear_prepack(state["weight"], None)

    def __call__(self, x: Tensor) -> Tensor:
        """(...,D) -> (...,E) in the dtype of autocast, else float32"""
        return self.product(self.quantize(x), output_dtype())

    def quantize(self, x: Tensor) -> Tensor:
        """(...,D) -> uint8 of the same shape"""
        x = torch.quantize_per_tensor(x.float().contiguous(), self.scale, self.zero_point, torch.quint8)
        return torch.empty(0, dtype=torch.uint8).set_(x.untyped_storage(), 0, x.shape, x.stride())  # int_repr copies

    def product(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """uint8 (...,D) -> (...,E) of `dtype`"""
        return self._call(x, 1.0, 0, dtype, "none", "")

    def gelu_for(self, x: Tensor, following: "Int8Linear") -> Tensor:
        """uint8 (...,D) -> GELU of the product, as the quantized input uint8 (...,E) of the following layer"""
        return self._call(x, following.scale, following.zero_point, torch.uint8, "gelu", "none")

    def _call(self, x: Tensor, scale: float, zero_point: int, dtype: torch.dtype, post: str, algorithm: str) -> Tensor:
        weights = (self.weight, self.scales, self.zero_points, self.bias)
        output = (scale, zero_point, dtype, post, [], algorithm)
        return torch.ops.onednn.qlinear_pointwise(x, self.scale, self.zero_point, *weights, *output)


class Int8Mlp:
    """An `Mlp` with GELU whose hidden units are uint8, never stored in another type."""

    def __init__(self, fc1: Int8Linear, fc2: Int8Linear) -> None:
        self.fc1, self.fc2 = fc1, fc2

    def __call__(self, x: Tensor) -> Tensor:
        """(B,N,D) -> (B,N,D)"""
        hidden = self.fc1.gelu_for(self.fc1.quantize(x), self.fc2)  # (B,N,hidden)
        return self.fc2.product(hidden, output_dtype())


class Int8Layers:
    """The quantized linear layers of a model's blocks, which `use` turns on and off."""

    def __init__(self, model: nn.Module, ranges: Ranges) -> None:
        layers = {layer: Int8Linear(layer, *each) for layer, each in ranges.items()}
        mlps = (mlp for mlp in gelu_mlps(model) if mlp.fc1 in layers and mlp.fc2 in layers)
        fused = {mlp: Int8Mlp(layers[mlp.fc1], layers[mlp.fc2]) for mlp in mlps}
        self.forwards: dict[nn.Module, Callable[[Tensor], Tensor]] = {**layers, **fused}

    def use(self, on: bool) -> None:
        for module, forward in self.forwards.items():
            if on:
                module.forward = forward
            else:
                module.__dict__.pop("forward", None)


def quantize_layers(model: nn.Module, compute: Callable[[], object]) -> Int8Layers:
    """The quantized layers of a model, with the ranges of their inputs during `compute()`."""
    ranges: Ranges = {}

    def extend(layer: nn.Linear, inputs: tuple[Tensor, ...]) -> None:
        low, high = (float(each) for each in inputs[0].aminmax())
        before = ranges.get(layer, (low, high))
        ranges[layer] = min(low, before[0]), max(high, before[1])

    handles = [layer.register_forward_pre_hook(extend) for layer in quantizable(model)]
    try:
        compute()
    finally:
        for handle in handles:
            handle.remove()
    return Int8Layers(model, ranges)


def quantizable(model: nn.Module) -> list[nn.Linear]:
    """The linear layers within the blocks of a model of this project; patch projection and head stay as they are."""
    blocks = (module for module in model.modules() if isinstance(module, Block))
    layers = (layer for block in blocks for layer in block.modules() if isinstance(layer, nn.Linear))
    return [layer for layer in dict.fromkeys(layers) if is_plain_linear(layer)]


def gelu_mlps(model: nn.Module) -> Iterator[Mlp]:
    """The MLPs with nothing between their layers but the exact GELU."""
    for module in model.modules():
        if type(module) is Mlp and module.activation is F.gelu and module.norm is identity:
            yield module


def output_dtype() -> torch.dtype:
    """bfloat16 under autocast to it, else float32."""
    lower = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16
    return torch.bfloat16 if lower else torch.float32


@cache
def has_int8() -> bool:
    """Whether this build of torch has oneDNN's quantized linear layer, and this processor adds its products exactly.

    Without VNNI instructions the sum of two products of large numbers saturates at 16 bits.
    """
    layer = nn.Linear(64, 16)
    nn.init.ones_(layer.weight)
    try:
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch announces the removal of its quantized tensors
            expected, x = 64.0 + layer.bias, torch.ones(4, 64)
            product = Int8Linear(layer, 0.0, 1.0)(x)
            return bool((product - expected).abs().max() < 0.5)
    except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError):
        return False
