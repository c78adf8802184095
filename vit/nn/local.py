"""Sliding-window attention: cost is linear in the length."""

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.nn.attention import Attention
from vit.nn.cpu import scaled_dot_product_attention
from vit.nn.masks import attention_mask, restrict
from vit.nn.norm import Norm

BLOCK = 32  # queries that share a window of keys; smaller blocks leave the kernel too little work


class LocalAttention(Attention):
    """Self-attention of token i to i-window ... i+window, or to i-window ... i when causal (arXiv 2004.05150).

    Blocks of queries attend to overlapping views of the keys, and the fused kernel computes all blocks at once, in
    O(N * window) time and memory. The result equals `Attention` with a band mask.

    Args:
        window: number of tokens to each side, besides the token itself.

    Raises:
        ValueError: `window` is negative, or as in `Attention`.
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
            raise ValueError(f"window is {window}, but must be 0 (a token attends only to itself) or more")
        self.window = window

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        """q and k (B,H,N or S,K), v (B,H,S,value_dim) -> (B,H,N,value_dim)"""
        N, block = q.shape[2], max(BLOCK, self.window)
        if k.shape[2] != N or block >= N:  # steps of generation, and short sequences
            return super().attend(q, k, v, self.band(q, k, mask, causal), False)
        rest, ahead = -N % block, 0 if causal else self.window
        queries = F.pad(q, (0, 0, 0, rest)).flatten(0, 1).unflatten(1, (-1, block))  # (B*H,blocks,block,K)
        keys, values = (overlapping_windows(x, self.window, block, ahead, rest).flatten(0, 1) for x in (k, v))
        allowed = self.allowed(q, block, ahead, rest, mask)
        dropout = self.dropout if self.training else 0.0
        heads = scaled_dot_product_attention(queries, keys, values, allowed, dropout)
        return heads.flatten(1, 2)[:, :N].unflatten(0, q.shape[:2])

    def allowed(self, q: Tensor, block: int, ahead: int, rest: int, mask: Tensor | None) -> Tensor:
        """The band mask of each block without padded and masked keys: (B*H or 1,blocks,block,piece).

        Args:
            block: queries per block.
            ahead: keys after the block.
            rest: padding of the last block.
            mask: as in `Attention`.
        """
        i = torch.arange(block, device=q.device)[:, None]
        j = torch.arange(self.window + block + ahead, device=q.device)  # keys start `window` before the block
        band = (j >= i) & (j <= i + self.window + ahead)  # (block,piece)
        mask = torch.ones(1, 1, 1, q.shape[2], dtype=torch.bool, device=q.device) if mask is None else mask
        mask = attention_mask(mask, False, q, q)[0]  # (B or 1,H or 1,N or 1,N)
        nothing = False if mask.dtype == torch.bool else -torch.inf
        parts = F.pad(mask, (self.window, rest + ahead), value=nothing).unfold(3, len(j), block)  # (B,H,N,blocks,piece)
        if mask.shape[2] == 1:
            parts = parts.transpose(2, 3)  # (B,H,blocks,1,piece)
        else:  # each block of rows takes its own window of keys
            rows = F.pad(parts, (0, 0, 0, 0, 0, rest)).unflatten(2, (-1, block))  # (B,H,blocks,block,blocks,piece)
            parts = rows.diagonal(dim1=2, dim2=4).permute(0, 1, 4, 2, 3)  # (B,H,blocks,block,piece)
        if mask.shape[:2] != (1, 1):
            parts = parts.expand(*q.shape[:2], -1, -1, -1)
        return restrict(parts, band).flatten(0, 1)

    def band(self, q: Tensor, k: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        """The band as one mask (B,H,N,S), for attention maps and for steps of generation.

        With fewer queries than keys, a query attends to the last `window` + 1 keys that its mask allows: the cached
        keys may belong to several beams, so their indices are not positions.
        """
        N, S = q.shape[2], k.shape[2]
        full = torch.ones(1, 1, N, S, dtype=torch.bool, device=q.device)
        mask, is_causal = attention_mask(mask, causal, q, k)
        mask = full.tril() if is_causal else full if mask is None else mask
        if N == S:
            return restrict(mask, full.triu(-self.window).tril(self.window))
        seen = (mask if mask.dtype == torch.bool else mask > -torch.inf) & full
        return restrict(mask, seen & (seen.flip(-1).cumsum(-1).flip(-1) <= self.window + 1))

    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        """Attention weights (B,H,N,S) in float32, computed in full: quadratic in the length."""
        return super().weights(q, k, self.band(q, k, mask, causal), False)


def overlapping_windows(x: Tensor, before: int, block: int, ahead: int, rest: int) -> Tensor:
    """(B,H,N,K) -> (B,H,blocks,before+block+ahead,K), overlapping views of the zero-padded x"""
    padded = F.pad(x, (0, 0, before, rest + ahead))
    return padded.unfold(2, before + block + ahead, block).transpose(3, 4)
