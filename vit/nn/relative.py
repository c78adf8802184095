"""Relative position bias: numbers that depend on the offset of two patches, added to attention scores."""

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

    def forward(self, mask: Tensor | None = None) -> Tensor:
        """mask as in `Attention` -> bias to add to the scores, (1,H,N,N), or (B,H,N,N) with -inf where masked"""
        bias = self.mlp(self.offsets)[self.index].permute(2, 0, 1)  # (H,patches,patches)
        bias = F.pad(bias, (self.prefix, 0, self.prefix, 0))[None]  # (1,H,N,N)
        if mask is None:
            return bias
        mask = attention_mask(mask, False, bias, bias)[0]  # (B,H or 1,N or 1,N)
        return restrict(bias, mask) if mask.dtype == torch.bool else bias + mask
