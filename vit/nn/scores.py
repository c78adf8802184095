"""Heads and scores of attention: how a query is compared with a key, and the heads computed with it.

A score is constructed with the `Heads` of its attention: `Attention(96, 3, score=Cosine)`. Scores that are a dot
product after a transformation of queries and keys use the fused kernel; its factor K^-1/2 is compensated beforehand.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.nn.cpu.attention import scaled_dot_product_attention
from vit.nn.masks import attention_mask, masked_softmax


@dataclass(frozen=True, slots=True)
class Heads:
    """Number and widths of the heads of attention.

    Args:
        num_heads: H.
        head_dim: K, width of the queries and keys of a head.
        value_dim: V, width of the values of a head.
    """

    num_heads: int
    head_dim: int
    value_dim: int

    @classmethod
    def split(cls, dim: int, num_heads: int) -> "Heads":
        """Heads that share the width of the model, D / H each (arXiv 1706.03762, section 3.2.2).

        Raises:
            ValueError: `dim` is not divisible by `num_heads`.
        """
        if dim % num_heads:
            raise ValueError(f"dim {dim} is not divisible by num_heads {num_heads}; change one, or pass Heads")
        return cls(num_heads, dim // num_heads, dim // num_heads)

    @classmethod
    def full(cls, dim: int, num_heads: int) -> "Heads":
        """Heads that are each as wide as the model, with H times the parameters and the cost of `split`."""
        return cls(num_heads, dim, dim)


class ScaledDotProduct(nn.Module):
    """score = q . k / sqrt(K) (arXiv 1706.03762, equation 1): unit variance for q and k of unit variance.

    Other scores are subclasses that override `transform`, or both `attend` and `weights`.
    """

    def __init__(self, heads: Heads) -> None:
        super().__init__()
        self.heads = heads

    def transform(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """q (B,H,N,K), k (B,H,S,K) -> the same shapes; the score is their scaled dot product"""
        return q, k

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False, dropout: float = 0.0
    ) -> Tensor:
        """q (B,H,N,K), k (B,H,S,K), v (B,H,S,V), mask and causal as in `Attention.forward` -> heads (B,H,N,V)

        Args:
            dropout: rate on the attention weights.
        """
        q, k = self.transform(q, k)
        if mask is not None or causal:
            mask, causal = attention_mask(mask, causal, q, k)
        return scaled_dot_product_attention(q, k, v, mask, dropout, causal)

    @torch.no_grad()
    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """The attention weights of `attend`, (B,H,N,S) in float32, under autocast too; for attention maps only."""
        with torch.autocast(q.device.type, enabled=False):
            q, k = self.transform(q.float(), k.float())
            scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
            return masked_softmax(scores, *attention_mask(mask, causal, q, k))


Score = Callable[[Heads], ScaledDotProduct]  # a class or a partial that takes the heads


class DotProduct(ScaledDotProduct):
    """score = q . k, not divided by sqrt(K) (arXiv 1508.04025); wide heads saturate the softmax early."""

    def transform(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """q (B,H,N,K), k (B,H,S,K) -> the same shapes"""
        return q * self.heads.head_dim**0.5, k


class Cosine(ScaledDotProduct):
    """score = scale * cos(q, k) (arXiv 2010.04245), with a learned scale per head.

    The scale is initialized to 10 and clamped to 100, as in Swin v2 (arXiv 2111.09883).
    """

    def __init__(self, heads: Heads) -> None:
        super().__init__(heads)
        self.log_scale = nn.Parameter(torch.full((heads.num_heads, 1, 1), math.log(10.0)))

    def transform(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """q (B,H,N,K), k (B,H,S,K) -> the same shapes"""
        scale = self.log_scale.clamp(max=math.log(100.0)).exp() * self.heads.head_dim**0.5
        return F.normalize(q, dim=-1) * scale.to(q.dtype), F.normalize(k, dim=-1)


class Bilinear(ScaledDotProduct):
    """score = q W k with a matrix W per head (arXiv 1508.04025, "general"); initialized to the scaled dot product."""

    def __init__(self, heads: Heads) -> None:
        super().__init__(heads)
        scaled = torch.eye(heads.head_dim) * heads.head_dim**-0.5
        self.matrix = nn.Parameter(scaled.repeat(heads.num_heads, 1, 1))  # (H,K,K)

    def transform(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """q (B,H,N,K), k (B,H,S,K) -> the same shapes"""
        return q @ self.matrix.to(q.dtype) * self.heads.head_dim**0.5, k


class Additive(ScaledDotProduct):
    """score = vector . tanh(q + k) with a vector per head (arXiv 1409.0473).

    There is no fused kernel for it: memory is B*H*N*S*K numbers, K times that of the score matrix.
    """

    def __init__(self, heads: Heads) -> None:
        super().__init__(heads)
        self.vector = nn.Parameter(torch.randn(heads.num_heads, heads.head_dim) * heads.head_dim**-0.5)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """q (B,H,N,K), k (B,H,S,K) -> (B,H,N,S)"""
        both = torch.tanh(q[:, :, :, None] + k[:, :, None])  # (B,H,N,S,K)
        return (both @ self.vector[:, None, :, None].to(both.dtype)).squeeze(-1)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False, dropout: float = 0.0
    ) -> Tensor:
        """q (B,H,N,K), k (B,H,S,K), v (B,H,S,V), mask and causal as in `Attention.forward` -> heads (B,H,N,V)"""
        weights = masked_softmax(self.scores(q, k), *attention_mask(mask, causal, q, k)).to(v.dtype)
        return (F.dropout(weights, dropout) if dropout else weights) @ v

    @torch.no_grad()
    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """Attention weights (B,H,N,S) in float32."""
        with torch.autocast(q.device.type, enabled=False):
            return masked_softmax(self.scores(q.float(), k.float()), *attention_mask(mask, causal, q, k))
