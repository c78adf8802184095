"""Augmentation steps that draw operations at random: RandAugment, TrivialAugment, 3-Augment, and colour jitter.

Every sample draws its own operations. The batch is grouped by operation, each of which runs once on its group; shears
and rotations share one resampling. Translations are by whole pixels, so that they are copies. The operations are drawn
on the host, which therefore knows the sizes of the groups without waiting for a GPU.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from vit.data.augment import image_ops
from vit.data.augment.steps import Draw, to_device

_SHEAR_X, _SHEAR_Y, _SHIFT_X, _SHIFT_Y, _ROTATE = range(1, 6)  # 0 is identity
_FACTORS = {6: image_ops.brightness, 7: image_ops.saturation, 8: image_ops.contrast, 9: image_ops.sharpness}
_POSTERIZE, _SOLARIZE, _AUTOCONTRAST, _EQUALIZE = range(10, 14)
_OPERATIONS = 14
_GROUP_OF = torch.arange(_OPERATIONS)  # shears and rotations are one resampling, translations one copy
_GROUP_OF[[_SHEAR_Y, _ROTATE]], _GROUP_OF[_SHIFT_Y] = _SHEAR_X, _SHIFT_X
_BINS = 30  # magnitudes are 0..30, as in the papers


class RandAugment(nn.Module):
    """`num_ops` random operations of `magnitude` 0..30 (arXiv 1909.13719), with torchvision's 14 operations and ranges.

    `std` is the standard deviation of the magnitude per operation (as in timm's "mstd0.5").

    Raises:
        ValueError: `magnitude` or `num_ops` is out of range.
    """

    def __init__(self, num_ops: int = 2, magnitude: float = 9, std: float = 0.0, fill: int = 128):
        super().__init__()
        if not 0 <= magnitude <= _BINS:
            raise ValueError(f"magnitude={magnitude} must be in 0..{_BINS}")
        if not 1 <= num_ops <= 10:
            raise ValueError(f"num_ops={num_ops} must be in 1..10")
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
    """One random operation of random magnitude (arXiv 2103.10158), in torchvision's wide ranges."""

    def __init__(self, fill: int = 128):
        super().__init__()
        self.fill = fill

    def forward(self, images: Tensor, draw: Draw) -> Tensor:
        choice, side, strength = draw.on_host(torch.arange(3)[:, None])  # (B,) each
        return _apply(images, choice, side, (strength * (_BINS + 1)).floor() / _BINS, _WIDE, self.fill)


class ThreeAugment(nn.Module):
    """3-Augment of DeiT III (arXiv 2204.07118): each sample is made gray, solarized or blurred; ColorJitter follows it.
    """

    def __init__(self, sigma: tuple[float, float] = (0.1, 2.0), threshold: int = 128):
        super().__init__()
        self.sigma, self.threshold = tuple(sigma), threshold

    def forward(self, images: Tensor, draw: Draw) -> Tensor:
        sigma = self.sigma[0] + draw(1) * (self.sigma[1] - self.sigma[0])
        groups = _Groups(images, (draw.on_host(0) * 3).long(), 3)
        first, second = groups.images(0), groups.images(1)
        return groups.joined({
            0: [image_ops.gray(first).expand_as(first)],
            1: [image_ops.solarize(second, sigma.new_full((len(second),), self.threshold))],
            2: groups.parts(2, image_ops.gaussian_blur, sigma[groups.rows[2]]),
        })


class ColorJitter(nn.Module):
    """Random brightness, contrast and saturation, in this order; 0.3 means factors of 0.7..1.3.

    Raises:
        ValueError: an amount is negative.
    """

    def __init__(self, brightness: float = 0.3, contrast: float = 0.3, saturation: float = 0.3):
        super().__init__()
        if min(brightness, contrast, saturation) < 0:
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
    groups = _Groups(images, _GROUP_OF[operation], _OPERATIONS)
    changed: dict[int, list[Tensor]] = {}

    def change(
        number: int, function: Callable[..., Tensor], amount: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        """Apply the function to a group; `amount` maps its rows (b,) on the host to their amounts (b,...)."""
        if len(rows := groups.rows_on_host[number]):
            amounts = [] if amount is None else [to_device(amount(rows), images.device)]
            changed[number] = groups.parts(number, function, *amounts)

    size, affine = images.shape[-2:], partial(image_ops.affine, fill=fill)
    translate = partial(image_ops.translate, fill=fill)
    change(_SHEAR_X, affine, lambda rows: _matrices(operation[rows], signed[rows], size, ranges))
    change(_SHIFT_X, translate, lambda rows: _offsets(operation[rows], signed[rows], size, ranges))
    for number, function in _FACTORS.items():
        change(number, function, lambda rows: 1 + ranges.factor * signed[rows])
    change(_POSTERIZE, image_ops.posterize, lambda rows: (strength[rows] * ranges.bits).round())
    change(_SOLARIZE, image_ops.solarize, lambda rows: 255 * (1 - strength[rows]))
    change(_AUTOCONTRAST, image_ops.autocontrast)
    change(_EQUALIZE, image_ops.equalize)
    return groups.joined(changed)


class _Groups:
    """The rows of a batch by group.

    Args:
        images: (B,C,H,W)
        group: (B,) the group of each row, on the host.
        count: number of groups.
    """

    def __init__(self, images: Tensor, group: Tensor, count: int):
        sizes = torch.bincount(group, minlength=count).tolist()
        order = torch.argsort(group, stable=True)
        self.batch = images
        self.rows_on_host = order.split(sizes)  # (b,) of each group
        self.rows = to_device(order, images.device).split(sizes)
        self.inverse = to_device(torch.argsort(order), images.device)  # (B,)

    def images(self, number: int) -> Tensor:
        """The images (b,C,H,W) of a group."""
        return self.batch.index_select(0, self.rows[number])

    def parts(self, number: int, function: Callable[..., Tensor], *amounts: Tensor) -> list[Tensor]:
        """function(images, *amounts) of a group, for `image_ops.at_once` images at a time; amounts (b,...)."""
        count = image_ops.at_once(self.batch)
        rows = self.rows[number].split(count)
        amounts = zip(*(amount.split(count) for amount in amounts), strict=True) if amounts else [()] * len(rows)
        return [function(self.batch.index_select(0, some), *each) for some, each in zip(rows, amounts, strict=True)]

    def joined(self, changed: dict[int, list[Tensor]]) -> Tensor:
        """The batch in its original order, with the changed images of some groups."""
        parts = [part for number in range(len(self.rows)) for part in changed.get(number) or [self.images(number)]]
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
