"""Test-time augmentation of text images: sheared and scaled versions, whose predictions are averaged as an ensemble."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.messages import ArgumentError

SHEAR, STRETCH = math.radians(8.5), 0.14  # maximum shear angle, and maximum logarithm of the vertical scale


def augmented_images(images: Tensor, mask: Tensor | None, count: int) -> list[Tensor]:
    """The images (B,C,H,W), and `count` - 1 versions of them, sheared and scaled vertically about the middle row.

    Pixels from outside repeat the border of the image without padding, so that padding has no influence.

    Args:
        mask: (B,N) of patches, True for the columns on the left that are not padding; None if there is no padding.

    Raises:
        ValueError: `count` is above 1 and the source is not an image.
    """
    if count == 1:
        return [images]
    if images.ndim != 4:
        raise ArgumentError(f"tta={count} is for images, but this model reads texts; use tta=1")
    width = images.shape[3]
    widths = images.new_full((len(images),), width) if mask is None else mask.float().mean(1) * width  # (B,)
    angles = [2 * math.pi * (i + 0.5) / (count - 1) for i in range(count - 1)]
    return [images, *(warped(images, widths, SHEAR * math.cos(a), STRETCH * math.sin(a)) for a in angles)]


def warped(images: Tensor, widths: Tensor, shear: float, stretch: float) -> Tensor:
    """images (B,C,H,W), their widths without padding (B,) -> warped images (B,C,H,W), bilinear"""
    (B, _, height, width), device = images.shape, images.device
    rows = torch.arange(height, device=device)[:, None] - (height - 1) / 2  # (H,1), from the middle
    x = torch.arange(width, device=device) + 0.5 + rows * math.tan(shear)  # (H,W)
    x = x.minimum(widths[:, None, None] - 0.5)  # (B,H,W)
    y = (rows * math.exp(stretch)).expand(B, height, width)
    grid = torch.stack([2 * x / width - 1, 2 * y / height], dim=-1).to(images.dtype)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)
