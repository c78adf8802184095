"""Sliding-window attention, whose cost is linear in the length of the sequence."""

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.nn.cpu.attention import scaled_dot_product_attention
from vit.nn.masks import attention_mask, restrict
from vit.nn.scores import Heads, ScaledDotProduct

BLOCK = 32  # queries that share a window of keys; smaller blocks leave the kernel too little work


class Local(ScaledDotProduct):
    """Self-attention of token i to i-window ... i+window, or to i-window ... i when causal (Longformer, arXiv
    2004.05150).

    Blocks of queries attend to overlapping pieces of the keys, and the fused kernel computes all blocks at once, in
    O(N * window) time and memory. The result equals `ScaledDotProduct` with a band mask.

    Args:
        window: number of tokens to each side, besides the token itself.
        dilation: distance of the tokens in a window: token i attends to i, i +- dilation, i +- 2 * dilation, ...
        global_tokens: number of first tokens, such as a class token, that attend to all tokens and to which all
            attend. Unlike in Longformer they share the projections of the others.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(self, heads: Heads, window: int, dilation: int = 1, global_tokens: int = 0) -> None:
        super().__init__(heads)
        if window < 0:
            raise ValueError(f"window is {window}, but must be 0 (a token attends only to itself) or more")
        if dilation < 1:
            raise ValueError(f"dilation is {dilation}, but must be 1 (neighbouring tokens) or more")
        if global_tokens < 0:
            raise ValueError(f"global_tokens is {global_tokens}, but must be 0 or more")
        self.window, self.dilation, self.global_tokens = window, dilation, global_tokens

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False, dropout: float = 0.0
    ) -> Tensor:
        """q (B,H,N,K), k (B,H,S,K), v (B,H,S,V), mask and causal as in `Attention.forward` -> heads (B,H,N,V)"""
        N, g = q.shape[2], self.global_tokens
        if k.shape[2] != N or max(max(BLOCK, self.window) * self.dilation, g) >= N:  # generation, few tokens
            return super().attend(q, k, v, self.pattern(q, k, mask, causal), False, dropout)
        mask = attention_mask(mask, False, q, k)[0]  # (B or 1,H or 1,N or 1,N)
        heads = self.attend_in_windows(q, k, v, mask, causal, dropout)
        if not g:
            return heads
        S = g if causal else N  # keys of the global tokens
        rows = None if mask is None else mask[:, :, :g, :S]
        first = super().attend(q[:, :, :g], k[:, :, :S], v[:, :, :S], rows, causal, dropout)
        return torch.cat([first, heads[:, :, g:]], dim=2)

    def attend_in_windows(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, dropout: float
    ) -> Tensor:
        """q and k (B,H,N,K), v (B,H,N,V), mask (B or 1,H or 1,N or 1,N) -> (B,H,N,V), without the rows of global tokens
        """
        N, g, block = q.shape[2], self.global_tokens, max(BLOCK, self.window)
        ahead = 0 if causal else self.window
        mask = torch.ones(1, 1, 1, N, dtype=torch.bool, device=q.device) if mask is None else mask
        local_mask = restrict(mask, torch.arange(N, device=q.device) >= g) if g else mask  # global keys are added below
        queries, keys, values = (self.fold(x) for x in (q, k, v))  # (B,H*dilation,n,K)
        n = queries.shape[2]
        rest, B, H = -n % block, *queries.shape[:2]
        queries = F.pad(queries, (0, 0, 0, rest)).unflatten(2, (-1, block))  # (B,H',blocks,block,K)
        keys, values = (overlapping_windows(x, self.window, block, ahead, rest) for x in (keys, values))
        allowed = self.allowed(self.fold_mask(local_mask, q.shape[1]), block, ahead, rest)
        if g:
            global_keys, global_values = (
                self.repeat(x[:, :, :g]).unsqueeze(2).expand(-1, -1, keys.shape[2], -1, -1) for x in (k, v))
            keys, values = torch.cat([global_keys, keys], dim=3), torch.cat([global_values, values], dim=3)
            to_global = self.global_mask(mask.expand(-1, q.shape[1], -1, -1)[..., :g], block, rest)
            allowed = allowed.expand(*[max(a, c) for a, c in zip(allowed.shape[:4], to_global.shape, strict=False)], -1)
            allowed = torch.cat([to_global.expand(*allowed.shape[:4], g), allowed], dim=4)
        if allowed.shape[:2] != (1, 1):
            allowed = allowed.expand(B, H, -1, -1, -1)
        queries, keys, values, allowed = (x.flatten(0, 1) for x in (queries, keys, values, allowed))
        heads = scaled_dot_product_attention(queries, keys, values, allowed, dropout)
        return self.unfold(heads.flatten(1, 2)[:, :n].unflatten(0, (B, H)))[:, :, :N]

    def allowed(self, mask: Tensor, block: int, ahead: int, rest: int) -> Tensor:
        """The band mask of each block without padded and masked keys: (B or 1,H or 1,blocks,block,piece).

        Args:
            mask: (B or 1,H or 1,n or 1,n)
            block: queries per block.
            ahead: number of keys after the block.
            rest: number of padding tokens in the last block.
        """
        i = torch.arange(block, device=mask.device)[:, None]
        j = torch.arange(self.window + block + ahead, device=mask.device)  # keys start `window` before the block
        band = (j >= i) & (j <= i + self.window + ahead)  # (block,piece)
        parts = F.pad(mask, (self.window, rest + ahead), value=masked_value(mask)).unfold(3, len(j), block)
        if mask.shape[2] == 1:
            parts = parts.transpose(2, 3)  # (B,H,blocks,1,piece)
        else:  # each block of rows takes its own window of keys
            rows = F.pad(parts, (0, 0, 0, 0, 0, rest)).unflatten(2, (-1, block))  # (B,H,blocks,block,blocks,piece)
            parts = rows.diagonal(dim1=2, dim2=4).permute(0, 1, 4, 2, 3)  # (B,H,blocks,block,piece)
        return restrict(parts, band)

    def global_mask(self, mask: Tensor, block: int, rest: int) -> Tensor:
        """mask (B or 1,H,N or 1,g) of the global keys -> (B or 1,H*dilation,blocks or 1,block or 1,g)"""
        if mask.shape[2] == 1:
            return self.repeat(mask).unsqueeze(2)
        return F.pad(self.fold(mask), (0, 0, 0, rest)).unflatten(2, (-1, block))

    def repeat(self, x: Tensor) -> Tensor:
        """(B,H,...) -> (B,H*dilation,...), the same for each of the sequences of `fold`"""
        return x if self.dilation == 1 else x.repeat_interleave(self.dilation, dim=1)

    def fold(self, x: Tensor) -> Tensor:
        """(B,H,N,K) -> (B,H*dilation,n,K): tokens r, r + dilation, r + 2 * dilation, ... as a sequence of their own"""
        if self.dilation == 1:
            return x
        padded = F.pad(x, (0, 0, 0, -x.shape[2] % self.dilation)).unflatten(2, (-1, self.dilation))
        return padded.transpose(2, 3).flatten(1, 2)

    def unfold(self, x: Tensor) -> Tensor:
        """(B,H*dilation,n,V) -> (B,H,n*dilation,V), the inverse of `fold`"""
        if self.dilation == 1:
            return x
        return x.unflatten(1, (-1, self.dilation)).transpose(2, 3).flatten(2, 3)

    def fold_mask(self, mask: Tensor, H: int) -> Tensor:
        """mask (B,H or 1,N or 1,N) -> (B,H*dilation,n or 1,n), False or -inf for the padding of `fold`"""
        if self.dilation == 1:
            return mask
        step, rest = self.dilation, -mask.shape[3] % self.dilation
        mask = F.pad(mask.expand(-1, H, -1, -1), (0, rest), value=masked_value(mask)).unflatten(3, (-1, step))
        if mask.shape[2] == 1:
            return mask.permute(0, 1, 4, 2, 3).flatten(1, 2)  # (B,H,1,n,step) -> (B,H*step,1,n)
        rows = F.pad(mask, (0, 0, 0, 0, 0, rest), value=masked_value(mask)).unflatten(2, (-1, step))
        return rows.diagonal(dim1=3, dim2=5).permute(0, 1, 4, 2, 3).flatten(1, 2)  # of (B,H,n,step,n,step)

    def pattern(self, q: Tensor, k: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        """The windows and global tokens as one mask (B,H,N,S), for attention maps, generation and short sequences.

        With fewer queries than keys, as in a step of generation, the position of a key is its rank among the keys that
        the mask of the query allows: the cache holds the tokens of several beams, so that indices are not positions.
        """
        N, S, g, step = q.shape[2], k.shape[2], self.global_tokens, self.dilation
        mask, is_causal = attention_mask(mask, causal, q, k)
        full = torch.ones(1, 1, N, S, dtype=torch.bool, device=q.device)
        if is_causal:
            mask = full.tril()
        elif mask is None:
            mask = full
        if N == S:
            index = torch.arange(N, device=q.device)
            distance, to_global = (index[:, None] - index).abs(), (index < g) | (index[:, None] < g)
            return restrict(mask, to_global | (distance <= self.window * step) & (distance % step == 0))
        attended = (mask if mask.dtype == torch.bool else mask > -torch.inf) & full
        rank = attended.cumsum(-1) - 1  # position of each key
        last = rank[..., -1:]  # position of the query
        near = (last - rank <= self.window * step) & ((last - rank) % step == 0)
        return restrict(mask, attended & (near | (rank < g) | (last < g)))

    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """Attention weights (B,H,N,S) in float32, computed in full: quadratic in the length."""
        return super().weights(q, k, self.pattern(q, k, mask, causal), False)


def masked_value(mask: Tensor) -> bool | float:
    """The value of a mask at pairs of tokens without attention: False, or -inf in an additive mask."""
    return False if mask.dtype == torch.bool else -torch.inf


def overlapping_windows(x: Tensor, before: int, block: int, ahead: int, rest: int) -> Tensor:
    """(B,H,N,K) -> (B,H,blocks,before+block+ahead,K), overlapping windows of the zero-padded x

    Windows are joined from slices of `block` tokens, because the backward pass of `Tensor.unfold` is slow on a CPU.
    """
    piece = before + block + ahead
    padded = F.pad(x, (0, 0, before, rest + ahead + -piece % block)).unflatten(2, (-1, block))
    parts = -(-piece // block)
    blocks = padded.shape[2] - parts + 1
    return torch.cat([padded[:, :, i : i + blocks, : piece - i * block] for i in range(parts)], dim=3)
