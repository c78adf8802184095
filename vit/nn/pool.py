"""Pooling: tokens (B,N,D) to one vector (B,D)."""

import torch
from torch import Tensor, nn

from vit.nn.attention import Attention
from vit.nn.cpu.linear import apply_linear
from vit.nn.drop import Dropout
from vit.nn.norm import identity


class ClassToken(nn.Module):
    """The class token, which is the first token.

    Args:
        norm: applied to the pooled vector; none by default, because the encoder ends with one.
    """

    def __init__(self, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.norm = norm or identity

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B,N,D) -> (B,D)"""
        return self.norm(x[:, 0])


class ClassMean(nn.Module):
    """The class token concatenated with the mean of the tokens after the prefix, as in DINOv2's linear classifiers
    (arXiv 2304.07193).
    """

    def __init__(self, prefix: int) -> None:
        super().__init__()
        self.first, self.mean = ClassToken(), Mean(prefix)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B,N,D) -> (B,2*D)"""
        return torch.cat([self.first(x), self.mean(x, mask)], dim=1)


class Mean(nn.Module):
    """The mean of the tokens after the first `prefix` ones; with a mask (B,N) only of those where it is True."""

    def __init__(self, prefix: int = 0, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.prefix, self.norm = prefix, norm or identity

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B,N,D) -> (B,D)"""
        x = x[:, self.prefix :]
        if mask is None:
            return self.norm(x.mean(dim=1))
        weight = mask[:, self.prefix :, None]  # (B,N,1)
        total = (x * weight).sum(dim=1, dtype=torch.promote_types(x.dtype, torch.float32))  # no overflow in float16
        return self.norm((total / weight.sum(dim=1).clamp(min=1)).to(x.dtype))


class Sum(Mean):
    """The sum of the same tokens as in `Mean`. In contrast to the mean, it depends on their number."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B,N,D) -> (B,D)"""
        x = x[:, self.prefix :]
        if mask is not None:
            x = x * mask[:, self.prefix :, None]
        return self.norm(x.sum(dim=1))


class Pooler(nn.Module):
    """The first token after a dense layer and tanh (BERT, arXiv 1810.04805)."""

    def __init__(self, dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dense = nn.Linear(dim, dim)
        self.drop = Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B,N,D) -> (B,D)"""
        return self.drop(apply_linear(self.dense, x[:, 0]).tanh())


class ScorePool(nn.Module):
    """The mean of the tokens, weighted by the softmax of a learned score per token (arXiv 1703.03130).

    Args:
        hidden: inner width of the score w2 tanh(w1 x); 0 for the linear score w x.
        prefix: number of leading tokens that are ignored.
    """

    def __init__(self, dim: int, hidden: int = 0, prefix: int = 0, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.hidden = nn.Linear(dim, hidden) if hidden else None
        self.score = nn.Linear(hidden or dim, 1, bias=False)  # softmax is invariant to a bias
        self.prefix, self.norm = prefix, norm or identity

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B,N,D) -> (B,D)"""
        weights = self.weights(x, mask).to(x.dtype)  # (B,N)
        return self.norm((weights[:, None] @ x).squeeze(1))

    def weights(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B,N,D) -> (B,N) in float32: rows sum to 1, prefix and masked tokens are 0"""
        scores = self.score(x if self.hidden is None else apply_linear(self.hidden, x).tanh()).squeeze(-1).float()
        allowed = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask
        if self.prefix:
            allowed = allowed & (torch.arange(x.shape[1], device=x.device) >= self.prefix)
        lowest = torch.finfo(scores.dtype).min  # -inf would give NaN in a fully masked row
        return scores.masked_fill(~allowed, lowest).softmax(dim=1) * allowed


class AttentionPool(nn.Module):
    """Multi-head attention pooling: a learned query attends to the tokens after the first `prefix` ones (arXiv
    2106.04560).
    """

    def __init__(
        self,
        dim: int,
        attn: Attention,
        mlp: nn.Module,
        mlp_norm: nn.Module,
        prefix: int = 0,
        norm: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.latent = nn.Parameter(torch.zeros(1, 1, dim))
        self.attn, self.mlp_norm, self.mlp = attn, mlp_norm, mlp
        self.prefix, self.norm = prefix, norm or identity

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B,N,D) -> (B,D)"""
        mask = None if mask is None else mask[:, self.prefix :]
        x = self.attn(self.latent.expand(x.shape[0], -1, -1), x[:, self.prefix :], mask)  # (B,1,D)
        x = x + self.mlp(self.mlp_norm(x))
        return self.norm(x[:, 0])
