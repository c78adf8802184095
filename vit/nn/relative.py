"""Relative position bias: numbers that depend on the offset of two tokens, added to attention scores."""

import math
from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.nn.masks import attention_mask, restrict


class RelativePositions(nn.Module):
    """Continuous relative position bias (Swin v2, arXiv 2111.09883): an MLP maps the offset to one number per head.

    The MLP reads the signed logarithm of the offset in rows and columns, which extrapolates to larger grids. Prefix
    tokens get no bias. Parameters are named as in timm.

    Args:
        grid: (rows, columns) of the patches.
        prefix: number of tokens before the patches.
        hidden: inner width of the MLP.
    """

    def __init__(self, grid: tuple[int, int], num_heads: int, prefix: int = 0, hidden: int = 128) -> None:
        super().__init__()
        self.prefix = prefix
        layers = {"fc1": nn.Linear(2, hidden), "act": nn.ReLU(), "fc2": nn.Linear(hidden, num_heads)}
        self.mlp = nn.Sequential(OrderedDict(layers))
        rows, columns = grid
        axes = torch.meshgrid(torch.arange(1 - rows, rows), torch.arange(1 - columns, columns), indexing="ij")
        offsets = torch.stack(axes, dim=-1).flatten(0, 1).float()  # (offsets,2)
        coordinates = torch.cartesian_prod(torch.arange(rows), torch.arange(columns))  # (N,2)
        shifted = coordinates[:, None] - coordinates + torch.tensor([rows - 1, columns - 1])  # (N,N,2), all >= 0
        self.register_buffer("offsets", offsets.sign() * offsets.abs().log1p(), persistent=False)
        self.register_buffer("index", shifted[..., 0] * (2 * columns - 1) + shifted[..., 1], persistent=False)  # (N,N)

    def forward(self, mask: Tensor | None = None, N: int | None = None, S: int | None = None) -> Tensor:
        """mask as in `Attention` -> bias to add to the scores, (1,H,N,N), or (B,H,N,N) with -inf where masked

        Args:
            N, S: numbers of queries and keys, which are those of the grid here.
        """
        bias = self.mlp(self.offsets)[self.index].permute(2, 0, 1)  # (H,patches,patches)
        bias = F.pad(bias, (self.prefix, 0, self.prefix, 0))[None]  # (1,H,N,N)
        return with_mask(bias, mask)


class TextRelativePositions(nn.Module):
    """Relative position bias of texts (T5, arXiv 1910.10683): a number per head for each range of offsets.

    Half of the ranges are single offsets, the others grow logarithmically up to `longest`, from which on all offsets
    share one. Unlike in T5 every block has its own table.

    Args:
        causal: keys lie before their query, as in a decoder, so that all ranges serve one direction.
        buckets: number of ranges.
    """

    def __init__(self, num_heads: int, causal: bool = False, buckets: int = 32, longest: int = 128) -> None:
        super().__init__()
        self.table = nn.Embedding(buckets, num_heads)
        self.causal, self.buckets, self.longest = causal, buckets, longest

    def forward(self, mask: Tensor | None, N: int, S: int) -> Tensor:
        """mask as in `Attention`, N queries, S keys -> bias to add to the scores, (1 or B,H,N,S), -inf where masked

        The last query is aligned with the last key. With fewer queries than keys and a mask, as for beams that share a
        cache, positions are counted among the keys that a query's mask allows.
        """
        if mask is not None and N < S:
            rank = (mask if mask.dtype == torch.bool else mask > -torch.inf).cumsum(-1)  # (B,N,S)
            offsets = rank - rank[..., -1:]
        else:
            device = self.table.weight.device
            offsets = torch.arange(S, device=device) - torch.arange(S - N, S, device=device)[:, None]
            offsets = offsets[None]  # (1,N,S)
        return with_mask(self.table(self.bucket(offsets)).permute(0, 3, 1, 2), mask)

    def bucket(self, offsets: Tensor) -> Tensor:
        """Offsets of keys from their queries, any shape -> indices of their ranges, the same shape"""
        count = self.buckets if self.causal else self.buckets // 2
        later = 0 if self.causal else (offsets > 0) * count
        distance = -offsets.clamp(max=0) if self.causal else offsets.abs()
        exact = count // 2
        growth = (distance.clamp(min=1) / exact).log() / math.log(self.longest / exact) * (count - exact)
        return later + torch.where(distance < exact, distance, (exact + growth.long()).clamp(max=count - 1))


def with_mask(bias: Tensor, mask: Tensor | None) -> Tensor:
    """bias (1 or B,H,N,S) and a mask as in `Attention` -> their combination, (1 or B,H,N,S)"""
    if mask is None:
        return bias
    mask = attention_mask(mask, False, bias, bias)[0]  # (B,H or 1,N or 1,S)
    return restrict(bias, mask) if mask.dtype == torch.bool else bias + mask
