"""Augmentation of writing, where mirrored signs would mean something else: all of it moved, its strokes bent, made
thicker or thinner.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from vit.counters import uniform
from vit.data.augment import image_ops
from vit.data.augment.steps import Draw


class Moving(nn.Module):
    """A step that lets something come in from outside the image: `fill`, one number, or red, green and blue, which
    become gray where the images are.
    """

    def __init__(self, fill: int | Sequence[int]) -> None:
        super().__init__()
        colour = (fill,) * 3 if isinstance(fill, int) else tuple(fill)
        if len(colour) != 3 or not all(0 <= part <= 255 for part in colour):
            raise ValueError(f"fill={fill} must be one number of 0..255, or three")
        gray = Image.new("RGB", (1, 1), colour).convert("L").getpixel((0, 0))
        self.register_buffer("colour", torch.tensor(colour).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("gray", torch.tensor(gray).view(1, 1, 1, 1), persistent=False)

    def outside(self, images: Tensor) -> Tensor:
        """(1,C,1,1)"""
        return self.colour if images.shape[1] == 3 else self.gray


class RandomAffine(Moving):
    """Every image turned, stretched, sheared and shifted about its centre by random amounts, in one resampling.

    `degrees` and `shear` are angles, `scale` the logarithm of the factor per axis, `shift` a share of the side; each
    amount is drawn evenly from minus to plus what is given. What comes in from outside is `fill`, as in `Moving`.
    """

    def __init__(
        self,
        degrees: float = 10.0,
        scale: float = 0.1,
        shear: float = 5.0,
        shift: float = 0.05,
        fill: int | Sequence[int] = 0,
    ):
        super().__init__(fill)
        if min(degrees, scale, shear, shift) < 0:
            raise ValueError(f"degrees={degrees}, scale={scale}, shear={shear}, shift={shift} must be 0 or more")
        self.degrees, self.scale, self.shear, self.shift = degrees, scale, shear, shift

    def forward(self, images: Tensor, draw: Draw) -> Tensor:
        """(B,C,H,W) uint8 -> (B,C,H,W) uint8"""
        matrices = self.matrices(draw, *images.shape[-2:], images.device)
        return image_ops.affine(images, matrices, self.outside(images))

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


class RandomElastic(Moving):
    """Strokes bent: the image lies on a rubber sheet whose nodes, `cell` pixels apart, are pulled about by random
    amounts; between them it gives evenly (Simard et al. 2003, with a grid in place of smoothed noise as in Wigington et
    al. 2017).

    Each node moves by up to `amount` cells right or left, and up or down. What comes in is `fill`, as in `Moving`.
    """

    def __init__(self, amount: float = 0.15, cell: int = 16, fill: int | Sequence[int] = 0):
        super().__init__(fill)
        if not 0 <= amount < 0.5:
            raise ValueError(f"amount={amount} must be 0 or more, and below 0.5, where the sheet folds over")
        if cell < 2:
            raise ValueError(f"cell={cell} must be 2 pixels or more")
        self.amount, self.cell = amount, cell

    def forward(self, images: Tensor, draw: Draw) -> Tensor:
        """(B,C,H,W) uint8 -> (B,C,H,W) uint8"""
        return image_ops.displaced(images, self.field(draw, *images.shape[-2:]), self.outside(images))

    def field(self, draw: Draw, height: int, width: int) -> Tensor:
        """(B,2,H,W): how many pixels to the right and below the place lies that a pixel comes from."""
        rows, columns = math.ceil(height / self.cell), math.ceil(width / self.cell)  # cells
        sheet = (draw(0) * 2**24).long()[:, None]  # of the number drawn for the image
        places = torch.arange(2 * (rows + 1) * (columns + 1), device=sheet.device)
        pulled = (2 * uniform(0, 0, sheet, places) - 1).view(-1, 2, rows + 1, columns + 1)
        size = (rows * self.cell + 1, columns * self.cell + 1)  # from the first node to the last
        field = F.interpolate(pulled * (self.amount * self.cell), size, mode="bilinear", align_corners=True)
        return field[:, :, :height, :width]


class RandomStrokeWidth(nn.Module):
    """Dark strokes made thicker, or thinner, by up to a pixel on either side, as other weights of a font.

    A pixel goes a random part of the way to the darkest of its surroundings, at most `thicker`, or to the brightest, at
    most `thinner` of it: strokes of a pixel or two would be gone at the end. (Erosion and dilation, as in TrOCR, arXiv
    2109.10282.)
    """

    def __init__(self, thicker: float = 0.8, thinner: float = 0.5):
        super().__init__()
        if not (0 <= thicker <= 1 and 0 <= thinner <= 1):
            raise ValueError(f"thicker={thicker}, thinner={thinner} must be parts of the way, 0..1")
        self.thicker, self.thinner = thicker, thinner

    def forward(self, images: Tensor, draw: Draw) -> Tensor:
        """(B,C,H,W) uint8 -> (B,C,H,W) uint8"""
        amount = 2 * draw(0) - 1  # (B,) in -1..1
        inverted = (amount < 0).to(torch.uint8).mul_(255)[:, None, None, None]  # what is bright grows as what is dark
        other = image_ops.darkest_around(images ^ inverted) ^ inverted
        part = torch.where(amount > 0, amount * self.thicker, -amount * self.thinner)
        return image_ops.blend(images, other, 1 - part)
