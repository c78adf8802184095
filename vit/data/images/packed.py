"""Images that keep their aspect ratio: their preprocessing, data set and augmentation, in batches without padding."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, Self

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vit.counters import uniform
from vit.data.augment.random_crop import Box, RandomResizedCrop
from vit.data.augment.steps import Augment
from vit.data.decoding.decode import BadImage
from vit.data.images.dataset import ImageDataset
from vit.data.images.preprocessing import INTERPOLATIONS, TORCHVISION, ImageLike, Preprocessing
from vit.data.images.preprocessing_values import as_size
from vit.data.images.resampling import resize_box
from vit.data.splits.split import Split, read_sample
from vit.packed_images import Grid, PackedImages

ASPECT = "aspect"  # the resize rule: each image keeps its aspect ratio
SLOT = 1500  # counter of the random number of patches; random crops use the counters from 1000 on


@dataclass(frozen=True)
class PackedPreprocessing(Preprocessing):
    """A `Preprocessing` that keeps the aspect ratio of each image, as in NaFlex (arXiv 2502.14786): the image is
    resized to whole patches, at most `max_patches` of them, and a batch contains images of different sizes.

    `size` is the image size of the model, whose positions are resampled to the grid of each image. `max_patches` is the
    number of patches of `size` by default. `resize` is always "aspect", and nothing is cropped.

    Raises:
        ValueError: a value is unknown or out of range.
    """

    rules: ClassVar[tuple[str, ...]] = (ASPECT,)

    resize: str = ASPECT
    patch_size: tuple[int, int] = (16, 16)
    max_patches: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "patch_size", as_size(self.patch_size, "patch_size"))
        super().__post_init__()

    def _check(self) -> None:
        super()._check()
        if len(self.patch_size) != 2 or min(self.patch_size) < 1:
            raise ValueError(f"patch_size {self.patch_size} must be (height, width), both at least 1")
        if self.max_patches is None:
            rows, columns = (size // patch for size, patch in zip(self.size, self.patch_size, strict=True))
            object.__setattr__(self, "max_patches", rows * columns)
        if self.max_patches < 1:
            raise ValueError(f"max_patches={self.max_patches} must be at least 1")
        if self.crop_pct != 1:
            raise ValueError(f"crop_pct={self.crop_pct} crops images, which resize={ASPECT} does not; set it to 1")
        if self.draft:
            raise ValueError(f"draft=true needs images of one size, not resize={ASPECT}; set it to false")

    @classmethod
    def of(cls, other: Preprocessing, patch_size: tuple[int, int], max_patches: int | None = None) -> Self:
        """The preprocessing that keeps aspect ratios, with all other values of one of images of one size."""
        values = {field.name: getattr(other, field.name) for field in fields(Preprocessing)}
        changes = {"resize": ASPECT, "crop_pct": 1.0, "rounding": TORCHVISION, "patch_size": patch_size,
                   "max_patches": max_patches}
        return cls(**values | changes)

    def of_one_size(self) -> Preprocessing:
        """The preprocessing of images of one size with all other values of this one: the centre of each image."""
        values = {field.name: getattr(self, field.name) for field in fields(Preprocessing)}
        return Preprocessing(**values | {"resize": "shorter"})

    def size_of(self, height: int, width: int, limit: int | None = None) -> tuple[int, int]:
        """(height, width) in pixels to which an image of this size is resized, with at most `limit` patches instead of
        `max_patches`.
        """
        rows, columns = nearest_grid(height, width, self.patch_size, limit or self.max_patches)
        return rows * self.patch_size[0], columns * self.patch_size[1]

    def fit(self, image: Image.Image, name: str = "") -> Image.Image:
        """A decoded image, resized to whole patches."""
        height, width = self.size_of(image.height, image.width)
        if image.size == (width, height):
            return image
        return image.resize((width, height), INTERPOLATIONS[self.interpolation])

    def preview(self, raw: ImageLike, name: str = "", side: int = 480) -> np.ndarray:
        """The image in the aspect ratio of the model's input for display, as `Preprocessing.preview`: (H,W,C)"""
        image = self.decode(raw, name)
        height, width = self.size_of(image.height, image.width)
        finer = max(1.0, min(image.width / width, image.height / height, side / max(height, width)))
        size = round(width * finer), round(height * finer)
        return np.atleast_3d(np.asarray(image.resize(size, INTERPOLATIONS[self.interpolation])))

    def leaves_unchanged(self, height: int, width: int) -> bool:
        """Whether the pixels of images of this size stay unchanged."""
        return (height, width) == self.size_of(height, width)

    def batch(self, images: Iterable[Tensor], most: int | None = None) -> PackedImages:
        """uint8 (C,H,W) each → a packed batch, also of no image."""
        if images := list(images):
            return PackedImages.of(images, self.patch_size)
        return PackedImages(torch.empty((0, self.channels, *self.patch_size), dtype=torch.uint8), ())

    def normalize(self, images: PackedImages | Tensor) -> PackedImages | Tensor:
        """uint8 images, packed or (B,C,H,W) of one size → float32 with zero mean and unit standard deviation, on the
        same device
        """
        if isinstance(images, Tensor):
            return super().normalize(images)
        return images.replaced(super().normalize(images.patches))

    def _target(self, width: int, height: int) -> tuple[int, int]:
        return self.size_of(height, width)[::-1]


def nearest_grid(height: int, width: int, patch_size: tuple[int, int], max_patches: int) -> Grid:
    """(rows, columns) of at most `max_patches` patches for an image of this size.

    At the largest scale at which the area of the image fits, one side is rounded down or up, and the other side is the
    nearest to the aspect ratio. The grid with the lowest cost is chosen: a distortion of 4 % costs as much as 15 %
    fewer patches.
    """
    tall, wide = height * patch_size[1], width * patch_size[0]  # their ratio is that of rows to columns
    row, column = (min(max(1, math.isqrt(max_patches * a // b)), max_patches) for a, b in ((tall, wide), (wide, tall)))

    def other_side(side: int, ratio: float) -> int:
        return min(max(1, round(side * ratio)), max_patches // side)

    def cost(grid: Grid) -> float:
        return abs(math.log(grid[0] * wide / (grid[1] * tall))) - math.log(math.prod(grid)) / 4

    grids = [(side, other_side(side, wide / tall)) for side in (row, row + 1) if side <= max_patches]
    grids += [(other_side(side, tall / wide), side) for side in (column, column + 1) if side <= max_patches]
    return min(grids, key=cost)


@dataclass(frozen=True)
class RandomPatches:
    """A random number of patches for each image, from `least` to that of the preprocessing (NaViT, arXiv 2307.06304),
    after a random crop if there is one: a `Sizing` of `PackedImageDataset`.
    """

    least: int
    crop: RandomResizedCrop | None = None
    seed: int = 0

    def draws(self, epoch: Tensor, index: Tensor) -> Tensor:
        """epoch (B,), index (B,) → (B,n) numbers in [0, 1), the first of which determines the patches"""
        patches = uniform(self.seed, epoch[:, None], index[:, None], torch.tensor([SLOT]))
        return patches if self.crop is None else torch.cat([patches, self.crop.draws(epoch, index)], dim=1)

    def box(self, width: int, height: int, target: tuple[int, int], numbers: Sequence[float]) -> Box:
        return (0, 0, width, height) if self.crop is None else self.crop.box(width, height, target, numbers[1:])

    def patches(self, most: int, numbers: Sequence[float]) -> int:
        """The largest number of patches of this image."""
        return self.least + int(numbers[0] * (most - self.least + 1))


class PackedImageDataset(ImageDataset):
    """An `ImageDataset` with `PackedPreprocessing`, whose `cache` is True, False or "auto"; a batch has the
    `PackedImages` under "image".

    A random crop is resized as a whole image would be, so that crops also have different sizes; with `RandomPatches` as
    `sizing`, to a random number of patches.
    """

    preprocessing: PackedPreprocessing
    sizing: RandomResizedCrop | RandomPatches | None

    def cached_split(self) -> Split:
        """The split as it is: cached images of the final size would be resized again."""
        return self.split

    def _fits(self, limit: int) -> bool:
        """Whether all images together take at most `limit` bytes.

        Without a random crop an image has up to `max_patches` patches, which may be more than those of `size`.
        """
        if self.sizing is not None:
            return super()._fits(limit)
        preprocessing = self.preprocessing
        area = preprocessing.max_patches * math.prod(preprocessing.patch_size)
        return len(self) * area * preprocessing.channels <= limit

    def _allocate(self) -> None:
        """Makes room for whole images for random crops, otherwise for images of their final sizes."""
        self._missing, self.decoded = np.ones(len(self), bool), [None] * len(self)

    def _sample(self, i: int, numbers: list[float] | None) -> Tensor:
        name = self.split.names[i]
        if i in self.bad:
            raise BadImage(name, self.bad[i])
        if numbers is None:
            cached = None if self.decoded is None else self.decoded[i]
            return self.preprocessing.image(read_sample(self.split, i), name) if cached is None else cached
        if self.decoded is not None:
            return self._resized(self.decoded[i], numbers)
        return self._resized(self.preprocessing.pixels(read_sample(self.split, i), name, decoder=self.decoder), numbers)

    def _resized(self, pixels: np.ndarray, numbers: list[float]) -> Tensor:
        """A random part of an image (H,W) or (H,W,C), by the numbers of its sample, as (C,height,width)"""
        preprocessing, limit = self.preprocessing, self.preprocessing.max_patches
        left, top, right, bottom = box = self.sizing.box(pixels.shape[1], pixels.shape[0], preprocessing.size, numbers)
        if isinstance(self.sizing, RandomPatches):
            limit = self.sizing.patches(limit, numbers)
        size = preprocessing.size_of(bottom - top, right - left, limit)
        return resize_box(pixels, box, size, preprocessing.interpolation, self.resampling)


class PackedAugment(Augment):
    """An `Augment` of packed images: each step is applied to all images of a size at once.

    The random numbers are those of a sample, so that they do not depend on the other images of the batch.
    """

    def forward(self, images: PackedImages, index: Tensor, epoch: Tensor) -> PackedImages:
        """uint8 images, index (B,), epoch (B,) → the augmented images"""
        augment = super().forward
        return images.apply_by_grid(lambda group, rows: augment(group, index[rows], epoch[rows]))
