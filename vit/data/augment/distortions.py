"""Augmentation of text images, which must not be mirrored: affine and elastic distortions and stroke width."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from vit.counters import uniform
from vit.data.augment import image_ops
from vit.data.augment.steps import Draw, are_numbers, is_whole, to_device


class FilledStep(nn.Module):
    """Base class of steps that move pixels; `fill` is the colour outside the image.

    `fill` is one number, or red, green and blue, whose luma is used for gray images.

    Raises:
        ValueError: `fill` is not one or three numbers in 0..255.
    """

    def __init__(self, fill: int | Sequence[int]) -> None:
        super().__init__()
        colour = tuple(fill) if isinstance(fill, Sequence) else (fill,) * 3
        if len(colour) != 3 or not all(is_whole(part) and 0 <= part <= 255 for part in colour):
            raise ValueError(f"fill={fill} must be one number in 0..255, or three (red, green, blue)")
        gray = Image.new("RGB", (1, 1), colour).convert("L").getpixel((0, 0))
        self.fill = fill if is_whole(fill) else colour
        for name, values in (("colour", colour), ("gray", (gray,))):
            self.register_buffer(name, torch.tensor(values, dtype=torch.uint8).view(1, -1, 1, 1), persistent=False)

    def fill_for(self, images: Tensor) -> int | Tensor:
        """The fill colour for images (B,C,H,W): a number, or uint8 (1,C,1,1)."""
        if is_whole(self.fill):
            return self.fill
        return to_device(self.colour if images.shape[1] == 3 else self.gray, images.device)


class RandomAffine(FilledStep):
    """Random rotation, scaling, shear and translation about the centre, in one resampling.

    `degrees` and `shear` are angles in degrees, `scale` is the logarithm of the factor per axis, `shift` a fraction of
    the side. Each amount is uniform between minus and plus the given value. `fill`: see `FilledStep`.

    Raises:
        ValueError: an amount is negative.
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
        amounts = (degrees, scale, shear, shift)
        if not (are_numbers(*amounts) and all(0 <= amount < math.inf for amount in amounts)):
            raise ValueError(f"degrees={degrees}, scale={scale}, shear={shear}, shift={shift} must be at least 0")
        self.degrees, self.scale, self.shear, self.shift = degrees, scale, shear, shift

    def forward(self, images: Tensor, draw: Draw) -> Tensor:
        """(B,C,H,W) uint8 → (B,C,H,W) uint8"""
        matrices = to_device(self.matrices(draw, *images.shape[-2:]), images.device)
        return image_ops.affine(images, matrices, self.fill_for(images))

    def matrices(self, draw: Draw, height: int, width: int) -> Tensor:
        """(B,2,3) affine maps from output to input positions, in pixels from the upper left corner; on the host."""
        slots = torch.arange(6)[:, None]
        turn, across, down, shear, right, below = (2 * draw.on_host(slots) - 1).unbind()  # (B,) each in -1..1
        angle = math.radians(self.degrees) * turn
        slant = torch.tan(math.radians(self.shear) * shear)
        sx, sy = torch.exp(self.scale * across), torch.exp(self.scale * down)
        a, b = angle.cos() * sx, slant - angle.sin() * sy
        c, d = angle.sin() * sx, angle.cos() * sy
        x, y = width / 2, height / 2
        tx, ty = x - a * x - b * y + self.shift * width * right, y - c * x - d * y + self.shift * height * below
        return torch.stack([a, b, tx, c, d, ty], dim=1).view(-1, 2, 3)


class RandomLineAffine(RandomAffine):
    """Random rotation, scaling, shear and translation of images of text lines, in one resampling, without moving ink
    out of the image.

    Each amount is uniform between minus and plus the given value, with three limits: the ends of the ink move by at
    most a tenth of the height; ink that would become larger than the image is compressed to the image; and a
    translation ends at the border. `ink_box` finds the ink.

    Args:
        degrees, shear: angles in degrees.
        scale: logarithm of the factor per axis.
        shift: fraction of the height, in both directions.
        fill: as in `FilledStep`.

    Raises:
        ValueError: an amount is negative.
    """

    LIFT = 0.1  # fraction of the height

    def __init__(
        self,
        degrees: float = 1.0,
        scale: float = 0.08,
        shear: float = 5.0,
        shift: float = 0.05,
        fill: int | Sequence[int] = 255,
    ):
        super().__init__(degrees, scale, shear, shift, fill)

    def forward(self, images: Tensor, draw: Draw) -> Tensor:
        """(B,C,H,W) uint8 → (B,C,H,W) uint8"""
        matrices = self.matrices_within(draw, ink_box(images), *images.shape[-2:])
        return image_ops.affine(images, matrices, self.fill_for(images))

    def matrices_within(self, draw: Draw, box: Tensor, height: int, width: int) -> Tensor:
        """box (B,4) of the ink: left, top, right, bottom → (B,2,3) affine maps from output to input positions, in
        pixels from the upper left corner.
        """
        turn, across, down, shear, right, below = (2 * draw(torch.arange(6)[:, None]) - 1).unbind()
        low, high = box[:, :2], box[:, 2:]
        centre, half = (low + high) / 2, (high - low) / 2  # (B,2) each: x, y
        steepest = torch.atan(self.LIFT * height / half[:, 0]).clamp(max=math.radians(self.degrees))
        forward = _linear(steepest * turn, torch.exp(self.scale * across), torch.exp(self.scale * down),
                          torch.tan(math.radians(self.shear) * shear))  # (B,2,2), from input to output
        size = to_device(torch.tensor([width, height]) / 2, box.device)
        reach = (forward.abs() @ half[..., None])[..., 0]  # (B,2) half the size of the transformed box
        fit = (size / reach).clamp(max=1)
        forward, reach = forward * fit[..., None], reach * fit
        moved = centre + self.shift * height * torch.stack([right, below], dim=1)
        moved = moved.maximum(reach).minimum(2 * size - reach)
        back = torch.linalg.inv_ex(forward).inverse  # does not wait for a GPU to check them
        return torch.cat([back, centre[..., None] - back @ moved[..., None]], dim=2)


def _linear(angle: Tensor, sx: Tensor, sy: Tensor, slant: Tensor) -> Tensor:
    """Angle, factors and shear (B,) → rotation after shear after scaling (B,2,2)"""
    cos, sin = angle.cos(), angle.sin()
    upper, lower = [cos * sx, (cos * slant - sin) * sy], [sin * sx, (sin * slant + cos) * sy]
    return torch.stack(upper + lower, dim=1).view(-1, 2, 2)


def ink_box(images: Tensor) -> Tensor:
    """images (B,C,H,W) uint8 → (B,4) float: left, top, right, bottom edge of the ink, in pixels

    Ink is every pixel whose luma differs from the median of the image, the paper, by more than a quarter of the largest
    difference. The box of a blank image is the whole image.
    """
    luma = image_ops.gray(images)[:, 0].float()  # (B,H,W)
    height, width = luma.shape[-2:]
    away = (luma - luma.flatten(1).median(1).values[:, None, None]).abs()
    ink = away * 4 > away.amax((1, 2), keepdim=True)
    ink |= ~ink.any((1, 2))[:, None, None]
    edges = []
    for length, used in ((width, ink.any(1)), (height, ink.any(2))):  # (B,length) each
        positions = torch.arange(length, device=images.device)
        first = positions.where(used, length).amin(1)
        edges.append((first, positions.where(used, -1).amax(1) + 1))
    (left, right), (top, bottom) = edges
    return torch.stack([left, top, right, bottom], dim=1).float()


class RandomElastic(FilledStep):
    """Elastic distortion (Simard et al. 2003), with a grid in place of smoothed noise (Wigington et al. 2017).

    The nodes of a grid, `cell` pixels apart, move by up to `amount` cells along each axis; displacements between them
    are interpolated bilinearly. `fill`: see `FilledStep`.

    Raises:
        ValueError: `amount` is outside [0, 0.5), or `cell` below 2.
    """

    def __init__(self, amount: float = 0.15, cell: int = 16, fill: int | Sequence[int] = 0):
        super().__init__(fill)
        if not (are_numbers(amount) and 0 <= amount < 0.5):
            raise ValueError(f"amount={amount} must be at least 0 and below 0.5, where the grid would fold over")
        if not (is_whole(cell) and cell >= 2):
            raise ValueError(f"cell={cell} must be a whole number of at least 2 pixels")
        self.amount, self.cell = amount, cell

    def forward(self, images: Tensor, draw: Draw) -> Tensor:
        """(B,C,H,W) uint8 → (B,C,H,W) uint8"""
        return image_ops.displace(images, self.field(draw, *images.shape[-2:]), self.fill_for(images))

    def field(self, draw: Draw, height: int, width: int) -> Tensor:
        """(B,2,H,W): offset in pixels, to the right and downwards, of the position that each output pixel samples."""
        rows, columns = math.ceil(height / self.cell), math.ceil(width / self.cell)  # cells
        image = (draw(0) * 2**24).long()[:, None]  # (B,1) the draw of each image as an integer
        slots = torch.arange(2 * (rows + 1) * (columns + 1), device=image.device)
        offsets = (2 * uniform(0, 0, image, slots) - 1).view(-1, 2, rows + 1, columns + 1)  # of the nodes, -1..1
        size = (rows * self.cell + 1, columns * self.cell + 1)  # from the first node to the last
        field = F.interpolate(offsets * (self.amount * self.cell), size, mode="bilinear", align_corners=True)
        return field[:, :, :height, :width]


class RandomStrokeWidth(nn.Module):
    """Makes dark strokes thicker or thinner by up to a pixel on either side: erosion and dilation, as in TrOCR (arXiv
    2109.10282).

    A pixel is blended with the darkest pixel of its neighbourhood with a random weight of at most `thicker`, or with
    the brightest with at most `thinner`. `thinner` is below 1 by default, since strokes of one or two pixels would
    vanish.

    Raises:
        ValueError: a weight is outside 0..1.
    """

    def __init__(self, thicker: float = 0.8, thinner: float = 0.5):
        super().__init__()
        if not (are_numbers(thicker, thinner) and 0 <= thicker <= 1 and 0 <= thinner <= 1):
            raise ValueError(f"thicker={thicker} and thinner={thinner} must be weights in 0..1")
        self.thicker, self.thinner = thicker, thinner

    def forward(self, images: Tensor, draw: Draw) -> Tensor:
        """(B,C,H,W) uint8 → (B,C,H,W) uint8"""
        amount = 2 * draw(0) - 1  # (B,) in -1..1
        inverted = (amount < 0).to(torch.uint8).mul_(255)[:, None, None, None]  # then bright strokes are eroded
        other = image_ops.erode(images ^ inverted) ^ inverted
        part = torch.where(amount > 0, amount * self.thicker, -amount * self.thinner)
        return image_ops.blend(images, other, 1 - part)
