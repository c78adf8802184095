"""Multi-head scaled dot-product attention, as self-attention or cross-attention."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from vit.nn.cache import KeyValues
from vit.nn.cpu import apply_linear, linear, scaled_dot_product_attention
from vit.nn.masks import attention_mask, masked_softmax
from vit.nn.norm import Norm, identity
from vit.nn.position import Rotation


def stacked(dim: int, parts: list[int], bias: bool) -> nn.Linear:
    """Several linear layers of the widths `parts` as one layer."""
    layer = nn.Linear(dim, sum(parts), bias)
    layer.parts = parts
    return layer


class KeylessBias(nn.Linear):
    """The qkv projection without a bias on the keys (BEiT, arXiv 2106.08254; EVA-02, arXiv 2303.11331).

    A key bias adds a constant to all scores of a query, to which softmax is invariant without rotary positions.
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
    """Multi-head attention (arXiv 1706.03762): self-attention, or with `cross=True` cross-attention to a memory.

    The fused kernel always computes the result; `attention_maps` records the weights in addition. Parameters are named
    as in timm: `qkv, proj` for self-attention, `q, kv, proj` for cross-attention, `q_norm, k_norm` with QK-norm and
    `norm`. Other kinds of attention are subclasses that override `attend` and `weights`.

    Args:
        head_dim: width of a head; `dim / num_heads` by default.
        value_dim: width of a head's values; `head_dim` by default.
        key_bias: False removes the bias of the keys in self-attention; queries and values keep theirs.
        qk_norm: norm of queries and keys per head, against growing logits (arXiv 2302.05442); None for none.
        norm: norm of the concatenated heads before the output projection (arXiv 2210.06423); None for none.
        proj_bias: the output projection has a bias.
        relative: module whose output is added to the scores of self-attention, such as `RelativePositions`.
        dropout: rate on the attention weights.

    Raises:
        ValueError: `dim` is not divisible by `num_heads` and there is no `head_dim`.
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
        self.q_norm = qk_norm(self.head_dim) if qk_norm else identity
        self.k_norm = qk_norm(self.head_dim) if qk_norm else identity
        self.norm = norm(values) if norm else identity
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
        cache: KeyValues | None = None,
    ) -> Tensor:
        """x (B,N,D), memory (B,S,D) -> (B,N,D); S is N in self-attention.

        Args:
            mask: bool, True = may be attended, of shape (B,S), (B,N,S) or (B,H,N,S); in the last two shapes also
                floats that are added to the scores, -inf where masked.
            causal: a token attends to itself and the tokens before it; the last query is aligned with the last key.
            rotary: rotates queries and keys by position; from `vit.nn.position.Rotary`.
            cache: keys and values of the memory, or of the tokens before x, to which those of x are appended.

        Raises:
            ValueError: cross-attention without a memory, or a mask of another number of dimensions.
            TypeError: a mask of another dtype.
        """
        if self.cross:
            q = self.queries(x)
            k, v = self.memory_keys_values(memory) if cache is None else cache.all()
        else:
            q, k, v = self.project(x, rotary)  # (B,H,N,K), (B,H,N,K), (B,H,N,K)
            if cache is not None:
                k, v = cache.append(k, v)  # (B,H,S,K)
            if self.relative is not None:
                mask = self.relative(mask).to(q.dtype)  # (1 or B,H,N,N)
        heads = self.attend(q, k, v, mask, causal)
        if self.recorder is not None:
            self.recorder.append(self.weights(q.detach(), k.detach(), mask, causal))
        return apply_linear(self.proj, self.norm(heads.transpose(1, 2).flatten(2)))  # (B,H,N,K) -> (B,N,H*K) -> (B,N,D)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        """q (B,H,N,K), k (B,H,S,K), v (B,H,S,value_dim), mask and causal as in `forward` -> (B,H,N,value_dim)"""
        mask, causal = attention_mask(mask, causal, q, k)
        return scaled_dot_product_attention(q, k, v, mask, self.dropout if self.training else 0.0, causal)

    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        """The attention weights of `attend`, (B,H,N,S) in float32; for attention maps only."""
        scores = q.float() @ k.float().transpose(-2, -1) * q.shape[-1] ** -0.5
        return masked_softmax(scores, *attention_mask(mask, causal, q, k))

    def project(self, x: Tensor, rotary: Rotation | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """(B,N,D) -> queries, keys and values (B,H,N,K) of self-attention, with QK-norm and rotary positions applied"""
        q, k, v = self.split(apply_linear(self.qkv, x), self.parts)
        q, k = self.q_norm(q), self.k_norm(k)
        return (q, k, v) if rotary is None else (rotary(q), rotary(k), v)

    def queries(self, x: Tensor) -> Tensor:
        """(B,N,D) -> queries (B,H,N,K) of cross-attention"""
        return self.q_norm(apply_linear(self.q, x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2))

    def memory_keys_values(self, memory: Tensor | None) -> tuple[Tensor, Tensor]:
        """(B,S,D) -> keys and values (B,H,S,K) of cross-attention

        Raises:
            ValueError: there is no memory.
        """
        if memory is None:
            raise ValueError("cross-attention needs a memory (B,S,D), but got None")
        k, v = self.split(apply_linear(self.kv, memory), self.parts)
        return self.k_norm(k), v

    def split(self, x: Tensor, parts: list[int]) -> Sequence[Tensor]:
        """(B,N,sum of parts) -> per part (B,H,N,K)"""
        if self.value_dim == self.head_dim:  # fewer views, faster for short steps
            return x.unflatten(-1, (len(parts), self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        return [part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in x.split(parts, dim=-1)]


@contextmanager
def attention_maps(model: nn.Module) -> Iterator[dict[str, list[Tensor]]]:
    """Record attention weights in this context: `{"encoder.blocks.0.attn": [(B,H,N,S), ...]}`, one entry per forward.

    The model's outputs are bitwise unchanged.
    """
    layers = {name: module for name, module in model.named_modules() if isinstance(module, Attention)}
    for module in layers.values():
        module.recorder = []
    try:
        yield {name: module.recorder for name, module in layers.items()}
    finally:
        for module in layers.values():
            module.recorder = None
