"""Augmentation steps that draw operations at random: RandAugment, TrivialAugment, 3-Augment, and colour jitter.

Every sample draws its own operations. The batch is sorted by operation, each of which runs once on its group, or on a
CPU on a few images at a time; shears and rotations share one resampling. Translations are by whole pixels, so that they
are copies. The operations are drawn on the host, so that the sizes of the groups are available there without waiting
for a GPU.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from vit.data.augment import image_ops
from vit.data.augment.steps import Draw, are_numbers, check_fill, check_range, is_whole, to_device

_SHEAR_X, _SHEAR_Y, _SHIFT_X, _SHIFT_Y, _ROTATE = range(1, 6)  # 0 is identity
_BRIGHTNESS, _SATURATION, _CONTRAST, _SHARPNESS = range(6, 10)
_POSTERIZE, _SOLARIZE, _AUTOCONTRAST, _EQUALIZE = range(10, 14)
_OPERATIONS = 14
_GROUP_OF = torch.arange(_OPERATIONS)  # shears and rotations are one resampling, translations one copy
_GROUP_OF[[_SHEAR_Y, _ROTATE]], _GROUP_OF[_SHIFT_Y] = _SHEAR_X, _SHIFT_X
_BINS = 30  # magnitudes are 0..30, as in the papers
_Operation = Callable[[Tensor, slice], Tensor]  # images (b,C,H,W), their rows in the sorted batch → changed images


class RandAugment(nn.Module):
    """`num_ops` random operations of `magnitude` 0..30 (arXiv 1909.13719), with torchvision's 14 operations and ranges.

    `std` is the standard deviation of the magnitude per operation (as in timm's "mstd0.5").

    Raises:
        ValueError: `magnitude`, `num_ops`, `std` or `fill` is out of range.
    """

    def __init__(self, num_ops: int = 2, magnitude: float = 9, std: float = 0.0, fill: int = 128):
        super().__init__()
        if not (are_numbers(magnitude) and 0 <= magnitude <= _BINS):
            raise ValueError(f"magnitude={magnitude} must be in 0..{_BINS}")
        if not (is_whole(num_ops) and 1 <= num_ops <= 10):
            raise ValueError(f"num_ops={num_ops} must be a whole number in 1..10")
        if not (are_numbers(std) and 0 <= std < math.inf):
            raise ValueError(f"std={std} must be at least 0")
        check_fill(fill)
        self.num_ops, self.magnitude, self.std, self.fill = num_ops, magnitude, std, fill

    def forward(self, images: Tensor, draw: Draw) -> Tensor:
        numbers = draw.on_host(torch.arange(3 * self.num_ops)[:, None]).unflatten(0, (self.num_ops, 3))
        for choice, side, deviation in numbers:  # (B,) each
            strength = torch.full_like(choice, self.magnitude)
            if self.std > 0:
                strength = strength + self.std * _normal(deviation)
            images = _apply(images, choice, side, strength.clamp(0, _BINS) / _BINS, _NARROW, self.fill)
        return images


class TrivialAugment(nn.Module):
    """One random operation of random magnitude (arXiv 2103.10158), in torchvision's wide ranges.

    Raises:
        ValueError: `fill` is out of range.
    """

    def __init__(self, fill: int = 128):
        super().__init__()
        check_fill(fill)
        self.fill = fill

    def forward(self, images: Tensor, draw: Draw) -> Tensor:
        choice, side, strength = draw.on_host(torch.arange(3)[:, None])  # (B,) each
        return _apply(images, choice, side, (strength * (_BINS + 1)).floor() / _BINS, _WIDE, self.fill)


class ThreeAugment(nn.Module):
    """3-Augment of DeiT III (arXiv 2204.07118): each sample is made gray, solarized or blurred; ColorJitter follows it.

    `sigma` is the range of the blur's standard deviation in pixels, `threshold` that of solarization.

    Raises:
        ValueError: `sigma` or `threshold` is out of range.
    """

    def __init__(self, sigma: tuple[float, float] = (0.1, 2.0), threshold: int = 128):
        super().__init__()
        check_range("sigma", sigma)
        if not (are_numbers(threshold) and 0 <= threshold <= 255):
            raise ValueError(f"threshold={threshold} must be in 0..255")
        self.sigma, self.threshold = tuple(sigma), threshold
        self.radius = max(math.ceil(3 * self.sigma[1]), image_ops.BLUR_RADIUS)

    def forward(self, images: Tensor, draw: Draw) -> Tensor:
        sigma = self.sigma[0] + draw(1) * (self.sigma[1] - self.sigma[0])
        groups = _Groups(images, (draw.on_host(0) * 3).long(), 3)
        sigma = sigma[groups.order]
        return groups.changed({
            0: lambda some, rows: image_ops.gray(some).expand_as(some),
            1: lambda some, rows: image_ops.solarize(some, torch.full_like(sigma[rows], self.threshold)),
            2: lambda some, rows: image_ops.gaussian_blur(some, sigma[rows], self.radius),
        })


class ColorJitter(nn.Module):
    """Random brightness, contrast and saturation, in this order; 0.3 means factors of 0.7..1.3.

    Raises:
        ValueError: an amount is negative.
    """

    def __init__(self, brightness: float = 0.3, contrast: float = 0.3, saturation: float = 0.3):
        super().__init__()
        each = (brightness, contrast, saturation)
        if not (are_numbers(*each) and all(0 <= amount < math.inf for amount in each)):
            amounts = f"brightness={brightness}, contrast={contrast}, saturation={saturation}"
            raise ValueError(f"{amounts} must be at least 0")
        self.amounts = (brightness, contrast, saturation)

    def forward(self, images: Tensor, draw: Draw) -> Tensor:
        numbers = draw(torch.arange(3)[:, None])  # (3,B)
        for slot, operation in enumerate((image_ops.brightness, image_ops.contrast, image_ops.saturation)):
            if self.amounts[slot] > 0:
                factor = 1 + self.amounts[slot] * (2 * numbers[slot] - 1)
                images = operation(images, factor.clamp(min=0))
        return images


class _Ranges:
    """The amounts of operations at full magnitude; `shift` maps the side of the image to pixels."""

    def __init__(self, shear: float, shift: Callable[[int], float], degrees: float, factor: float, bits: int):
        self.shear, self.shift, self.degrees, self.factor, self.bits = shear, shift, degrees, factor, bits


_NARROW = _Ranges(0.3, lambda side: side * 150 / 331, 30.0, 0.9, 4)
_WIDE = _Ranges(0.99, lambda side: 32.0, 135.0, 0.99, 6)


def _apply(images: Tensor, choice: Tensor, side: Tensor, strength: Tensor, ranges: _Ranges, fill: int) -> Tensor:
    """One operation per sample: `choice` and `side` (B,) in [0, 1) select it and its sign, `strength` (B,) is in 0..1.
    All of them are on the host.
    """
    operation = (choice * _OPERATIONS).long()
    signed = torch.where(side < 0.5, -strength, strength)
    size, groups = images.shape[-2:], _Groups(images, _GROUP_OF[operation], _OPERATIONS)
    amounts = torch.column_stack([
        _matrices(operation, signed, size, ranges).flatten(1), _offsets(operation, signed, size, ranges),
        1 + ranges.factor * signed, (strength * ranges.bits).round(), 255 * (1 - strength),
    ])
    matrix, offset, factor, bits, threshold = groups.sorted(amounts).split([6, 2, 1, 1, 1], dim=1)
    matrix, offset = matrix.unflatten(1, (2, 3)), offset.long()
    factor, bits, threshold = factor.flatten(), bits.flatten(), threshold.flatten()
    return groups.changed({
        _SHEAR_X: lambda some, rows: image_ops.affine(some, matrix[rows], fill),
        _SHIFT_X: lambda some, rows: image_ops.translate(some, offset[rows], fill),
        _BRIGHTNESS: lambda some, rows: image_ops.brightness(some, factor[rows]),
        _SATURATION: lambda some, rows: image_ops.saturation(some, factor[rows]),
        _CONTRAST: lambda some, rows: image_ops.contrast(some, factor[rows]),
        _SHARPNESS: lambda some, rows: image_ops.sharpness(some, factor[rows]),
        _POSTERIZE: lambda some, rows: image_ops.posterize(some, bits[rows]),
        _SOLARIZE: lambda some, rows: image_ops.solarize(some, threshold[rows]),
        _AUTOCONTRAST: lambda some, rows: image_ops.autocontrast(some),
        _EQUALIZE: lambda some, rows: image_ops.equalize(some),
    })


class _Groups:
    """A batch that is sorted by group.

    Args:
        images: (B,C,H,W)
        group: (B,) the group of each image, on the host.
        count: number of groups.
    """

    def __init__(self, images: Tensor, group: Tensor, count: int):
        order = torch.argsort(group, stable=True)
        self.sizes = torch.bincount(group, minlength=count).tolist()
        self.order_on_host, self.order = order, to_device(order, images.device)
        self.inverse = to_device(torch.argsort(order), images.device)
        self.images = images.index_select(0, self.order)

    def sorted(self, numbers: Tensor) -> Tensor:
        """Numbers (B,...) on the host, of the images in their original order → sorted, on the device of the images."""
        return to_device(numbers[self.order_on_host], self.images.device)

    def changed(self, operations: dict[int, _Operation]) -> Tensor:
        """The batch in its original order, with the images of some groups changed by the operation of the group."""
        parts, start = [], 0
        for number, size in enumerate(self.sizes):
            end = start + size
            operation, count = operations.get(number), image_ops.at_once(self.images)
            for first in range(start, end, count):
                rows = slice(first, min(first + count, end))
                parts.append(self.images[rows] if operation is None else operation(self.images[rows], rows))
            start = end
        return torch.cat(parts).index_select(0, self.inverse)  # 10x as fast as index_copy_


def _matrices(operation: Tensor, signed: Tensor, size: tuple[int, int], ranges: _Ranges) -> Tensor:
    """(B,2,3) affine maps from output to input positions, in pixels from the upper left corner."""
    height, width = size
    matrix = torch.eye(2, 3).repeat(len(signed), 1, 1)
    matrix[:, 0, 1] = torch.where(operation == _SHEAR_X, ranges.shear * signed, 0.0)
    matrix[:, 1, 0] = torch.where(operation == _SHEAR_Y, ranges.shear * signed, 0.0)
    angle = torch.where(operation == _ROTATE, math.radians(ranges.degrees) * signed, 0.0)
    return _rotated(matrix, angle, width / 2, height / 2)


def _offsets(operation: Tensor, signed: Tensor, size: tuple[int, int], ranges: _Ranges) -> Tensor:
    """(B,2) translations to the right and downwards in pixels."""
    sides = torch.stack([operation == _SHIFT_X, operation == _SHIFT_Y], dim=1)  # (B,2)
    most = torch.tensor([ranges.shift(side) for side in reversed(size)])
    return (sides * most * signed[:, None]).trunc().long()


def _rotated(matrix: Tensor, angle: Tensor, x: float, y: float) -> Tensor:
    """The maps of shears, or for angles other than 0 the counter-clockwise rotation about (x, y)."""
    cos, sin = angle.cos(), angle.sin()
    turn = torch.stack([cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y], dim=1).view(-1, 2, 3)
    return torch.where((angle != 0)[:, None, None], turn, matrix)


def _normal(u: Tensor) -> Tensor:
    """Uniform numbers → standard normal numbers."""
    return math.sqrt(2) * torch.erfinv(2 * (u + 2.0**-25) - 1)
