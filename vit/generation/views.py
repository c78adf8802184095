"""An image of writing seen several ways, as several models see it: what is unsure differs, what is sure does not."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

SHEAR, STRETCH = math.radians(8.5), 0.14  # at most: an angle, and the logarithm of a factor


def views(images: Tensor, mask: Tensor | None, count: int) -> list[Tensor]:
    """The images (B,C,H,W) themselves, and `count` - 1 times sheared and made lower or higher about their middle row.

    What comes in from outside is the outermost of an image's own pixels, so padding changes nothing.

    Args:
        mask: (B,N) of patches, of which whole columns on the left are an image's own; None where all are.

    Raises:
        ValueError: views of what is no image.
    """
    if count == 1:
        return [images]
    if images.ndim != 4:
        raise ValueError(f"views are of images, but this model reads texts; take views=1 instead of {count}")
    width = images.shape[3]
    own = images.new_full((len(images),), width) if mask is None else mask.float().mean(1) * width  # (B,)
    turns = [2 * math.pi * (i + 0.5) / (count - 1) for i in range(count - 1)]
    return [images, *(moved(images, own, SHEAR * math.cos(turn), STRETCH * math.sin(turn)) for turn in turns)]


def moved(images: Tensor, own: Tensor, shear: float, stretch: float) -> Tensor:
    """Bilinear; `own` (B,) is how many pixels across belong to each image."""
    (B, _, height, width), device = images.shape, images.device
    rows = torch.arange(height, device=device)[:, None] - (height - 1) / 2  # (H,1), from the middle
    x = torch.arange(width, device=device) + 0.5 + rows * math.tan(shear)  # (H,W)
    x = x.minimum(own[:, None, None] - 0.5)  # (B,H,W)
    y = (rows * math.exp(stretch)).expand(B, height, width)
    grid = torch.stack([2 * x / width - 1, 2 * y / height], dim=-1).to(images.dtype)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)
