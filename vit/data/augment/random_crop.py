"""Random crops with resizing: boxes from counters, applied per sample while decoding.

`draws(epoch, index)` returns the random numbers of a whole batch; `box(width, height, target, numbers)` maps those of
one sample and the size of its image to a box (left, top, right, bottom) in pixels.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor

from vit.counters import uniform

Box = tuple[float, float, float, float]

_TRIES = 10
_SLOT = 1000  # first random slot of crops; batch augmentations use 0..999


@dataclass(frozen=True)
class RandomResizedCrop:
    """A box of random area and aspect ratio (arXiv 1409.4842), with torchvision's definition.

    `scale` is the range of the box's area as a fraction of the image's area, `ratio` the range of its width divided by
    its height. With `relative`, `ratio` is a factor of the image's own ratio.

    Raises:
        ValueError: `scale` or `ratio` is not a valid range.
    """

    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    seed: int = 0
    relative: bool = False

    def __post_init__(self) -> None:
        for name, highest, condition in (("scale", 1, "0 < low <= high <= 1"), ("ratio", math.inf, "0 < low <= high")):
            span = getattr(self, name)
            pair = isinstance(span, Sequence) and len(span) == 2 and all(isinstance(end, Real) for end in span)
            if not (pair and 0 < span[0] <= span[1] <= highest):
                raise ValueError(f"{name}={span} must be [low, high] with {condition}")
            object.__setattr__(self, name, tuple(span))

    def draws(self, epoch: Tensor, index: Tensor) -> Tensor:
        """epoch (B,), index (B,) → (B, 4 * tries) numbers in [0, 1)"""
        return uniform(self.seed, epoch[:, None], index[:, None], torch.arange(_SLOT, _SLOT + 4 * _TRIES))

    def box(self, width: int, height: int, target: tuple[int, int], numbers: Sequence[float]) -> Box:
        own = width / height if self.relative else 1.0
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        for attempt in range(0, 4 * _TRIES, 4):
            area, aspect, across, down = numbers[attempt : attempt + 4]
            area = width * height * (self.scale[0] + area * (self.scale[1] - self.scale[0]))
            aspect = own * math.exp(low + aspect * (high - low))
            w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < w <= width and 0 < h <= height:
                return _placed(width, height, w, h, across, down)
        w, h = min(width, round(height * own * self.ratio[1])), min(height, round(width / (own * self.ratio[0])))
        return _placed(width, height, max(w, 1), max(h, 1), 0.5, 0.5)


@dataclass(frozen=True)
class RandomCrop:
    """The largest box of the target's aspect ratio at a random position (DeiT III, arXiv 2204.07118)."""

    seed: int = 0

    def draws(self, epoch: Tensor, index: Tensor) -> Tensor:
        """epoch (B,), index (B,) → (B,2) numbers in [0, 1)"""
        return uniform(self.seed, epoch[:, None], index[:, None], torch.arange(_SLOT, _SLOT + 2))

    def box(self, width: int, height: int, target: tuple[int, int], numbers: Sequence[float]) -> Box:
        aspect = target[1] / target[0]
        w, h = min(width, round(height * aspect)), min(height, round(width / aspect))
        return _placed(width, height, max(w, 1), max(h, 1), *numbers)


Sizing = RandomResizedCrop | RandomCrop


def _placed(width: int, height: int, w: int, h: int, across: float, down: float) -> Box:
    left, top = int(across * (width - w + 1)), int(down * (height - h + 1))
    return left, top, left + w, top + h
