"""Positions as numbers that are added to the scores of attention, by how far two patches are apart."""

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.nn.attention import pairs, within


class RelativePositions(nn.Module):
    """A small network turns the offset between two patches into a number per head (Swin v2, arXiv 2111.09883).

    It sees the logarithm of the rows and columns between them, with a sign, so that it goes on where a larger grid has
    offsets it was not trained on. To and from the tokens before the patches nothing is added. Parameters are named as
    in timm.

    Args:
        grid: (rows, columns) of the patches.
        prefix: how many tokens stand before them.
        hidden: inner width of the network.
    """

    def __init__(self, grid: tuple[int, int], num_heads: int, prefix: int = 0, hidden: int = 128) -> None:
        super().__init__()
        self.prefix = prefix
        layers = {"fc1": nn.Linear(2, hidden), "act": nn.ReLU(), "fc2": nn.Linear(hidden, num_heads)}
        self.mlp = nn.Sequential(OrderedDict(layers))
        rows, columns = grid
        between = torch.meshgrid(torch.arange(1 - rows, rows), torch.arange(1 - columns, columns), indexing="ij")
        offsets = torch.stack(between, dim=-1).flatten(0, 1).float()  # (offsets,2)
        where = torch.cartesian_prod(torch.arange(rows), torch.arange(columns))  # (N,2)
        apart = where[:, None] - where + torch.tensor([rows - 1, columns - 1])  # (N,N,2) from the smallest offset on
        self.register_buffer("offsets", offsets.sign() * offsets.abs().log1p(), persistent=False)
        self.register_buffer("places", apart[..., 0] * (2 * columns - 1) + apart[..., 1], persistent=False)  # (N,N)

    def forward(self, mask: Tensor | None = None) -> Tensor:
        """What is added to the scores, (1,H,N,N), or with a mask of `Attention` (B,H,N,N): -inf where it forbids."""
        bias = self.mlp(self.offsets)[self.places].permute(2, 0, 1)  # (H,patches,patches)
        bias = F.pad(bias, (self.prefix, 0, self.prefix, 0))[None]  # (1,H,N,N)
        if mask is None:
            return bias
        mask = pairs(mask, False, bias, bias)[0]  # (B,H or 1,N or 1,N)
        return within(bias, mask) if mask.dtype == torch.bool else bias + mask
