"""Linear layers that compute large products with oneDNN, and packed weights."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from vit.nn import cpu
from vit.nn.activations import Activation
from vit.nn.cpu import PACKED_PRODUCTS, PRODUCTS, TRAINING_PRODUCTS, instructions, is_transformed, product_dtype
from vit.nn.cpu.onednn import FUSED, OneDNN, computes_bfloat16, load_onednn
from vit.nn.norm import identity

PLAIN = (nn.Parameter, Tensor)  # other subclasses of Tensor are, for example, sharded or quantised
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks", "_compiled_call_impl")


class Large(NamedTuple):
    """The sizes from which on oneDNN computes a product x (M,D) -> (M,E) faster than torch. Smaller products are slower
    with oneDNN, because it has a higher overhead per call.

    Args:
        multiplications: minimum of M*D*E.
        weights: minimum of D*E.
        outputs_per_row: minimum of E/M. MKL, which torch calls, reorders the weight in every product, which takes much
            of the time if there are few rows and many outputs.
    """

    multiplications: int
    weights: int = 1
    outputs_per_row: int = 0

    def includes(self, x: Tensor, width: int) -> bool:
        """Whether the product x (...,D) -> (...,width) has at least these sizes."""
        weights = x.shape[-1] * width
        return (x.numel() * width >= self.multiplications and weights >= self.weights
                and weights >= x.numel() * self.outputs_per_row)


ANY_SIZE = Large(1)
LARGE = {  # with gradients or without
    (torch.float32, False): Large(2**21), (torch.float32, True): Large(2**23), (torch.bfloat16, False): Large(2**23)
}
LARGE_PACKED = {  # as LARGE, for packed weights without gradients
    "AVX512": {torch.float32: Large(2**20), torch.bfloat16: ANY_SIZE},
    "AVX2": {torch.float32: Large(2**20, weights=2**19, outputs_per_row=32)},
}.get(instructions(), {})


def apply_linear(layer: nn.Module, x: Tensor, activation: Activation = identity) -> Tensor:
    """`activation(layer(x))`, (...,D) -> (...,E); large products of a plain `nn.Linear` are computed by `linear`.

    The layers of a model stay `nn.Linear`, so that tools that select layers by type, such as quantisation, find them. A
    layer of another type, with hooks or with another `forward` is called normally.
    """
    packed = layer.packed if isinstance(layer, PackedLinear) else None
    if is_faster(x, getattr(layer, "out_features", 0), packed is not None) and is_plain_linear(layer):
        return linear(x, layer.weight, layer.bias, packed, activation)
    return activation(layer(x))


def is_plain_linear(layer: nn.Module) -> bool:
    """Whether a call of the layer does nothing but the product of `nn.Linear` with a plain weight tensor."""
    is_linear = type(layer).forward in (nn.Linear.forward, PackedLinear.forward) and type(layer.weight) in PLAIN
    return is_linear and not has_custom_call(layer)


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    packed: "Packed | None" = None,
    activation: Activation = identity,
) -> Tensor:
    """x (...,D), weight (E,D), bias (E,) -> activation(x weight^T + bias) (...,E)

    Large products are computed with oneDNN where it is faster than torch (benchmarks/linear_on_cpu.py):

    - float32: torch calls MKL, which uses AVX2 instead of AVX-512 on AMD processors, where oneDNN is up to twice as
      fast. On processors with AVX2 only, oneDNN is faster if the weight is packed and has many more outputs than x has
      rows.
    - bfloat16 without gradients: torch calls oneDNN itself, but copies the bias to the result first. Called directly,
      oneDNN adds the bias and applies the activation before it stores the result.

    Args:
        packed: caches the weight in autocast's dtype and in oneDNN's layout for later products; used only without
            gradients.
    """
    weight = weight if packed is None else packed.cast(weight)
    is_packed = packed is not None and x.numel() > weight.shape[1]  # a single row gains nothing
    if type(weight) not in PLAIN or not is_faster(x, weight.shape[0], is_packed):
        return activation(F.linear(x, weight, bias))
    if torch.is_autocast_enabled("cpu"):
        dtype = product_dtype(x)
        x, weight, bias = x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    elif weight.dtype != x.dtype or (bias is not None and bias.dtype != x.dtype):
        return activation(F.linear(x, weight, bias))  # raises torch's error
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return activation(linear_by_onednn(x, weight, bias))
    onednn = load_onednn()
    weight = packed.get(weight, onednn) if is_packed else weight
    if activation in FUSED:
        return onednn.product(x, weight, bias, *FUSED[activation])
    return activation(onednn.product(x, weight, bias, *FUSED[identity]))


def is_faster(x: Tensor, width: int, is_packed: bool = False) -> bool:
    """Whether oneDNN computes x (...,D) -> (...,width) faster than `F.linear` and may be used.

    Args:
        is_packed: whether products without gradients use the weight in oneDNN's layout.
    """
    compiling, training = torch.compiler.is_compiling(), torch.is_grad_enabled()
    is_packed = is_packed and not compiling and not training
    kind = PACKED_PRODUCTS if is_packed else PRODUCTS
    if training:
        kind = TRAINING_PRODUCTS
    if kind not in cpu.ENABLED or x.device.type != "cpu":
        return False
    if torch.jit.is_tracing() or torch.compiler.is_exporting():  # the program must run on other processors too
        return False
    dtype = product_dtype(x)
    large = LARGE_PACKED.get(dtype) if is_packed else LARGE.get((dtype, training))
    if large is None or not large.includes(x, width):
        return False
    if is_transformed():
        return False
    if compiling:
        return True
    return load_onednn() is not None and (dtype != torch.bfloat16 or computes_bfloat16())


@torch.library.custom_op("vit::linear", mutates_args=())
def linear_by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`linear` by oneDNN with gradients, (...,E); an operator that torch.compile calls without tracing into it."""
    onednn = load_onednn()
    return F.linear(x, weight, bias) if onednn is None else onednn.product(x, weight, bias, *FUSED[identity])


@linear_by_onednn.register_fake
def empty_output(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """An empty tensor with the shape and dtype of the result, for torch.compile."""
    return x.new_empty(*x.shape[:-1], weight.shape[0])


def save_inputs(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
    """Save the inputs that `linear_gradients` needs."""
    ctx.save_for_backward(*inputs[:2])


def linear_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """(...,E) -> gradients of x (...,D), weight (E,D) and bias (E,); None for inputs that need no gradient"""
    (x, weight), (for_x, for_weight, for_bias) = ctx.saved_tensors, ctx.needs_input_grad
    rows = grad.flatten(0, -2)
    return (
        linear_by_onednn(grad, weight.t(), None) if for_x else None,
        weight_gradient(x.flatten(0, -2), rows) if for_weight else None,
        rows.sum(0) if for_bias else None,
    )


def weight_gradient(x: Tensor, grad: Tensor) -> Tensor:
    """inputs (M,D), gradient of the outputs (M,E) -> gradient of the weight (E,D)"""
    if grad.shape[1] <= x.shape[1]:  # the result with fewer rows is computed faster
        return linear_by_onednn(grad.t(), x.t(), None)
    return linear_by_onednn(x.t(), grad.t(), None).t()


linear_by_onednn.register_autograd(linear_gradients, setup_context=save_inputs)


class Packed:
    """Copies of one weight matrix: in the dtype of autocast, and in oneDNN's layout.

    Casting a weight takes longer than a product with few rows, and packing it takes half as long. Both pay off if the
    weight is used many times, as in generation. It must not change between the calls.
    """

    def __init__(self) -> None:
        self.weight: Tensor | None = None
        self.lower: Tensor | None = None

    def cast(self, weight: Tensor) -> Tensor:
        """weight (E,D) -> its cast copy, if there are no gradients; the first call's weight is cast, and later calls
        return that copy.
        """
        device = weight.device.type
        if weight.dtype != torch.float32 or not torch.is_autocast_enabled(device) or torch.is_grad_enabled():
            return weight
        if self.lower is None:
            self.lower = weight.to(torch.get_autocast_dtype(device))
        return self.lower

    def get(self, weight: Tensor, onednn: OneDNN) -> Tensor:
        """weight (E,D) -> its packed copy; the first call's weight is packed, and later calls return that copy."""
        if self.weight is None:
            self.weight = onednn.pack(weight, 2)
        return self.weight


class PackedLinear(nn.Linear):
    """A linear layer of an inference copy of a model (`vit.nn.cpu.prepacked`); it shares the weight of the model."""

    packed: Packed

    def forward(self, x: Tensor) -> Tensor:
        """(...,D) -> (...,E)"""
        return linear(x, self.weight, self.bias, self.packed)


def has_custom_call(module: nn.Module) -> bool:
    """Whether a call of the module does anything other than the `forward` of its class."""
    cls = type(module)
    if cls.__call__ is not nn.Module.__call__ and cls.__call__ is not cls.forward:
        return True
    return "forward" in module.__dict__ or any(getattr(module, hooks) for hooks in HOOKS) or _has_any_global_hook()
