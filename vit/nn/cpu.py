"""Faster equivalents of torch's operations on some kinds of processors; `ENABLED` names those that are used.

The rest of `vit.nn` reads as if this file were absent. What `ENABLED` does not name is computed as torch does by
default. Speed and results are measured on x86-64 with AVX-512 (of AMD and of Intel) and with AVX2, so nothing is
enabled elsewhere. On GPUs one kernel of attention is avoided where its gradients may be NaN.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.module import _has_any_global_hook

from vit.nn.activations import Activation, gelu_tanh
from vit.nn.masks import masked_softmax
from vit.nn.norm import identity

DROPOUT, CALLS, PACKED_PRODUCTS = "dropout", "calls", "packed products"
PRODUCTS, TRAINING_PRODUCTS = "products", "products with gradients"
ATTENTION, TRAINING_ATTENTION = "attention", "attention with gradients"
ALL = frozenset({DROPOUT, CALLS, PACKED_PRODUCTS, PRODUCTS, TRAINING_PRODUCTS, ATTENTION, TRAINING_ATTENTION})
FASTER = {  # by the instructions of the processor
    "AVX512": ALL,
    "AVX512 of Intel": frozenset({DROPOUT, TRAINING_ATTENTION, CALLS}),  # MKL and the fused kernel use all of them
    "AVX2": frozenset({DROPOUT, PACKED_PRODUCTS, CALLS}),
}
OTHER_THAN_CUDNN = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
FEW_KEYS, MANY_KEYS = 32, 768  # between them attention in bfloat16 is fastest by products, below by float32
LARGE = {  # multiplications from which on oneDNN is faster, with gradients or without; its overhead per call is higher
    (torch.float32, False): 2**21, (torch.float32, True): 2**23, (torch.bfloat16, False): 2**23
}
LARGE_SOFTMAX, PART_OF_SOFTMAX = 2**17, 2**20  # scores for oneDNN's softmax in bfloat16: the fewest, and at once
FUSED = {  # activations that oneDNN computes with a product: the arguments of its operator
    identity: ("none", [], ""), F.gelu: ("gelu", [], "none"), gelu_tanh: ("gelu", [], "tanh"), F.relu: ("relu", [], ""),
}
PLAIN = (nn.Parameter, Tensor)  # no subclass, such as a sharded or quantised tensor
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks", "_compiled_call_impl")


def instructions() -> str:
    """A key of `FASTER`, or else torch's name of the instruction set."""
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{capability} of Intel" if capability == "AVX512" and is_intel() else capability


def is_intel(path: str = "/proc/cpuinfo") -> bool:
    """Whether this is a processor of Intel, according to Linux."""
    try:
        return "GenuineIntel" in Path(path).read_text(encoding="ascii", errors="replace")
    except OSError:
        return False


ENABLED = FASTER.get(instructions(), frozenset())
LARGE_PACKED = {  # as LARGE, for packed weights without gradients
    "AVX512": {torch.float32: 2**20, torch.bfloat16: 1}, "AVX2": {torch.float32: 2**22}
}.get(instructions(), {})


def dropout(x: Tensor, rate: float) -> Tensor:
    """any shape -> the same, with a share `rate` of the elements zero and the others divided by 1 - rate

    On the CPU, where torch draws element by element, one 64-bit draw decides on four elements with 16 bits each: a
    training step of a small translation model is 1.1 times as fast (benchmarks/cpu_step.py). The rate is exact to 1 in
    65,536.
    """
    draws_in_parallel = x.device.type != "cpu" or torch.compiler.is_compiling()
    if DROPOUT not in ENABLED or draws_in_parallel:
        return F.dropout(x, rate)
    draws = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    uniform = draws.view(torch.int16)[: x.numel()].view(x.shape)  # -32,768 ... 32,767, equally likely
    keep = torch.ge(uniform, round(rate * 2**16) - 2**15, out=x.new_empty(x.shape))  # 0 or 1, in one pass
    return x * keep.div_(1 - rate)  # the expected value is unchanged


def scaled_dot_product_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, dropout: float = 0.0, causal: bool = False
) -> Tensor:
    """softmax(q k^T K^-1/2 + mask) v: q (...,N,K), k (...,S,K), v (...,S,V), mask (...,N,S) -> (...,N,V)

    In bfloat16 on a CPU torch's fused kernel is slow, above all its backward pass, in compiled code too. Few keys are
    computed in float32 and cast back. More of them are faster by two matrix products, as long as the attention weights
    (...,N,S) are small (benchmarks/attention_on_cpu.py). On a GPU cuDNN's kernel is not used where its gradients may be
    NaN.
    """
    keys, training = k.shape[-2], torch.is_grad_enabled()
    if q.is_cuda and training and cudnn_may_fail(q, k, mask):
        with sdpa_kernel(OTHER_THAN_CUDNN):
            return F.scaled_dot_product_attention(q, k, v, mask, dropout, causal)
    enabled = (TRAINING_ATTENTION if training else ATTENTION) in ENABLED
    if torch.compiler.is_compiling():
        enabled = enabled and keys >= FEW_KEYS and not torch.compiler.is_exporting()
    if not enabled or keys > MANY_KEYS or not is_bfloat16_on_cpu(q):
        return F.scaled_dot_product_attention(q, k, v, mask, dropout, causal)
    if keys >= FEW_KEYS:
        return attention_by_products(q, k, v, mask, dropout, causal)
    mask = mask.float() if mask is not None and mask.is_floating_point() else mask
    with torch.autocast("cpu", enabled=False):
        return F.scaled_dot_product_attention(q.float(), k.float(), v.float(), mask, dropout, causal).bfloat16()


def cudnn_may_fail(q: Tensor, k: Tensor, mask: Tensor | None) -> bool:
    """Whether the gradients of cuDNN's kernel, torch's first choice on Hopper GPUs, may be NaN for finite inputs.

    That happens to queries with strongly negative scores: with one query, with S = 64 modulo 128 keys, or with a mask
    (https://github.com/pytorch/pytorch/issues/196678, https://github.com/NVIDIA/cudnn-frontend/issues/1072). Two
    queries, as in the last block of a model with a distillation token, have not been tried.
    """
    return mask is not None or q.shape[-2] <= 2 or k.shape[-2] % 128 == 64


def attention_by_products(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, rate: float, causal: bool
) -> Tensor:
    """`scaled_dot_product_attention` by two matrix products, with the weights (...,N,S) in memory."""
    leading, (N, K), S = q.shape[:-2], q.shape[-2:], k.shape[-2]
    q, k, v = (x.reshape(-1, *x.shape[-2:]) for x in (q, k, v))  # (heads,N,K), (heads,S,K), (heads,S,V)
    unused = q.new_empty(()).expand(len(q), N, S)  # not read, since beta is 0
    scores = torch.baddbmm(unused, q, k.transpose(1, 2), beta=0, alpha=K**-0.5)  # the scale costs nothing in a product
    weights = masked_softmax(scores.unflatten(0, leading), mask, causal, softmax).flatten(0, -3)
    weights = dropout(weights, rate) if rate else weights
    return (weights @ v).unflatten(0, leading)


def softmax(scores: Tensor) -> Tensor:
    """(...,S) -> (...,S) in bfloat16, over the keys; without gradients the scores may be overwritten

    torch computes the last S modulo 32 scores of a row one by one. Many scores are given to oneDNN in parts, which is
    1.4 times as fast for 197 keys, copies included (benchmarks/softmax_on_cpu.py).
    """
    keys, eager = scores.shape[-1], not (torch.compiler.is_compiling() or torch.jit.is_tracing())
    if scores.numel() < LARGE_SOFTMAX or keys % 32 < 2 or not eager:
        return scores.softmax(-1)
    if torch._C._are_functorch_transforms_active() or load_onednn() is None:
        return scores.softmax(-1)
    return SoftmaxByOneDNN.apply(scores) if torch.is_grad_enabled() else softmax_by_onednn(scores, scores)


def softmax_by_onednn(scores: Tensor, out: Tensor) -> Tensor:
    """(...,S) -> out (...,S), which may be the scores"""
    rows, keys = PART_OF_SOFTMAX // scores.shape[-1], scores.shape[-1]
    for part, result in zip(scores.view(-1, keys).split(rows), out.view(-1, keys).split(rows), strict=True):
        result.copy_(part.to_mkldnn().softmax(-1).to_dense())
    return out


class SoftmaxByOneDNN(torch.autograd.Function):
    """`softmax_by_onednn` with torch's gradient of the softmax."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        """(...,S) -> (...,S)"""
        weights = softmax_by_onednn(scores, torch.empty_like(scores))
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """(...,S) -> (...,S)"""
        (weights,) = ctx.saved_tensors
        return torch._softmax_backward_data(grad, weights, -1, weights.dtype)


def is_bfloat16_on_cpu(x: Tensor) -> bool:
    """Whether a product with x is computed in bfloat16 on a CPU."""
    return x.device.type == "cpu" and product_dtype(x) == torch.bfloat16


def product_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which a CPU computes a product with x."""
    return torch.get_autocast_dtype("cpu") if x.dtype == torch.float32 and torch.is_autocast_enabled("cpu") else x.dtype


def apply_linear(layer: nn.Module, x: Tensor, activation: Activation = identity) -> Tensor:
    """`activation(layer(x))`, (...,D) -> (...,E), with large products of a plain `nn.Linear` computed as in `linear`.

    The layers of a model stay `nn.Linear`, so that quantisation and other tools that select layers by type find them. A
    layer with hooks, with another `forward` or of another type is called normally.
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

    In float32 on a CPU torch calls MKL, which uses AVX2 instead of AVX-512 on AMD processors; there oneDNN is up to
    twice as fast. With AVX2 alone it is faster where the weight is packed. In bfloat16 torch calls oneDNN itself, but
    copies the bias to the result first, which takes time without gradients only. There oneDNN also applies the
    activation before it stores the result. Large products are computed in these ways (benchmarks/linear_on_cpu.py).

    Args:
        packed: caches the weight in autocast's dtype and in oneDNN's layout for further products; without gradients
            only.
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
        is_packed: whether the weight is in oneDNN's layout if there are no gradients.
    """
    compiling, training = torch.compiler.is_compiling(), torch.is_grad_enabled()
    is_packed = is_packed and not compiling and not training
    kind = TRAINING_PRODUCTS if training else PACKED_PRODUCTS if is_packed else PRODUCTS
    if kind not in ENABLED or x.device.type != "cpu":
        return False
    if torch.jit.is_tracing() or torch.compiler.is_exporting():  # the program must run on other processors too
        return False
    dtype = product_dtype(x)
    least = LARGE_PACKED.get(dtype) if is_packed else LARGE.get((dtype, training))
    if least is None or x.numel() * width < least:
        return False
    if compiling:
        return True
    if training and torch._C._are_functorch_transforms_active():
        return False  # torch.func does not transform the gradients of an operator that is defined in Python
    return load_onednn() is not None


@torch.library.custom_op("vit::linear", mutates_args=())
def linear_by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`linear` by oneDNN with gradients, (...,E); torch's compiler calls it as it is."""
    onednn = load_onednn()
    return F.linear(x, weight, bias) if onednn is None else onednn.product(x, weight, bias, *FUSED[identity])


@linear_by_onednn.register_fake
def empty_output(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The shape of the result, for torch's compiler."""
    return x.new_empty(*x.shape[:-1], weight.shape[0])


def save_inputs(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
    """What `linear_gradients` needs."""
    ctx.save_for_backward(*inputs[:2])


def linear_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """(...,E) -> gradients of x (...,D), weight (E,D) and bias (E,), as far as they are needed"""
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
            operators = OneDNN(torch.ops.mkldnn._linear_pointwise, torch.ops.mkldnn._reorder_linear_weight)
            products = [operators.product(x, weight, x[:, 0], *FUSED[identity]) for weight in (x, operators.pack(x, 2))]
            return operators if all(torch.equal(each, torch.full((2, 2), 4.0)) for each in products) else None
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return None


class Packed:
    """Copies of one weight matrix: in the dtype of autocast, and in oneDNN's layout.

    Casting takes longer than a product with few rows, and packing half as long, so both pay for weights that are used
    many times, as in generation. The weights must not change in between.
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
    """A linear layer of a copy for inference (`vit.nn.prepacked`), which shares the weight of the model."""

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
