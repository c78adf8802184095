"""Other ways to score how well a key fits a query; each takes the place of `Attention` in a block.

What is a change of queries and keys before the scaled dot product goes through the fused kernel; the kernel's factor
K^-1/2 is taken out beforehand. Heads that each see the full width are `Attention(dim, num_heads, head_dim=dim)`, values
of another width than the keys `Attention(..., value_dim=...)`; both work here too.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.nn.attention import Attention, pairs, softmax


class Scored(Attention):
    """What the choices have in common: the options of `Attention`, a `change` of q and k, and what it learns."""

    def __init__(self, dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(dim, num_heads, **options)
        self.learn()

    def learn(self) -> None:
        """Set the parameters of the score, where it has any."""

    def change(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """q (B,H,N,K), k (B,H,S,K) -> two of the same shapes whose scaled dot product is the score"""
        return q, k

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        """q (B,H,N,K), k and v (B,H,S,K) -> (B,H,N,K), as wide as the values"""
        return super().attend(*self.change(q, k), v, mask, causal)

    @torch.no_grad()
    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        """(B,H,N,S) in float32"""
        return super().weights(*self.change(q.float(), k.float()), mask, causal)


class DotProduct(Scored):
    """score = q . k, not divided by sqrt(K) (arXiv 1508.04025): the wider the heads, the sooner one key takes all."""

    def change(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """q (B,H,N,K), k (B,H,S,K) -> the same shapes"""
        return q * self.head_dim**0.5, k


class Cosine(Scored):
    """score = scale * cos(q, k), so that lengths have no say (arXiv 2010.04245); the scale is learned per head.

    The scale begins at 10 and is kept below 100, as in Swin v2 (arXiv 2111.09883).
    """

    def learn(self) -> None:
        self.log_scale = nn.Parameter(torch.full((self.num_heads, 1, 1), math.log(10.0)))

    def change(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """q (B,H,N,K), k (B,H,S,K) -> the same shapes"""
        scale = self.log_scale.clamp(max=math.log(100.0)).exp() * self.head_dim**0.5
        return F.normalize(q, dim=-1) * scale.to(q.dtype), F.normalize(k, dim=-1)


class Bilinear(Scored):
    """score = q W k, a matrix W per head (arXiv 1508.04025, "general"); it begins as the scaled dot product."""

    def learn(self) -> None:
        scaled = torch.eye(self.head_dim) * self.head_dim**-0.5
        self.matrix = nn.Parameter(scaled.repeat(self.num_heads, 1, 1))  # (H,K,K)

    def change(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """q (B,H,N,K), k (B,H,S,K) -> the same shapes"""
        return q @ self.matrix.to(q.dtype) * self.head_dim**0.5, k


class Additive(Scored):
    """score = vector . tanh(q + k), a vector per head (arXiv 1409.0473); the projections to q and k are its matrices.

    No product of q and k, so no fused kernel: B*H*N*S*K numbers in memory, K times those of a matrix of scores.
    """

    def learn(self) -> None:
        self.vector = nn.Parameter(torch.randn(self.num_heads, self.head_dim) * self.head_dim**-0.5)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """q (B,H,N,K), k (B,H,S,K) -> (B,H,N,S)"""
        both = torch.tanh(q[:, :, :, None] + k[:, :, None])  # (B,H,N,S,K)
        return (both @ self.vector[:, None, :, None].to(both.dtype)).squeeze(-1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        """q (B,H,N,K), k and v (B,H,S,K) -> (B,H,N,K), as wide as the values"""
        weights = softmax(self.scores(q, k), *pairs(mask, causal, q, k)).to(v.dtype)
        return F.dropout(weights, self.dropout, self.training) @ v

    @torch.no_grad()
    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        """(B,H,N,S) in float32"""
        return softmax(self.scores(q.float(), k.float()), *pairs(mask, causal, q, k))
