"""Progressive training: smaller images and fewer patches at first, which makes the first steps cheaper."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from vit.messages import near_multiples


@dataclass(frozen=True)
class Stage:
    """What the training steps of a part of a run have in common.

    Args:
        image_size: (height, width) in pixels to which training images are scaled; None for no scaling.
        patch_drop: rate at which patches are dropped; None if the run drops none.
    """

    image_size: tuple[int, int] | None = None
    patch_drop: float | None = None

    def scale(self, images: Tensor) -> Tensor:
        """float (B,C,H,W) -> (B,C,height,width), bilinear with antialiasing"""
        if self.image_size is None or images.shape[2:] == self.image_size:
            return images
        return F.interpolate(images, size=self.image_size, mode="bilinear", antialias=True)

    def values(self) -> dict[str, float]:
        """The scheduled values, for the log: `image_size` is the height."""
        values = {"patch_drop": self.patch_drop, "image_size": self.image_size and self.image_size[0]}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class Progressive:
    """A schedule of stages, as in the progressive learning of EfficientNetV2 (Tan and Le 2021, arXiv 2104.00298).

    The stages before the last one divide the steps up to `until` equally. A stage is a function of the optimizer step,
    so that all processes and a resumed run have the same one.

    Args:
        stages: the stages in order.
        until: fraction of all steps after which the last stage begins.
    """

    stages: tuple[Stage, ...]
    until: float

    def stage(self, step: int, total_steps: int) -> Stage:
        """The stage of an optimizer step."""
        earlier = len(self.stages) - 1
        return self.stages[min(earlier, int(earlier * step / max(1.0, self.until * total_steps)))]

    @property
    def image_sizes(self) -> list[tuple[int, int]]:
        """The sizes to which training images are scaled, without repetitions."""
        return list(dict.fromkeys(stage.image_size for stage in self.stages if stage.image_size is not None))

    @property
    def patch_drops(self) -> list[float]:
        """The rate of each stage; empty if the run drops no patches."""
        return [stage.patch_drop for stage in self.stages if stage.patch_drop is not None]


def build_stages(
    count: int,
    image_size: Sequence[int] | None,
    patch_drop: Sequence[float] | None,
    full_size: tuple[int, int],
    patch_size: tuple[int, int],
) -> tuple[Stage, ...]:
    """Stages between a first and a last value, at equal distances; sizes are rounded to whole patches.

    Args:
        image_size: pixels of the shorter side in the first and in the last stage; the other side is scaled alike.
        patch_drop: rates of the first and of the last stage (PatchDropout, Liu et al. 2023, arXiv 2208.07220).
        full_size: (height, width) of the images of the loader.

    Raises:
        ValueError: not two values, or an image size that is too large or not divisible by the patch size.
    """
    sizes = [None] * count if image_size is None else scaled_sizes(count, image_size, full_size, patch_size)
    drops = [None] * count if patch_drop is None else between(count, *two_values("patch_drop", patch_drop))
    return tuple(map(Stage, sizes, drops))


def scaled_sizes(
    count: int, image_size: Sequence[int], full_size: tuple[int, int], patch_size: tuple[int, int]
) -> list[tuple[int, int]]:
    """(height, width) of each stage, divisible by the patch size.

    Raises:
        ValueError: as `build_stages`.
    """
    ends, shorter = two_values("image_size", image_size), min(full_size)
    patch = patch_size[full_size.index(shorter)]
    for size in ends:
        if size > shorter:
            raise ValueError(f"image_size {size} is larger than the images of the run, which are "
                             f"{full_size[0]}x{full_size[1]}; use {shorter} or less")
        if size % patch:
            raise ValueError(f"image_size {size} is not divisible by patch_size {patch}; nearest valid: "
                             f"{near_multiples(size, patch, shorter)}")
    return [
        tuple(max(1, round(side * size / shorter / edge)) * edge
              for side, edge in zip(full_size, patch_size, strict=True))
        for size in between(count, *ends)
    ]


def between(count: int, first: float, last: float) -> list[float]:
    """`count` values from the first to the last at equal distances, both exactly."""
    steps = count - 1
    return [(first * (steps - i) + last * i) / steps for i in range(count)]


def two_values(key: str, values: object) -> Sequence:
    """The first and the last value of a schedule, unchanged.

    Raises:
        ValueError: `values` are not two.
    """
    if not isinstance(values, list | tuple) or len(values) != 2:
        raise ValueError(f"{key} is {values}, but must be the first and the last value, such as "
                         f"{'[128,224]' if key == 'image_size' else '[0.5,0.0]'}")
    return values
