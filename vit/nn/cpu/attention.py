"""Scaled dot-product attention, in bfloat16 on a CPU by faster operations than torch's fused kernel."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from vit.nn import cpu
from vit.nn.cpu import ATTENTION, TRAINING_ATTENTION, is_transformed, product_dtype
from vit.nn.cpu.dropout import dropout
from vit.nn.cpu.onednn import computes_bfloat16
from vit.nn.masks import masked_softmax

OTHER_THAN_CUDNN = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
FEW_KEYS, MANY_KEYS = 32, 768  # between them attention in bfloat16 is fastest by products, below by float32
FEW_SCORES, FEW_VECTORS = 2**15, 2**12  # without gradients: N S and S times the number of heads in the batch
LARGE_SOFTMAX, PART_OF_SOFTMAX = 2**17, 2**20  # scores for oneDNN's softmax in bfloat16: the fewest, and at once


def scaled_dot_product_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, dropout: float = 0.0, causal: bool = False
) -> Tensor:
    """softmax(q k^T K^-1/2 + mask) v: q (...,N,K), k (...,S,K), v (...,S,V), mask (...,N,S) -> (...,N,V)

    In bfloat16 on a CPU torch's fused kernel is slow, above all its backward pass, in compiled code too. Attention to
    few keys is computed in float32 and cast back. So is attention in small batches, in which calls of matrix products
    take longer than the products. Otherwise two matrix products are faster, as long as the attention weights (...,N,S)
    are small (benchmarks/attention_on_cpu.py). On a GPU cuDNN's kernel is not used where its gradients may be NaN.
    """
    keys, training = k.shape[-2], torch.is_grad_enabled()
    if q.is_cuda and training and cudnn_may_fail(q, k, mask):
        with sdpa_kernel(OTHER_THAN_CUDNN):
            return F.scaled_dot_product_attention(q, k, v, mask, dropout, causal)
    enabled = (TRAINING_ATTENTION if training else ATTENTION) in cpu.ENABLED
    if torch.compiler.is_compiling():
        enabled = enabled and keys >= FEW_KEYS and not torch.compiler.is_exporting()
    if not enabled or keys > MANY_KEYS or not is_bfloat16_on_cpu(q):
        return F.scaled_dot_product_attention(q, k, v, mask, dropout, causal)
    if keys >= FEW_KEYS and (training or torch.compiler.is_compiling() or not is_small(q, keys)):
        return attention_by_products(q, k, v, mask, dropout, causal)
    mask = mask.float() if mask is not None and mask.is_floating_point() else mask
    with torch.autocast("cpu", enabled=False):
        return F.scaled_dot_product_attention(q.float(), k.float(), v.float(), mask, dropout, causal).bfloat16()


def is_small(q: Tensor, keys: int) -> bool:
    """Whether attention of q (...,N,K) over this many keys, without gradients, is faster in float32 than by products in
    bfloat16.
    """
    vectors = q.shape[:-2].numel() * keys
    return vectors <= FEW_VECTORS and vectors * q.shape[-2] <= FEW_SCORES


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
    if is_transformed() or not computes_bfloat16():
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
