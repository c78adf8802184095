"""Attention with other score functions than the scaled dot product; each is a drop-in replacement of `Attention`.

Scores that are a transformation of queries and keys followed by a dot product use the fused kernel; its factor K^-1/2
is compensated beforehand. `head_dim` and `value_dim` work as in `Attention`.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.nn.attention import Attention
from vit.nn.masks import attention_mask, masked_softmax


class ScoredAttention(Attention):
    """Base class: attention with a `transform` of queries and keys. Takes the options of `Attention`."""

    def __init__(self, dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(dim, num_heads, **options)
        self.init_score()

    def init_score(self) -> None:
        """Create the parameters of the score function, if it has any."""

    def transform(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """q (B,H,N,K), k (B,H,S,K) -> the same shapes; the score is their scaled dot product"""
        return q, k

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        """q (B,H,N,K), k (B,H,S,K), v (B,H,S,value_dim) -> (B,H,N,value_dim)"""
        return super().attend(*self.transform(q, k), v, mask, causal)

    @torch.no_grad()
    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        """Attention weights (B,H,N,S) in float32."""
        return super().weights(*self.transform(q.float(), k.float()), mask, causal)


class DotProduct(ScoredAttention):
    """score = q . k, not divided by sqrt(K) (arXiv 1508.04025); wide heads saturate the softmax early."""

    def transform(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """q (B,H,N,K), k (B,H,S,K) -> the same shapes"""
        return q * self.head_dim**0.5, k


class Cosine(ScoredAttention):
    """score = scale * cos(q, k) (arXiv 2010.04245), with a learned scale per head.

    The scale is initialized to 10 and clamped to 100, as in Swin v2 (arXiv 2111.09883).
    """

    def init_score(self) -> None:
        self.log_scale = nn.Parameter(torch.full((self.num_heads, 1, 1), math.log(10.0)))

    def transform(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """q (B,H,N,K), k (B,H,S,K) -> the same shapes"""
        scale = self.log_scale.clamp(max=math.log(100.0)).exp() * self.head_dim**0.5
        return F.normalize(q, dim=-1) * scale.to(q.dtype), F.normalize(k, dim=-1)


class Bilinear(ScoredAttention):
    """score = q W k with a matrix W per head (arXiv 1508.04025, "general"); initialized to the scaled dot product."""

    def init_score(self) -> None:
        scaled = torch.eye(self.head_dim) * self.head_dim**-0.5
        self.matrix = nn.Parameter(scaled.repeat(self.num_heads, 1, 1))  # (H,K,K)

    def transform(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """q (B,H,N,K), k (B,H,S,K) -> the same shapes"""
        return q @ self.matrix.to(q.dtype) * self.head_dim**0.5, k


class Additive(ScoredAttention):
    """score = vector . tanh(q + k) with a vector per head (arXiv 1409.0473).

    There is no fused kernel for it: memory is B*H*N*S*K numbers, K times that of the score matrix.
    """

    def init_score(self) -> None:
        self.vector = nn.Parameter(torch.randn(self.num_heads, self.head_dim) * self.head_dim**-0.5)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """q (B,H,N,K), k (B,H,S,K) -> (B,H,N,S)"""
        both = torch.tanh(q[:, :, :, None] + k[:, :, None])  # (B,H,N,S,K)
        return (both @ self.vector[:, None, :, None].to(both.dtype)).squeeze(-1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        """q (B,H,N,K), k (B,H,S,K), v (B,H,S,value_dim) -> (B,H,N,value_dim)"""
        weights = masked_softmax(self.scores(q, k), *attention_mask(mask, causal, q, k)).to(v.dtype)
        return F.dropout(weights, self.dropout, self.training) @ v

    @torch.no_grad()
    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        """Attention weights (B,H,N,S) in float32."""
        return masked_softmax(self.scores(q.float(), k.float()), *attention_mask(mask, causal, q, k))
