"""Scaled dot-product attention for every use in the house: a token looks at its own sequence or at a memory."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.nn.cache import KeyValues
from vit.nn.linear import apply_linear, linear
from vit.nn.norm import Norm, same
from vit.nn.position import Rotation

SHORT = 256  # tokens


def stacked(dim: int, parts: list[int], bias: bool) -> nn.Linear:
    """Several projections of the same tokens as one product; `parts` are their widths."""
    layer = nn.Linear(dim, sum(parts), bias)
    layer.parts = parts
    return layer


class KeylessBias(nn.Linear):
    """Queries, keys and values as one product, with no bias on the keys (BEiT, arXiv 2106.08254; EVA-02, 2303.11331).

    A key's bias adds the same to all of a query's scores, which the softmax does not feel, unless it is turned.
    """

    def __init__(self, dim: int, parts: list[int]) -> None:
        super().__init__(dim, sum(parts), bias=False)
        self.parts = parts
        self.q_bias = nn.Parameter(torch.zeros(parts[0]))
        self.v_bias = nn.Parameter(torch.zeros(parts[2]))

    def forward(self, x: Tensor) -> Tensor:
        """(B,N,D) -> (B,N,sum of parts)"""
        bias = torch.cat([self.q_bias, self.q_bias.new_zeros(self.parts[1]), self.v_bias])
        return linear(x, self.weight, bias)


class Attention(nn.Module):
    """Multi-head attention (arXiv 1706.03762), over the tokens themselves or, with `cross=True`, over a memory.

    The fused kernel computes the result always; `attention_maps` records the weights beside it. Parameters are named
    as in timm: `qkv, proj` for self-attention, `q, kv, proj` for cross-attention, `q_norm, k_norm` with QK-norm and
    `norm`. Another kind of attention is a subclass with its own `attend`, and `weights` where those differ.

    Args:
        head_dim: width of a head; `dim / num_heads` by default, but any other will do.
        value_dim: width of a head's values; `head_dim` by default.
        key_bias: False leaves the bias of self-attention's keys out, while queries and values have one.
        qk_norm: norm class for queries and keys per head, against growing logits (arXiv 2302.05442); None for none.
        norm: norm class for the joined heads before the last projection (arXiv 2210.06423); None for none.
        proj_bias: the last projection has a bias.
        relative: what is added to the scores of self-attention, such as `RelativePositions`.
        dropout: rate on the attention weights.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        head_dim: int | None = None,
        value_dim: int | None = None,
        cross: bool = False,
        qkv_bias: bool = True,
        key_bias: bool = True,
        qk_norm: Norm | None = None,
        norm: Norm | None = None,
        proj_bias: bool = True,
        relative: nn.Module | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if head_dim is None and dim % num_heads:
            raise ValueError(f"dim {dim} is not divisible by num_heads {num_heads}; change one or give head_dim")
        self.num_heads, self.head_dim = num_heads, head_dim or dim // num_heads
        self.value_dim = value_dim or self.head_dim
        keys, values = num_heads * self.head_dim, num_heads * self.value_dim
        if cross:
            self.q = nn.Linear(dim, keys, bias=qkv_bias)
            self.kv = stacked(dim, [keys, values], bias=qkv_bias)
        elif qkv_bias and not key_bias:
            self.qkv = KeylessBias(dim, [keys, keys, values])
        else:
            self.qkv = stacked(dim, [keys, keys, values], bias=qkv_bias)  # one product instead of three
        self.parts = [keys, values] if cross else [keys, keys, values]
        self.q_norm = qk_norm(self.head_dim) if qk_norm else same
        self.k_norm = qk_norm(self.head_dim) if qk_norm else same
        self.norm = norm(values) if norm else same
        self.proj = nn.Linear(values, dim, bias=proj_bias)
        self.cross, self.dropout, self.relative = cross, dropout, relative
        self.recorder: list[Tensor] | None = None  # set by attention_maps

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        mask: Tensor | None = None,
        causal: bool = False,
        rotary: Rotation | None = None,
        kept: KeyValues | None = None,
    ) -> Tensor:
        """x (B,N,D), memory (B,S,D) -> (B,N,D); S is N in self-attention.

        Args:
            mask: True = may be attended: keys (B,S), pairs (B,N,S) or pairs per head (B,H,N,S). Of pairs it may also be
                numbers that are added to the scores, -inf where nothing may be attended.
            causal: a token sees itself and what stands before it; the last query is aligned with the last key.
            rotary: turns queries and keys by their tokens' positions; from `vit.nn.position.Rotary`.
            kept: keys and values of earlier calls: of the whole memory, or of the tokens before x, which x joins.
        """
        if self.cross:
            q = self.queries(x)
            k, v = self.remember(memory) if kept is None else kept.all()
        else:
            q, k, v = self.project(x, rotary)  # (B,H,N,K), (B,H,N,K), (B,H,N,K)
            if kept is not None:
                k, v = kept.append(k, v)  # (B,H,S,K)
            if self.relative is not None:
                mask = self.relative(mask).to(q.dtype)  # (1 or B,H,N,N)
        heads = self.attend(q, k, v, mask, causal)
        if self.recorder is not None:
            self.recorder.append(self.weights(q.detach(), k.detach(), mask, causal))
        return apply_linear(self.proj, self.norm(heads.transpose(1, 2).flatten(2)))  # (B,H,N,K) -> (B,N,H*K) -> (B,N,D)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        """q (B,H,N,K), k and v (B,H,S,K), mask and causal as in `forward` -> (B,H,N,K), as wide as the values"""
        return fused(q, k, v, *pairs(mask, causal, q, k), self.dropout if self.training else 0.0)

    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        """What `attend` multiplies the values with, (B,H,N,S) in float32: for people, not for the result."""
        scores = q.float() @ k.float().transpose(-2, -1) * q.shape[-1] ** -0.5
        return softmax(scores, *pairs(mask, causal, q, k))

    def project(self, x: Tensor, rotary: Rotation | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """(B,N,D) -> queries, keys and values (B,H,N,K) of self-attention, normalised and turned."""
        q, k, v = self.split(apply_linear(self.qkv, x), self.parts)
        q, k = self.q_norm(q), self.k_norm(k)
        return (q, k, v) if rotary is None else (rotary(q), rotary(k), v)

    def queries(self, x: Tensor) -> Tensor:
        """(B,N,D) -> queries (B,H,N,K) of cross-attention"""
        return self.q_norm(apply_linear(self.q, x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2))

    def remember(self, memory: Tensor | None) -> tuple[Tensor, Tensor]:
        """(B,S,D) -> keys and values (B,H,S,K) of cross-attention, which depend on the memory alone."""
        if memory is None:
            raise ValueError("cross-attention needs a memory (B,S,D) to look at, but got none")
        k, v = self.split(apply_linear(self.kv, memory), self.parts)
        return self.k_norm(k), v

    def split(self, x: Tensor, parts: list[int]) -> Sequence[Tensor]:
        """(B,N,sum of parts) -> per part (B,H,N,K)"""
        if self.value_dim == self.head_dim:  # fewer views, which a short step feels
            return x.unflatten(-1, (len(parts), self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        return [part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in x.split(parts, dim=-1)]


def fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, dropout: float) -> Tensor:
    """softmax(q k^T K^-1/2) v by torch's kernel: q (...,N,K), k (...,S,K), v (...,S,V) -> (...,N,V); mask as `pairs`
    gives it.

    In training on a CPU short sequences leave bfloat16 for float32, where the kernel's way back is up to five times as
    fast (benchmarks/attention_on_cpu.py); what comes out is bfloat16 again.
    """
    if torch.is_grad_enabled() and q.device.type == "cpu" and k.shape[-2] <= SHORT and computes_in_bfloat16(q):
        mask = mask.float() if mask is not None and mask.is_floating_point() else mask
        with torch.autocast("cpu", enabled=False):
            heads = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), mask, dropout, causal)
        return heads.bfloat16()
    return F.scaled_dot_product_attention(q, k, v, mask, dropout, causal)


def computes_in_bfloat16(x: Tensor) -> bool:
    """Whether a product of x on a CPU would be one of bfloat16."""
    if x.dtype == torch.float32 and torch.is_autocast_enabled("cpu"):
        return torch.get_autocast_dtype("cpu") == torch.bfloat16
    return x.dtype == torch.bfloat16


def pairs(mask: Tensor | None, causal: bool, q: Tensor, k: Tensor) -> tuple[Tensor | None, bool]:
    """The mask as the kernel wants it, (B,H,N,S), and whether the kernel shall be causal by itself.

    The kernel takes a mask or a flag, and its flag aligns the first query with the first key: with a mask, or with
    fewer queries than keys, causality becomes part of the mask.
    """
    if mask is not None:
        if mask.dtype != torch.bool and (mask.ndim < 3 or not mask.is_floating_point()):
            raise TypeError(f"a mask of shape {tuple(mask.shape)} has dtype {mask.dtype}, but must be bool: True = may "
                            "be attended (of pairs, numbers to add to the scores as well)")
        if not 2 <= mask.ndim <= 4:
            raise ValueError(f"mask has shape {tuple(mask.shape)}, but must be (B,S), (B,N,S) or (B,H,N,S)")
        if mask.ndim == 2:
            mask = mask[:, None, None, :]  # (B,S) -> (B,1,1,S)
        elif mask.ndim == 3:
            mask = mask[:, None]  # (B,N,S) -> (B,1,N,S)
    N, S = q.shape[-2], k.shape[-2]
    if not causal or (mask is None and N == S):
        return mask, causal
    past = torch.ones(N, S, dtype=torch.bool, device=q.device).tril(S - N)
    return past if mask is None else within(mask, past), False


def within(mask: Tensor, allowed: Tensor) -> Tensor:
    """A mask of either kind, and nothing but what is allowed as well."""
    return mask & allowed if mask.dtype == torch.bool else mask.masked_fill(~allowed, -torch.inf)


def softmax(scores: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """Scores (B,H,N,S) as weights; mask and causal as `pairs` gives them."""
    if causal:
        mask = torch.ones_like(scores, dtype=torch.bool).tril()
    if mask is not None:
        scores, mask = (scores, mask) if mask.dtype == torch.bool else (scores + mask, mask > -torch.inf)
        scores = scores.masked_fill(~mask, -torch.inf)  # whose gradient is 0 here, where that of the softmax may be NaN
    return scores.softmax(-1).nan_to_num()  # a query that may attend to nothing


@contextmanager
def attention_maps(model: nn.Module) -> Iterator[dict[str, list[Tensor]]]:
    """Record the attention weights of every forward inside: `{"encoder.blocks.0.attn": [(B,H,N,S)]}`, one per call.

    The result of the forward stays the same to the last bit.
    """
    layers = {name: module for name, module in model.named_modules() if isinstance(module, Attention)}
    for module in layers.values():
        module.recorder = []
    try:
        yield {name: module.recorder for name, module in layers.items()}
    finally:
        for module in layers.values():
            module.recorder = None
