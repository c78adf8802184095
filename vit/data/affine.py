"""A random turn, stretch, shear and shift: the augmentation for handwriting, where mirrored signs would mean something
else.
"""

import math
from collections.abc import Sequence

import torch
from PIL import Image
from torch import Tensor, nn

from vit.data import pixels
from vit.data.augment import Draw


class RandomAffine(nn.Module):
    """Every image turned, stretched, sheared and shifted about its centre by random amounts, in one resampling.

    `degrees` and `shear` are angles, `scale` the logarithm of the factor per axis, `shift` a share of the side; each
    amount is drawn evenly from minus to plus what is given. What comes in from outside is `fill`: one number, or red,
    green and blue, which become gray where the images are.
    """

    def __init__(
        self,
        degrees: float = 10.0,
        scale: float = 0.1,
        shear: float = 5.0,
        shift: float = 0.05,
        fill: int | Sequence[int] = 0,
    ):
        super().__init__()
        if min(degrees, scale, shear, shift) < 0:
            raise ValueError(f"degrees={degrees}, scale={scale}, shear={shear}, shift={shift} must be 0 or more")
        colour = (fill,) * 3 if isinstance(fill, int) else tuple(fill)
        if len(colour) != 3 or not all(0 <= part <= 255 for part in colour):
            raise ValueError(f"fill={fill} must be one number of 0..255, or three")
        self.degrees, self.scale, self.shear, self.shift = degrees, scale, shear, shift
        gray = Image.new("RGB", (1, 1), colour).convert("L").getpixel((0, 0))
        self.register_buffer("colour", torch.tensor(colour).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("gray", torch.tensor(gray).view(1, 1, 1, 1), persistent=False)

    def forward(self, images: Tensor, draw: Draw) -> Tensor:
        """(B,C,H,W) uint8 -> (B,C,H,W) uint8"""
        fill = self.colour if images.shape[1] == 3 else self.gray
        return pixels.affine(images, self.matrices(draw, *images.shape[-2:], images.device), fill)

    def matrices(self, draw: Draw, height: int, width: int, device: torch.device | None = None) -> Tensor:
        """(B,2,3) maps from output to input positions, in pixels from the upper left corner."""
        slots = torch.arange(6, device=device)[:, None]
        turn, across, down, shear, right, below = (2 * draw(slots) - 1).unbind()  # (B,) each in -1..1
        angle = math.radians(self.degrees) * turn
        slant = torch.tan(math.radians(self.shear) * shear)
        sx, sy = torch.exp(self.scale * across), torch.exp(self.scale * down)
        a, b = angle.cos() * sx, slant - angle.sin() * sy
        c, d = angle.sin() * sx, angle.cos() * sy
        x, y = width / 2, height / 2
        tx, ty = x - a * x - b * y + self.shift * width * right, y - c * x - d * y + self.shift * height * below
        return torch.stack([a, b, tx, c, d, ty], dim=1).view(-1, 2, 3)
