"""Batch augmentation of uint8 images on any device; all random numbers are functions of (seed, epoch, index).

`Augment` applies steps in order. A step maps images (B,C,H,W) uint8 and `draw(slot)` → (B,) numbers in [0, 1) to images
of the same shape. The augmentation of a sample therefore depends neither on its batch nor on worker, rank or device.

If the counters are on the host and the images on a GPU, the numbers are computed on the host, so that a step can choose
sizes by them (`draw.on_host`) and never waits for the GPU.
"""

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.counters import hash_counters, hash_to_int, random_bytes, to_unit_interval
from vit.data.augment import image_ops

SLOTS = 50  # random numbers per step and sample; slots from 1000 on are used by the random crops
LARGE = 80 * 80  # pixels per image from which on the chosen images of a batch are changed one by one on a CPU


class Draw:
    """The random numbers of a step: `draw(slot)` → (B,), or (S,B) for slots (S,1), on the device of the images.

    Args:
        samples: (B,) hashes of the counters of the samples, on the host or on `device`.
        first: the first of the step's slots.
        device: the device of the images.
        overwrite: whether an `OverwritingStep` may overwrite its images.
    """

    def __init__(self, samples: Tensor, first: int, device: torch.device, overwrite: bool = False):
        self.samples, self.first, self.device, self.overwrite = samples, first, device, overwrite

    def __call__(self, slot: int | Tensor) -> Tensor:
        return to_device(self._numbers(slot), self.device)

    def on_host(self, slot: int | Tensor) -> Tensor:
        """The same numbers on the host; waits for the GPU if the counters are there."""
        return self._numbers(slot).cpu()

    def _numbers(self, slot: int | Tensor) -> Tensor:
        """uniform(seed, epoch, index, first + slot)"""
        slot = to_device(slot, self.samples.device) if isinstance(slot, Tensor) else slot
        return to_unit_interval(hash_counters(self.first + slot, state=self.samples))


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of any shape on the device, without waiting for the device."""
    return tensor.to(device, non_blocking=True)


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number, which true and 2.0 are not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def are_numbers(*values: Any) -> bool:
    return all(isinstance(value, Real) for value in values)


def check_probability(p: float) -> None:
    """Raises ValueError if `p` is not a probability."""
    if not (are_numbers(p) and 0 <= p <= 1):
        raise ValueError(f"p={p} must be in 0..1")


def check_fill(fill: Any) -> None:
    """Raises ValueError if `fill` is not the value of a uint8 pixel."""
    if not (is_whole(fill) and 0 <= fill <= 255):
        raise ValueError(f"fill={fill} must be a whole number in 0..255")


def check_range(name: str, span: Any, highest: float = math.inf) -> None:
    """Raises ValueError if `span` is not (low, high) with 0 <= low <= high <= highest and high above 0."""
    pair = isinstance(span, Sequence) and len(span) == 2 and are_numbers(*span)
    if not (pair and 0 <= span[0] <= span[1] <= highest and span[1] > 0):
        limit = "" if highest == math.inf else f" <= {highest}"
        raise ValueError(f"{name}={span} must be [low, high] with 0 <= low <= high{limit} and high above 0")


class Augment(nn.Module):
    """Applies steps in order; each has its own range of random slots, so that appending a step does not change the
    others.

    Raises:
        ValueError: there are too many steps.
    """

    def __init__(self, steps: Sequence[nn.Module] = (), seed: int = 0):
        super().__init__()
        if len(steps) > 1000 // SLOTS:
            raise ValueError(
                f"{len(steps)} augmentation steps are too many; at most {1000 // SLOTS} are supported"
            )
        self.steps, self.seed = nn.ModuleList(steps), seed

    def forward(self, images: Tensor, index: Tensor, epoch: int | Tensor) -> Tensor:
        """images (B,C,H,W) uint8, index (B,), epoch (a number or (B,)) → (B,C,H,W) uint8

        Index and epoch may be on the host while the images are on a GPU.

        Raises:
            TypeError: the images are not uint8.
        """
        if images.dtype != torch.uint8:
            raise TypeError(f"augmentation requires uint8 images, got {images.dtype}; normalize after it")
        samples = hash_counters(self.seed, epoch, index)  # (B,) hash of the counters that all numbers of a sample share
        own = False  # whether the images are the result of a step, and not those of the caller
        for number, step in enumerate(self.steps):
            overwrites = OverwritingStep in type(step).__bases__  # a subclass of such a step may keep its images
            changed = step(images, Draw(samples, number * SLOTS, images.device, overwrite=own and overwrites))
            own = overwrites and (own or changed is not images)
            images = changed
        return images


class OverwritingStep(nn.Module):
    """Base class of steps that overwrite their images if `draw.overwrite`, which saves a pass over the batch.

    Such a step returns its images, overwritten or unchanged, or new ones, but no view of either. `draw.overwrite` is
    False for subclasses of such a step, which may keep their images.
    """


class HorizontalFlip(OverwritingStep):
    """Flips images horizontally with probability p; raises ValueError if it is outside 0..1."""

    def __init__(self, p: float = 0.5):
        super().__init__()
        check_probability(p)
        self.p = p

    def forward(self, images: Tensor, draw: Draw) -> Tensor:
        return _flipped(images, draw(0) < self.p, -1, draw.overwrite)


class VerticalFlip(OverwritingStep):
    """Flips images vertically with probability p; raises ValueError if it is outside 0..1."""

    def __init__(self, p: float = 0.5):
        super().__init__()
        check_probability(p)
        self.p = p

    def forward(self, images: Tensor, draw: Draw) -> Tensor:
        return _flipped(images, draw(0) < self.p, -2, draw.overwrite)


class PadCrop(nn.Module):
    """Random translation by up to `padding` pixels: pads all sides and crops the original size at a random position.

    Pads with the reflected image if `reflect`, otherwise with `fill`.

    Raises:
        ValueError: `padding` is negative, or `fill` outside 0..255.
    """

    def __init__(self, padding: int = 4, reflect: bool = False, fill: int = 0):
        super().__init__()
        if not (is_whole(padding) and padding >= 0):
            raise ValueError(f"padding={padding} must be a whole number of at least 0 pixels")
        check_fill(fill)
        self.padding, self.reflect, self.fill = padding, reflect, fill

    def forward(self, images: Tensor, draw: Draw) -> Tensor:
        """(B,C,H,W) uint8 → (B,C,H,W) uint8; raises ValueError if the image is too small to reflect."""
        pad, (height, width) = self.padding, images.shape[-2:]
        if self.reflect and pad >= min(height, width):
            raise ValueError(f"padding {pad} must be below the image size {height}x{width} with reflect=true; lower it")
        right, down = (draw(torch.arange(2)[:, None]) * (2 * pad + 1)).long()
        padded = _pad(images, pad, self.reflect, self.fill)
        windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # (B,C,2p+1,2p+1,H,W), a view
        return windows[torch.arange(len(images), device=images.device), :, down, right]


class RandomErasing(OverwritingStep):
    """Overwrites a random rectangle with uniform noise (arXiv 1708.04896): `area` is the range of its fraction of the
    image, `ratio` that of height over width. The ranges are those of timm, whose noise is normal; the area is at most
    0.4 in the paper.

    Raises:
        ValueError: `p` is outside 0..1, or `area` or `ratio` is not a valid range.
    """

    def __init__(
        self, p: float = 0.25, area: tuple[float, float] = (0.02, 1 / 3), ratio: tuple[float, float] = (0.3, 1 / 0.3)
    ):
        super().__init__()
        check_probability(p)
        check_range("area", area, 1)
        check_range("ratio", ratio)
        if ratio[0] == 0:
            raise ValueError(f"ratio={ratio} must be above 0")
        self.p, self.area, self.ratio = p, tuple(area), tuple(ratio)

    def forward(self, images: Tensor, draw: Draw) -> Tensor:
        numbers = draw.on_host(torch.arange(6)[:, None])  # (6,B)
        chosen = (numbers[0] < self.p).nonzero().squeeze(1)
        if len(chosen) == 0:
            return images
        height, width = images.shape[-2:]
        area, aspect, across, down, noise = numbers[1:, chosen]
        area = height * width * (self.area[0] + area * (self.area[1] - self.area[0]))
        low, high = torch.tensor(self.ratio).log().tolist()
        aspect = torch.exp(low + aspect * (high - low))
        h, w = (area * aspect).sqrt().round().clamp(1, height), (area / aspect).sqrt().round().clamp(1, width)
        top, left = (down * (height - h + 1)).floor(), (across * (width - w + 1)).floor()
        boxes = torch.stack([chosen, top, left, h, w, noise * 2**24]).long()  # (6,E)
        images = writable(images, draw.overwrite)
        (noise_in_slices if one_by_one(images) else noise_in_pixels)(images, boxes)
        return images


def writable(images: Tensor, overwrite: bool) -> Tensor:
    """Contiguous images that may be overwritten: the same or a copy."""
    return images.contiguous() if overwrite else images.clone(memory_format=torch.contiguous_format)


def noise_in_pixels(images: Tensor, boxes: Tensor) -> None:
    """Overwrites boxes of images (B,C,H,W) uint8, contiguous, with noise. All pixels are written in one operation.

    Args:
        boxes: (6,E) on the host: row in the batch, top, left, height, width and seed of each box.
    """
    channels, height, width = images.shape[1:]
    count = int((boxes[3] * boxes[4]).sum())
    rows, top, left, h, w, seeds = to_device(boxes, images.device)
    box = torch.repeat_interleave(h * w, output_size=count)  # (P,) the box of each pixel
    offset = torch.arange(count, device=images.device) - ((h * w).cumsum(0) - h * w)[box]  # within its box
    pixel = (top[box] + offset // w[box]) * width + left[box] + offset % w[box]
    channel = torch.arange(channels, device=images.device)[:, None]
    bits = hash_counters(0, 0, seeds[box], channel * (height * width) + pixel)  # (C,P), different for each image
    images.flatten(2)[rows[box], :, pixel] = _highest_byte(bits).T


def noise_in_slices(images: Tensor, boxes: Tensor) -> None:
    """`noise_in_pixels` box by box, which is quicker for large images on a CPU."""
    counters = np.arange(images[0].numel(), dtype=np.uint64).reshape(images.shape[1:])
    pixels = images.numpy()
    for row, top, left, h, w, seed in boxes.T.tolist():
        area = (slice(None), slice(top, top + h), slice(left, left + w))
        pixels[row][area] = random_bytes(counters[area], hash_to_int(0, 0, seed))


def _highest_byte(bits: Tensor) -> Tensor:
    """The upper 8 of 64 bits (int64) as uint8."""
    return (bits >> 56).to(torch.uint8)


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


class RandomChannelPermutation(nn.Module):
    """Shuffles red, green and blue, for images whose colours carry no information; gray images are unchanged."""

    def forward(self, images: Tensor, draw: Draw) -> Tensor:
        channels = torch.arange(images.shape[1])[:, None]
        order = draw(channels).argsort(0).T[:, :, None, None]  # (B,C,1,1)
        return images.gather(1, order.expand_as(images))


def box_mask(top: Tensor, left: Tensor, box_height: Tensor, box_width: Tensor, height: int, width: int) -> Tensor:
    """(B,) corners and sizes in pixels → bool (B,H,W), True inside the box."""
    rows = torch.arange(height, device=top.device)
    columns = torch.arange(width, device=top.device)
    inside_rows = (rows >= top[:, None]) & (rows < (top + box_height)[:, None])
    inside_columns = (columns >= left[:, None]) & (columns < (left + box_width)[:, None])
    return inside_rows[:, :, None] & inside_columns[:, None, :]


def one_by_one(images: Tensor) -> bool:
    """Whether it is quicker to change the chosen images of a batch one by one than all at once."""
    return images.device.type == "cpu" and images.shape[-2] * images.shape[-1] >= LARGE


def _flipped(images: Tensor, chosen: Tensor, dim: int, overwrite: bool) -> Tensor:
    """uint8 (B,C,H,W) → the same with the chosen images (B,) flipped along a dimension.

    On a CPU bitwise operations take a fraction of the time of `torch.where`, which reads a broadcast condition value by
    value, and large images are flipped one by one.
    """
    if one_by_one(images):
        images = writable(images, overwrite)
        for row in chosen.nonzero().flatten().tolist():
            images[row] = images[row].flip(dim)
        return images
    mask = chosen.to(torch.uint8).neg_()[:, None, None, None]  # 255 or 0
    return images.flip(dim).bitwise_xor_(images).bitwise_and_(mask).bitwise_xor_(images)


def _pad(images: Tensor, pad: int, reflect: bool, fill: int) -> Tensor:
    if not reflect:
        return F.pad(images, (pad, pad, pad, pad), value=fill)
    height, width = images.shape[-2:]
    rows, columns = (_mirrored(n, pad, images.device) for n in (height, width))
    return images[:, :, rows[:, None], columns]


def _mirrored(n: int, pad: int, device: torch.device) -> Tensor:
    """Positions -pad..n+pad-1 reflected into 0..n-1 without repeating the edge."""
    position = torch.arange(-pad, n + pad, device=device).abs()
    return torch.where(position >= n, 2 * (n - 1) - position, position)
