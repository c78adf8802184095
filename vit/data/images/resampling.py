"""Resizing a box of an image to the model's input, by torch or by Pillow.

Both average over all pixels of the box with the same filter. torch does it in uint8 with vector instructions, several
times as fast as Pillow; as in torchvision's RandomResizedCrop, it uses no pixel outside the box.
"""

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

LIBRARIES = ("torch", "pillow")
TORCH_FILTERS = ("bilinear", "bicubic")  # filters of torch, with antialiasing; Pillow computes the others
Box = tuple[float, float, float, float]  # left, top, right, bottom in pixels


def resize_box(pixels: np.ndarray, box: Box, size: tuple[int, int], interpolation: str, library: str) -> Tensor:
    """(H,W) or (H,W,C) uint8 pixels → the box as (C,height,width) uint8, which is not contiguous.

    torch needs a box of whole pixels and rounds others, which belong to images that are decoded at a smaller scale.
    """
    if library == "torch" and interpolation in TORCH_FILTERS:
        left, top, right, bottom = _whole(box, pixels.shape[1], pixels.shape[0])
        region = np.ascontiguousarray(np.atleast_3d(pixels)[top:bottom, left:right])
        region = torch.from_numpy(region)[None].permute(0, 3, 1, 2)  # recognised as channels_last, which is faster
        return F.interpolate(region, size, mode=interpolation, antialias=True)[0]
    resample = Image.Resampling[interpolation.upper()]
    pixels = pixels[:, :, 0] if pixels.shape[2:] == (1,) else pixels
    image = Image.fromarray(pixels).resize((size[1], size[0]), resample, box=box)
    return torch.from_numpy(np.atleast_3d(np.array(image))).permute(2, 0, 1)


def _whole(box: Box, width: int, height: int) -> tuple[int, int, int, int]:
    """The box with whole numbers, at least one pixel wide and high."""
    left, top = (min(round(start), side - 1) for start, side in zip(box[:2], (width, height), strict=True))
    right, bottom = (max(round(end), start + 1) for end, start in zip(box[2:], (left, top), strict=True))
    return left, top, min(right, width), min(bottom, height)
