"""From tokens to one vector."""

import torch
from torch import Tensor, nn

from vit.nn.attention import Attention


class ClassToken(nn.Module):
    """The first token, which the encoder made an answer of.

    Args:
        norm: applied to the pooled vector; none by default, because the encoder ends with one.
    """

    def __init__(self, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.norm = norm or nn.Identity()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B,N,D) -> (B,D)"""
        return self.norm(x[:, 0])


class Mean(nn.Module):
    """The mean over the tokens after the first `prefix` ones, and only over those that `mask` (B,N) allows."""

    def __init__(self, prefix: int = 0, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.prefix, self.norm = prefix, norm or nn.Identity()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B,N,D) -> (B,D)"""
        x = x[:, self.prefix :]
        if mask is None:
            return self.norm(x.mean(dim=1))
        weight = mask[:, self.prefix :, None].to(x.dtype)  # (B,N,1)
        return self.norm((x * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1))


class AttentionPool(nn.Module):
    """A learned query looks at all tokens after the first `prefix` ones (MAP head, arXiv 2106.04560)."""

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
        self.prefix, self.norm = prefix, norm or nn.Identity()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B,N,D) -> (B,D)"""
        mask = None if mask is None else mask[:, self.prefix :]
        x = self.attn(self.latent.expand(x.shape[0], -1, -1), x[:, self.prefix :], mask)  # (B,1,D)
        x = x + self.mlp(self.mlp_norm(x))
        return self.norm(x[:, 0])
