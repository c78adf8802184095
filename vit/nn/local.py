"""Attention to the neighbourhood alone: cost grows with the length, not with its square."""

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.nn.attention import Attention, fused, pairs, within
from vit.nn.norm import Norm

BLOCK = 32  # queries that share a piece of keys; fewer would leave the kernel too little to do


class LocalAttention(Attention):
    """Self-attention of token i to i-window ... i+window, or to i-window ... i when causal (arXiv 2004.05150).

    Blocks of queries look at pieces of the keys, which are views that overlap; the fused kernel computes all blocks at
    once, in O(N * window) time and memory. Equal to `Attention` with a mask of that band.

    Args:
        window: how many tokens to each side, besides the token itself.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        window: int,
        *,
        head_dim: int | None = None,
        value_dim: int | None = None,
        qkv_bias: bool = True,
        qk_norm: Norm | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(dim, num_heads, head_dim=head_dim, value_dim=value_dim, qkv_bias=qkv_bias, qk_norm=qk_norm,
                         dropout=dropout)
        if window < 0:
            raise ValueError(f"window is {window}, but must be 0 (a token sees itself alone) or more")
        self.window = window

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        """q (B,H,N,K), k and v (B,H,S,K) -> (B,H,N,K), as wide as the values"""
        N, block = q.shape[2], max(BLOCK, self.window)
        if k.shape[2] != N or block >= N:  # the newest tokens of a text that is being written; a short text
            return super().attend(q, k, v, self.band(q, k, mask, causal), False)
        rest, ahead = -N % block, 0 if causal else self.window
        queries = F.pad(q, (0, 0, 0, rest)).flatten(0, 1).unflatten(1, (-1, block))  # (B*H,blocks,block,K)
        keys, values = (pieces(x, self.window, block, ahead, rest).flatten(0, 1) for x in (k, v))
        allowed = self.allowed(q, block, ahead, rest, mask)
        dropout = self.dropout if self.training else 0.0
        heads = fused(queries, keys, values, allowed, False, dropout)
        return heads.flatten(1, 2)[:, :N].unflatten(0, q.shape[:2])

    def allowed(self, q: Tensor, block: int, ahead: int, rest: int, mask: Tensor | None) -> Tensor:
        """The band within the pieces, less what lies outside the text or is masked: (B*H or 1,blocks,block,piece)."""
        i = torch.arange(block, device=q.device)[:, None]
        j = torch.arange(self.window + block + ahead, device=q.device)  # the piece begins `window` before the block
        band = (j >= i) & (j <= i + self.window + ahead)  # (block,piece)
        mask = torch.ones(1, 1, 1, q.shape[2], dtype=torch.bool, device=q.device) if mask is None else mask
        mask = pairs(mask, False, q, q)[0]  # (B or 1,H or 1,N or 1,N)
        nothing = False if mask.dtype == torch.bool else -torch.inf
        parts = F.pad(mask, (self.window, rest + ahead), value=nothing).unfold(3, len(j), block)  # (B,H,N,blocks,piece)
        if mask.shape[2] == 1:
            parts = parts.transpose(2, 3)  # (B,H,blocks,1,piece)
        else:  # of the pieces of each block of rows, the one that belongs to it
            rows = F.pad(parts, (0, 0, 0, 0, 0, rest)).unflatten(2, (-1, block))  # (B,H,blocks,block,blocks,piece)
            parts = rows.diagonal(dim1=2, dim2=4).permute(0, 1, 4, 2, 3)  # (B,H,blocks,block,piece)
        if mask.shape[:2] != (1, 1):
            parts = parts.expand(*q.shape[:2], -1, -1, -1)
        return within(parts, band).flatten(0, 1)

    def band(self, q: Tensor, k: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        """The whole mask (B,H,N,S), for people and for the few newest tokens.

        Where there are fewer queries than keys, a query sees the last `window` + 1 of those that it may see: the keys
        then may be those of several texts (the beams of a search), and their places say nothing.
        """
        N, S = q.shape[2], k.shape[2]
        every = torch.ones(1, 1, N, S, dtype=torch.bool, device=q.device)
        mask, flag = pairs(mask, causal, q, k)
        mask = every.tril() if flag else every if mask is None else mask
        if N == S:
            return within(mask, every.triu(-self.window).tril(self.window))
        seen = (mask if mask.dtype == torch.bool else mask > -torch.inf) & every
        return within(mask, seen & (seen.flip(-1).cumsum(-1).flip(-1) <= self.window + 1))

    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        """(B,H,N,S) in float32: all pairs, so this costs what the attention itself saves"""
        return super().weights(q, k, self.band(q, k, mask, causal), False)


def pieces(x: Tensor, before: int, block: int, ahead: int, rest: int) -> Tensor:
    """(B,H,N,K) -> (B,H,blocks,before+block+ahead,K), overlapping views of x with zeros around it."""
    padded = F.pad(x, (0, 0, before, rest + ahead))
    return padded.unfold(2, before + block + ahead, block).transpose(3, 4)
