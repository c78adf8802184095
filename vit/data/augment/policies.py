"""Augmentation steps that draw operations at random: RandAugment, TrivialAugment and 3-Augment.

Every sample draws its own operations. Each operation runs on all images that drew it at once; on a CPU, on a few of
them at a time. Shears and rotations share one group and one resampling, but on a CPU shears of large images are
resampled along one axis only. Translations are by whole pixels, so that they are copies. The operations are drawn on
the host, because Python needs the sizes of the groups and would have to wait for a GPU.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from vit.data.augment import image_ops
from vit.data.augment.distortions import FilledStep
from vit.data.augment.steps import (
    ColorJitter,  # noqa: F401  was in this module, which a user's config may name
    Draw,
    OverwritingStep,
    are_numbers,
    check_probability,
    check_range,
    is_whole,
    one_by_one,
    to_device,
)

_SHEAR_X, _SHEAR_Y, _SHIFT_X, _SHIFT_Y, _ROTATE = range(1, 6)  # 0 is identity
_BRIGHTNESS, _SATURATION, _CONTRAST, _SHARPNESS = range(6, 10)
_POSTERIZE, _SOLARIZE, _AUTOCONTRAST, _EQUALIZE, _INVERT, _SOLARIZE_ADD = range(10, 16)
_OPERATIONS = 16
_NAMES = ("identity", "shear_x", "shear_y", "translate_x", "translate_y", "rotate", "brightness", "color", "contrast",
          "sharpness", "posterize", "solarize", "autocontrast", "equalize", "invert", "solarize_add")
_GROUP_IF_LARGE = torch.arange(_OPERATIONS)
_GROUP_IF_LARGE[_SHIFT_Y] = _SHIFT_X  # one copy for both translations
_GROUP = _GROUP_IF_LARGE.clone()
_GROUP[[_SHEAR_X, _SHEAR_Y]] = _ROTATE  # one resampling for all three
_BINS = 30  # magnitudes are 0..30, as in torchvision and in arXiv 2103.10158
_Operation = Callable[[Tensor, slice], Tensor]  # images (b,C,H,W), their rows in the sorted batch → changed images


class RandAugment(FilledStep, OverwritingStep):
    """`num_ops` random operations of `magnitude` 0..30 (arXiv 1909.13719), with torchvision's 14 operations and ranges.

    timm and the code of the paper count from 0 to 10: their magnitude 9 is 27. `std` is the standard deviation of the
    magnitude per operation, on the same scale: timm's "mstd0.5" is 1.5. An operation is applied with probability `p`,
    which is 0.5 in timm.

    `fill`, the value of pixels from outside the image, is a number or a colour, see `FilledStep`; 128 is that of the
    authors' code. It is the mean of ImageNet in timm, 0 in torchvision. Pixels are interpolated bilinearly, in
    torchvision by default not at all, in timm bicubically as well; translations are by whole pixels, rounded down.

    Args:
        operations: "torchvision"; "timm" for the 15 operations of timm's "inc1" and their ranges: inversion and
            additive solarization in place of the identity, and posterization that leaves 4 bits at magnitude 0 and
            none at 30, in torchvision 8 and 4; or names of operations, with the ranges of torchvision.

    Raises:
        ValueError: `magnitude`, `num_ops`, `std`, `fill` or `p` is out of range, or `operations` is unknown.
    """

    def __init__(
        self,
        num_ops: int = 2,
        magnitude: float = 9,
        std: float = 0.0,
        fill: int | Sequence[int] = 128,
        p: float = 1.0,
        operations: str | Sequence[str] = "torchvision",
    ):
        super().__init__(fill)
        if not (are_numbers(magnitude) and 0 <= magnitude <= _BINS):
            raise ValueError(f"magnitude={magnitude} must be in 0..{_BINS}")
        if not (is_whole(num_ops) and 1 <= num_ops <= 10):
            raise ValueError(f"num_ops={num_ops} must be a whole number in 1..10")
        if not (are_numbers(std) and 0 <= std < math.inf):
            raise ValueError(f"std={std} must be at least 0")
        check_probability(p)
        self.num_ops, self.magnitude, self.std, self.p = num_ops, magnitude, std, p
        self.operations, (self.numbers, self.ranges) = operations, _operations(operations)

    def forward(self, images: Tensor, draw: Draw) -> Tensor:
        numbers = draw.on_host(torch.arange(3 * self.num_ops)[:, None]).unflatten(0, (self.num_ops, 3))
        operations = self.numbers[(numbers[:, 0] * len(self.numbers)).long()]  # (num_ops,B)
        if self.p < 1:
            applied = draw.on_host(torch.arange(3 * self.num_ops, 4 * self.num_ops)[:, None]) < self.p  # (num_ops,B)
            operations = operations * applied  # 0 is the identity
        overwrite, fill = draw.overwrite, self.fill_for(images)
        for operation, (_, sign, deviation) in zip(operations, numbers, strict=True):  # (B,) each, in [0, 1)
            strength = torch.full_like(sign, self.magnitude)
            if self.std > 0:
                strength = strength + self.std * _normal(deviation)
            strength = strength.clamp(0, _BINS) / _BINS
            images = _apply(images, operation, sign, strength, self.ranges, fill, overwrite)
            overwrite = True
        return images


class TrivialAugment(FilledStep, OverwritingStep):
    """One random operation of random magnitude (arXiv 2103.10158), in torchvision's wide ranges; `fill` and
    interpolation as in `RandAugment`.

    Raises:
        ValueError: `fill` is out of range.
    """

    def __init__(self, fill: int | Sequence[int] = 128):
        super().__init__(fill)

    def forward(self, images: Tensor, draw: Draw) -> Tensor:
        choice, sign, strength = draw.on_host(torch.arange(3)[:, None])  # (B,) each, in [0, 1)
        strength = (strength * (_BINS + 1)).floor() / _BINS
        operation = (choice * len(_TORCHVISION)).long()
        return _apply(images, operation, sign, strength, _WIDE, self.fill_for(images), draw.overwrite)


class ThreeAugment(OverwritingStep):
    """3-Augment of DeiT III (arXiv 2204.07118): each sample is made gray, solarized or blurred. ColorJitter is the next
    step in the paper.

    `sigma` is the range of the blur's standard deviation in pixels; solarization inverts pixels from `threshold` on.

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
        return groups.apply({
            0: lambda group, rows: image_ops.gray(group).expand_as(group),
            1: lambda group, rows: image_ops.solarize(group, torch.full_like(sigma[rows], self.threshold)),
            2: lambda group, rows: image_ops.gaussian_blur(group, sigma[rows], self.radius),
        }, draw.overwrite)


class _Ranges:
    """The amounts of the operations at full magnitude.

    Args:
        shear: tangent of the angle.
        shift: maps a side of the image to a translation, both in pixels.
        degrees: angle of rotation.
        factor: largest change of the factor of brightness, contrast, saturation and sharpness.
        bits: maps strengths in [0, 1] to the number of bits that posterization removes.
        threshold: maps strengths in [0, 1] to the threshold of solarization.
    """

    def __init__(
        self,
        shear: float,
        shift: Callable[[int], float],
        degrees: float,
        factor: float,
        bits: Callable[[Tensor], Tensor],
        threshold: Callable[[Tensor], Tensor] = lambda strength: 255 * (1 - strength),
    ):
        self.shear, self.shift, self.degrees, self.factor = shear, shift, degrees, factor
        self.bits, self.threshold = bits, threshold


_NARROW = _Ranges(0.3, lambda side: side * 150 / 331, 30.0, 0.9, lambda strength: (4 * strength).round())
_WIDE = _Ranges(0.99, lambda side: 32.0, 135.0, 0.99, lambda strength: (6 * strength).round())
_OF_TIMM = _Ranges(0.3, lambda side: side * 0.45, 30.0, 0.9, lambda strength: 4 + (4 * strength).floor(),
                   lambda strength: 256 - (256 * strength).floor())
_TORCHVISION = _NAMES[:_INVERT]
_SETS = {"torchvision": (_TORCHVISION, _NARROW), "timm": (_NAMES[_SHEAR_X:], _OF_TIMM)}


def _operations(chosen: str | Sequence[str]) -> tuple[Tensor, _Ranges]:
    """The numbers of the operations and their ranges; raises ValueError for unknown or repeated names."""
    names, ranges = _SETS.get(chosen, ((), _NARROW)) if isinstance(chosen, str) else (chosen, _NARROW)
    known = isinstance(names, Sequence) and len(names) > 0 and all(name in _NAMES for name in names)
    if not known or len(set(names)) < len(names):
        raise ValueError(f"operations={chosen} must be {' or '.join(_SETS)}, or a list of different names of "
                         f"{', '.join(_NAMES)}")
    return torch.tensor([_NAMES.index(name) for name in names]), ranges


def _apply(
    images: Tensor,
    operation: Tensor,
    sign: Tensor,
    strength: Tensor,
    ranges: _Ranges,
    fill: int | Tensor,
    overwrite: bool,
) -> Tensor:
    """Apply one operation to each of the images (B,C,H,W), which may be overwritten if `overwrite`.

    Args:
        operation: (B,) the number of the operation; like `sign` and `strength` on the host.
        sign: (B,) in [0, 1); below 0.5 the amount is negative.
        strength: (B,) in [0, 1], relative to the amount at full magnitude.
    """
    signed = torch.where(sign < 0.5, -strength, strength)
    group_of = _GROUP_IF_LARGE if one_by_one(images) else _GROUP
    size, groups = images.shape[-2:], _Groups(images, group_of[operation], _OPERATIONS)
    amounts = torch.column_stack([
        _matrices(operation, signed, size, ranges).flatten(1), _offsets(operation, signed, size, ranges),
        1 + ranges.factor * signed, ranges.bits(strength), ranges.threshold(strength), 110 * strength,
    ])
    matrix, offset, *single = groups.sorted(amounts).split([6, 2, 1, 1, 1, 1], dim=1)
    matrix, offset = matrix.unflatten(1, (2, 3)), offset.long()
    factor, bits, threshold, added = (column.flatten() for column in single)
    return groups.apply({
        _SHEAR_X: lambda group, rows: image_ops.shear_rows(group, matrix[rows, 0, 1], fill),
        _SHEAR_Y: lambda group, rows: image_ops.shear_columns(group, matrix[rows, 1, 0], fill),
        _ROTATE: lambda group, rows: image_ops.affine(group, matrix[rows], fill),
        _SHIFT_X: lambda group, rows: image_ops.translate(group, offset[rows], fill),
        _BRIGHTNESS: lambda group, rows: image_ops.brightness(group, factor[rows]),
        _SATURATION: lambda group, rows: image_ops.saturation(group, factor[rows]),
        _CONTRAST: lambda group, rows: image_ops.contrast(group, factor[rows]),
        _SHARPNESS: lambda group, rows: image_ops.sharpness(group, factor[rows]),
        _POSTERIZE: lambda group, rows: image_ops.posterize(group, bits[rows]),
        _SOLARIZE: lambda group, rows: image_ops.solarize(group, threshold[rows]),
        _AUTOCONTRAST: lambda group, rows: image_ops.autocontrast(group),
        _EQUALIZE: lambda group, rows: image_ops.equalize(group),
        _INVERT: lambda group, rows: image_ops.invert(group),
        _SOLARIZE_ADD: lambda group, rows: image_ops.solarize_add(group, added[rows]),
    }, overwrite)


class _Groups:
    """The images of a batch by group, so that each operation runs on the images of its group.

    Args:
        images: (B,C,H,W)
        group: (B,) the group of each image, on the host.
        count: number of groups.
    """

    def __init__(self, images: Tensor, group: Tensor, count: int):
        self.images, self.order_on_host = images, torch.argsort(group, stable=True)
        self.sizes = torch.bincount(group, minlength=count).tolist()
        self.order = to_device(self.order_on_host, images.device)

    def sorted(self, numbers: Tensor) -> Tensor:
        """numbers (B,...) on the host, in the order of the batch → sorted by group, on the device of the images"""
        return to_device(numbers[self.order_on_host], self.images.device)

    def apply(self, operations: dict[int, _Operation], overwrite: bool) -> Tensor:
        """Apply an operation to each group → the batch (B,C,H,W), in place if `overwrite`. An operation is called with
        images and with the slice of their positions in `sorted` numbers. Groups without an operation are unchanged.
        """
        result = self.images.contiguous() if overwrite else torch.empty_like(
            self.images, memory_format=torch.contiguous_format)
        images, order, changed = self.images, self.order, result
        if result.device.type == "cpu":  # NumPy assigns to selected images several times as fast as torch
            images, order, changed = images.numpy(), order.numpy(), changed.numpy()
        start, count = 0, image_ops.at_once(result)
        for number, size in enumerate(self.sizes):
            operation, end = operations.get(number), start + size
            for first in range(start, end, count):
                rows = slice(first, min(first + count, end))
                part = torch.as_tensor(images[order[rows]])
                changed[order[rows]] = part if operation is None else operation(part, rows)
            start = end
        return result


def _matrices(operation: Tensor, signed: Tensor, size: tuple[int, int], ranges: _Ranges) -> Tensor:
    """(B,2,3) affine maps from output to input positions, in pixels from the upper left corner."""
    height, width = size
    matrix = torch.eye(2, 3).repeat(len(signed), 1, 1)
    matrix[:, 0, 1] = torch.where(operation == _SHEAR_X, ranges.shear * signed, 0.0)
    matrix[:, 1, 0] = torch.where(operation == _SHEAR_Y, ranges.shear * signed, 0.0)
    angle = torch.where(operation == _ROTATE, math.radians(ranges.degrees) * signed, 0.0)
    return _with_rotation(matrix, angle, width / 2, height / 2)


def _offsets(operation: Tensor, signed: Tensor, size: tuple[int, int], ranges: _Ranges) -> Tensor:
    """(B,2) translations to the right and downwards in pixels."""
    sides = torch.stack([operation == _SHIFT_X, operation == _SHIFT_Y], dim=1)  # (B,2)
    most = torch.tensor([ranges.shift(side) for side in reversed(size)])
    return (sides * most * signed[:, None]).trunc().long()


def _with_rotation(matrix: Tensor, angle: Tensor, x: float, y: float) -> Tensor:
    """`matrix` (B,2,3) where `angle` (B,) is 0, otherwise the counter-clockwise rotation about (x, y), in radians."""
    cos, sin = angle.cos(), angle.sin()
    turn = torch.stack([cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y], dim=1).view(-1, 2, 3)
    return torch.where((angle != 0)[:, None, None], turn, matrix)


def _normal(u: Tensor) -> Tensor:
    """Uniform numbers in [0, 1) → standard normal numbers, of the same shape."""
    return math.sqrt(2) * torch.erfinv(2 * (u + 2.0**-25) - 1)
