"""Preprocessing of images of one text line: a fixed height, any width, and batches padded on the right."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from vit.data.decoding.bit_depth import FULL, Range, check_range
from vit.data.images.preprocessing import INTERPOLATIONS, ImageLike, Preprocessing, to_tensor
from vit.data.images.preprocessing_values import StoredPreprocessing, as_size
from vit.messages import near_multiples


@dataclass(frozen=True)
class LinePreprocessing(StoredPreprocessing):
    """All parameters that determine the pixels of a line image; a bundle stores exactly these values.

    An image is scaled to `height` with its aspect ratio, squeezed to `max_width` if it would be wider, and padded on
    the right with `background` to a multiple of the patch width. With `enlarge=False` an image that is not as high is
    padded at the bottom instead of scaled up, for text of one size in images of different heights. `patch_size` is
    (height, width); the other fields are those of `Preprocessing`.

    Raises:
        ValueError: a size is not divisible by the patch size, or a value is out of range.
    """

    height: int
    max_width: int
    patch_size: tuple[int, int]
    enlarge: bool = True
    interpolation: str = "bicubic"
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    mode: str = "RGB"
    exif: bool = True
    background: tuple[int, int, int] = (255, 255, 255)
    max_pixels: int = 100_000_000
    range: Range = FULL

    def __post_init__(self) -> None:
        patch = as_size(self.patch_size, "patch_size")
        object.__setattr__(self, "patch_size", patch)
        for name in ("mean", "std", "background"):
            value = getattr(self, name)  # checked by `pixels`
            object.__setattr__(self, name, tuple(value) if isinstance(value, Sequence) else value)
        object.__setattr__(self, "range", check_range(self.range))
        for name, size, edge in (("height", self.height, patch[0]), ("max_width", self.max_width, patch[1])):
            if edge < 1 or size < edge or size % edge:
                raise ValueError(f"{name} {size} is not divisible by patch_size {edge}; nearest valid: "
                                 f"{near_multiples(size, edge)}")
        _ = self.pixels  # raises if one of the shared fields is invalid

    @cached_property
    def pixels(self) -> Preprocessing:
        """The preprocessing that decodes and normalizes, without resizing."""
        shared = {f.name: getattr(self, f.name) for f in fields(self) if f.name in Preprocessing.__dataclass_fields__}
        return Preprocessing(size=(self.height, self.max_width), resize="none", **shared)

    @property
    def channels(self) -> int:
        return self.pixels.channels

    @property
    def rows(self) -> int:
        """Patches from top to bottom."""
        return self.height // self.patch_size[0]

    @property
    def max_patches(self) -> int:
        """Patches of an image of `max_width`: the longest source."""
        return self.rows * (self.max_width // self.patch_size[1])

    def image(self, raw: ImageLike, name: str = "") -> Tensor:
        """Any image → uint8 (C,height,W) with W a multiple of the patch width; raises BadImage with the name."""
        pixels = self._without_resizing(raw)
        if pixels is None:
            image = self.pixels.decode(raw, name)
            size = self._scaled(*image.size)
            pixels = to_tensor(image if image.size == size else image.resize(size, INTERPOLATIONS[self.interpolation]))
        return self._padded(pixels, self.columns(pixels.shape[2], pixels.shape[1]) * self.patch_size[1])

    def check(self, raw: ImageLike, name: str = "") -> None:
        """Decode an image and drop it; raises BadImage as `image`."""
        self.pixels.decode(raw, name)

    def preview(self, raw: ImageLike, name: str = "", width: int = 960) -> np.ndarray:
        """The line for display: (H,W,C) at the image's own resolution up to `width`, or as the model input if that is
        finer.
        """
        image = self.pixels.decode(raw, name)
        if image.height <= self.height:
            return self.image(raw, name).permute(1, 2, 0).numpy()
        image.thumbnail((width, image.height))
        return np.atleast_3d(np.asarray(image))

    def columns(self, width: int, height: int) -> int:
        """Patches from left to right of an image of this size."""
        return math.ceil(self._scaled(width, height)[0] / self.patch_size[1])

    def full_width(self, width: int, height: int) -> int:
        """The width to which an image of this size is scaled if `max_width` does not limit it."""
        return max(1, round(width * self._rows_of(height) / height))

    def squeezed(self, width: int, height: int) -> str:
        """Why an image of this size is squeezed: its width and the limit; empty if it is not."""
        full = self.full_width(width, height)
        return f"{full} pixels at a height of {self._rows_of(height)}" if full > self.max_width else ""

    def batch(self, images: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Results of `image` → uint8 (B,C,H,W) as wide as the widest, and mask (B,N) of the patches in row-major order.
        """
        width = max(image.shape[2] for image in images)
        columns = torch.tensor([image.shape[2] // self.patch_size[1] for image in images])
        if len({image.shape[2] for image in images}) == 1:
            pixels = torch.stack(list(images))
        else:
            pixels = self._blank(len(images), self.height, width)
            for row, image in enumerate(images):
                pixels[row, :, :, : image.shape[2]] = image
        return pixels, self.mask(columns, width // self.patch_size[1])

    def mask(self, columns: Tensor, widest: int) -> Tensor:
        """columns (B,) of patches of each image → (B,rows*widest), False at patches that are only padding."""
        return (torch.arange(widest) < columns[:, None]).repeat(1, self.rows)

    def normalize(self, images: Tensor) -> Tensor:
        """uint8 (B,C,H,W) → float32 (B,C,H,W) with zero mean and unit standard deviation, on the same device."""
        return self.pixels.normalize(images)

    def _scaled(self, width: int, height: int) -> tuple[int, int]:
        """(width, height) before padding."""
        return min(self.max_width, self.full_width(width, height)), self._rows_of(height)

    def _rows_of(self, height: int) -> int:
        return self.height if self.enlarge else min(height, self.height)

    def _without_resizing(self, raw: ImageLike) -> Tensor | None:
        """(C,H,W) of an array that needs no resizing, without Pillow: the same pixels, many times faster; otherwise
        None.
        """
        if not isinstance(raw, np.ndarray) or raw.dtype != np.uint8 or raw.ndim not in (2, 3) or 0 in raw.shape:
            return None
        (height, width), channels = raw.shape[:2], 1 if raw.ndim == 2 else raw.shape[2]
        if channels not in (1, self.channels) or self._scaled(width, height) != (width, height):
            return None
        pixels = torch.from_numpy(raw.reshape(height, width, channels)).permute(2, 0, 1)
        return pixels.expand(self.channels, -1, -1)

    def _padded(self, pixels: Tensor, width: int) -> Tensor:
        if pixels.shape[1:] == (self.height, width):
            return pixels.contiguous()
        filled = self._blank(1, self.height, width)[0]
        filled[:, : pixels.shape[1], : pixels.shape[2]] = pixels
        return filled

    def _blank(self, count: int, height: int, width: int) -> Tensor:
        colour = self.pixels.decode(np.array([[self.background]], dtype=np.uint8)).getpixel((0, 0))
        colours = torch.tensor(colour, dtype=torch.uint8).view(1, -1, 1, 1)
        return colours.repeat(count, 1, height, width)


AnyPreprocessing = Preprocessing | LinePreprocessing
