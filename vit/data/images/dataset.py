"""A split of images as batches of uint8 pixels, cached in memory or in files, or decoded on request."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from vit.data.augment.random_crop import Box, Sizing
from vit.data.decoding.bit_depth import FULL, has_unknown_depth
from vit.data.decoding.decode import BadImage, open_image
from vit.data.decoding.jpeg_decoders import select
from vit.data.images.image_cache import DiskCache, MemoryCache, default_folder
from vit.data.images.prepared import Prepared
from vit.data.images.preprocessing import Preprocessing
from vit.data.images.resampling import LIBRARIES, resize_box
from vit.data.sample_keys import sample_keys
from vit.data.splits.split import Raw, Split, read_sample
from vit.data.threads import StageProgress, map_in_threads, reported
from vit.messages import check_choice

Batch = dict[str, Any]


@dataclass(frozen=True)
class ReadCached:
    """Reads cached images of a data set; those that are not cached from its split."""

    dataset: "ImageDataset"

    def __call__(self, i: int) -> Raw:
        pixels = self.dataset.cached_pixels(i)
        return self.dataset.split.read(i) if pixels is None else pixels


class ImageDataset(Dataset):
    """A split with a preprocessing; in training, `sizing` (a random crop) replaces the resizing of evaluation.

    Batches are requested by keys (B,2) of (epoch, index), so that workers need no state. `cache`: True, False, or
    "auto" for up to `cache_bytes` of decoded images: whole images with `sizing`, else images of the final size.
    "memory" and "disk" cache up to `cache_bytes` of images that are shrunk to `cache_side` before the random crop
    (vit.data.images.prepared), in this process or in files below `cache_dir`; samples that are an array
    in memory are cached as with "auto".
    `on_bad_sample`: "error", or "skip", which leaves an unreadable image out of its batch and lists it under "bad".
    With `fill=False` the cache holds no images before `fill()`, except those passed to `keep`.
    `decoder` (vit.data.decoding.jpeg_decoders) does not change the pixels. `resampling`: the library that resizes
    random crops, "torch" or "pillow", with nearly the same pixels; without `sizing` it is always Pillow.

    Raises:
        DataError: the decoder is not installed, or its pixels differ from Pillow's.
        ValueError: `cache`, `on_bad_sample`, `decoder` or `resampling` is unknown.
        BadImage: an image that is cached cannot be read, with `on_bad_sample="error"`.
    """

    unit = "images"

    def __init__(
        self,
        split: Split,
        preprocessing: Preprocessing,
        sizing: Sizing | None = None,
        cache: bool | str = "auto",
        on_bad_sample: str = "error",
        cache_bytes: int = 2**30,
        cache_side: int | str = "auto",
        cache_dir: Path | None = None,
        decoder: str = "auto",
        resampling: str = "torch",
        fill: bool = True,
    ):
        check_choice("on_bad_sample", on_bad_sample, ("error", "skip"))
        check_choice("cache", cache, (True, False, "auto", "memory", "disk"))
        check_choice("resampling", resampling, LIBRARIES)
        if split.pixels is None:
            select(decoder)  # raises its errors now, not at the first image
            preprocessing = with_known_depth(preprocessing, split)
        self.split, self.preprocessing, self.sizing = split, preprocessing, sizing
        self.decoder, self.resampling = decoder, resampling
        self.on_bad_sample = on_bad_sample
        self.labels = torch.from_numpy(np.ascontiguousarray(split.labels))
        self.bad: dict[int, str] = {}
        self.images: Tensor | None = None  # (N,C,H,W) uint8: every sample at its final size
        self.decoded: list[np.ndarray | None] | None = None  # whole images, for random crops
        self.prepared: Prepared | None = None
        self.store: MemoryCache | DiskCache | None = None
        if cache in ("memory", "disk") and split.pixels is None:
            self.prepared = Prepared(split, preprocessing, sizing, cache_side, decoder, resampling)
            folder = [] if cache == "memory" else [cache_dir or default_folder()]
            self._open_store = partial(DiskCache if folder else MemoryCache, self.prepared, *folder, cache_bytes,
                                       on_bad_sample)
        elif self._fits(cache_bytes) if isinstance(cache, str) else cache:
            self._allocate()
        if fill:
            self.fill()

    def __len__(self) -> int:
        return len(self.split)

    @property
    def in_memory(self) -> bool:
        """Whether this data set holds all of its images, as soon as it is filled."""
        return self.images is not None or self.decoded is not None

    @property
    def is_filled(self) -> bool:
        """Whether all images are in memory, as those of an array are before `fill`."""
        return self.in_memory and not self._missing.any()

    @property
    def cached(self) -> bool:
        return self.in_memory or isinstance(self.store, MemoryCache)

    def __getitem__(self, index: int) -> Batch:
        """One sample of epoch 0 as a batch of one."""
        return self.__getitems__([(0, index)])

    def __getitems__(self, keys: Sequence[tuple[int, int]] | np.ndarray) -> Batch:
        """image (B,C,H,W) uint8, label (B,), index (B,), epoch (B,); "bad": (name, reason) of unreadable images."""
        epoch, index = torch.from_numpy(sample_keys(keys)).unbind(1)
        if self.images is not None:
            good, images, bad = self._from_memory(index)
        elif self.is_final_array:
            good, images, bad = slice(None), self.preprocessing.batch(list(self._from_array(index.numpy()))), []
        else:
            good, images, bad = self._one_by_one(epoch, index)
        index, epoch = index[good], epoch[good]
        batch: Batch = {"image": images, "label": self.labels[index], "index": index, "epoch": epoch}
        return batch | {"bad": bad} if bad else batch

    def cached_split(self) -> Split:
        """The split, read from the cache if evaluation gets the same images from it: from whole images, and from images
        of the final size if they are not resized again.
        """
        final = self.images is not None or (self.store is not None and self.sizing is None)
        same = self.preprocessing.leaves_unchanged(*self.preprocessing.size) if final else (
            self.decoded is not None and not self.preprocessing.draft)
        return replace(self.split, read=ReadCached(self)) if same and self.split.pixels is None else self.split

    def cached_pixels(self, i: int) -> np.ndarray | None:
        """(H,W) or (H,W,C) uint8 of sample i; None if it is not cached or could not be read."""
        if i in self.bad:
            return None
        if self.images is not None:
            return self.images[i].permute(1, 2, 0).cpu().numpy()
        return self.store.get(i) if self.decoded is None else self.decoded[i]

    def filler(self) -> Batch:
        """A blank image, marked with epoch 1 like the padding of evaluation batches."""
        image = torch.zeros((self.preprocessing.channels, *self.preprocessing.size), dtype=torch.uint8)
        first = torch.zeros(1, dtype=torch.int64)
        images = self.preprocessing.batch([image])
        return {"image": images, "label": torch.zeros_like(self.labels[:1]), "index": first, "epoch": first + 1}

    def _from_memory(self, index: Tensor) -> tuple[Tensor | slice, Tensor | None, list[tuple[str, str]]]:
        """As `_one_by_one`, from `self.images`; the first is a slice of all where every sample is readable."""
        if not self.bad:
            return slice(None), self._select(index), []
        good = torch.tensor([int(i) not in self.bad for i in index], dtype=torch.bool)
        bad = [(self.split.names[int(i)], self.bad[int(i)]) for i in index[~good]]
        return good, self._select(index[good]), bad

    def _select(self, index: Tensor) -> Tensor | None:
        """The images (B,C,H,W) of a data set in memory at the indices (B,); None if they are selected on the device."""
        return self.images.index_select(0, index)  # much faster than [index]

    def _one_by_one(self, epoch: Tensor, index: Tensor) -> tuple[Tensor, Tensor, list[tuple[str, str]]]:
        """Which samples (B,) are readable, the batch of their images, and (name, reason) of the others."""
        good, bad = torch.ones(len(index), dtype=torch.bool), []
        draws = self.sizing.draws(epoch, index).tolist() if self.sizing is not None else [None] * len(index)

        def readable() -> Iterator[Tensor]:
            for row, (i, numbers) in enumerate(zip(index.tolist(), draws, strict=True)):
                try:
                    image = self._sample(i, numbers)
                except BadImage as error:
                    good[row] = False
                    bad.append((error.name, error.reason))
                else:
                    yield image

        images = self.preprocessing.batch(readable(), len(index))
        return good, images, bad

    def _sample(self, i: int, numbers: list[float] | None) -> Tensor:
        """The image of sample i, uint8 (C,H,W); `numbers` are those of its random crop, None without one."""
        name = self.split.names[i]
        if self.prepared is not None:
            return self._prepared_sample(i, numbers)
        if numbers is None:
            return self.preprocessing.image(read_sample(self.split, i), name)
        if self.decoded is None:
            return self._crop_while_decoding(i, name, numbers)
        if i in self.bad:
            raise BadImage(name, self.bad[i])
        pixels = self.decoded[i]
        height, width = pixels.shape[:2]
        return self._resize_box(pixels, self.sizing.box(width, height, self.preprocessing.size, numbers))

    def _prepared_sample(self, i: int, numbers: list[float] | None) -> Tensor:
        pixels = self.store.get(i)
        pixels = self.prepared(i) if pixels is None else pixels
        if numbers is None:
            return torch.from_numpy(pixels).permute(2, 0, 1)
        height, width = pixels.shape[:2]
        return self._resize_box(pixels, self.sizing.box(width, height, self.preprocessing.size, numbers))

    def _crop_while_decoding(self, i: int, name: str, numbers: list[float]) -> Tensor:
        """A random crop; the image is decoded at a smaller scale if the box has enough pixels there."""
        height, width = self.preprocessing.size
        full: list[tuple[int, int]] = []

        def min_scale(full_width: int, full_height: int) -> float:
            """Draws the box on the full image, before a draft decode shrinks it."""
            full.append((full_width, full_height))
            left, top, right, bottom = self.sizing.box(full_width, full_height, self.preprocessing.size, numbers)
            return max(width / (right - left), height / (bottom - top))

        pixels = self.preprocessing.pixels(read_sample(self.split, i), name, min_scale, self.decoder)
        size = full[0] if full else pixels.shape[1::-1]
        left, top, right, bottom = self.sizing.box(*size, self.preprocessing.size, numbers)
        across, down = pixels.shape[1] / size[0], pixels.shape[0] / size[1]
        return self._resize_box(pixels, (left * across, top * down, right * across, bottom * down))

    def _resize_box(self, pixels: np.ndarray, box: Box) -> Tensor:
        """The box as (C,H,W), which is not contiguous: the batch is."""
        preprocessing = self.preprocessing
        return resize_box(pixels, box, preprocessing.size, preprocessing.interpolation, self.resampling)

    def _fits(self, limit: int) -> bool:
        """Whether the decoded samples fit into `limit` bytes, estimated from the headers of up to 20 images."""
        if self.sizing is None:
            height, width = self.preprocessing.size
            return len(self) * height * width * self.preprocessing.channels <= limit
        if self.preprocessing.draft:
            return False  # the scale of a draft decode depends on the crop, so there is nothing to cache
        sizes = [self._pixels(i) for i in np.linspace(0, len(self) - 1, min(20, len(self))).astype(int)]
        return len(self) * max(sizes) * self.preprocessing.channels <= limit

    def _pixels(self, i: int) -> int:
        try:
            raw = read_sample(self.split, i)
            if isinstance(raw, np.ndarray):
                return raw.shape[0] * raw.shape[1]
            with open_image(raw, self.split.names[i], self.preprocessing.max_pixels) as image:
                return image.width * image.height
        except BadImage:
            return 0

    def _allocate(self) -> None:
        """Makes room for all images; those of a final array are complete."""
        self._missing = np.full(len(self), not self.is_final_array)
        if self.is_final_array:
            self.images = self._from_array(slice(None))
        elif self.sizing is not None:
            self.decoded = [None] * len(self)
        else:
            shape = (self.preprocessing.channels, *self.preprocessing.size)
            self.images = torch.zeros((len(self), *shape), dtype=torch.uint8)

    def fill(self, progress: StageProgress | None = None) -> None:
        """Reads the images that the cache is to hold; `progress` is called with their number.

        Raises:
            BadImage: an image cannot be read, with `on_bad_sample="error"`.
        """
        if self.prepared is not None and self.store is None:
            self.store = self._open_store(progress)
        rows = np.flatnonzero(self._missing).tolist() if self.in_memory else []
        if rows:
            images = reported(map_in_threads(self._load_or_skip, rows), "images", len(rows), progress)
            for i, image in zip(rows, images, strict=True):
                if image is not None:
                    self.keep(i, image)

    def decode(self, raw: Raw, name: str) -> Tensor | np.ndarray:
        """A sample as memory holds it: (C,H,W) of the final size, or (H,W,C) before the random crop.

        Raises:
            BadImage: it cannot be decoded.
        """
        if self.sizing is not None:
            return self.preprocessing.pixels(raw, name, decoder=self.decoder)
        return self.preprocessing.image(raw, name)

    def keep(self, i: int, image: Tensor | np.ndarray) -> None:
        """Stores what `decode` made of sample i."""
        (self.images if self.decoded is None else self.decoded)[i] = image
        self._missing[i] = False

    @cached_property
    def is_final_array(self) -> bool:
        """Whether the samples are an array of pixels that are used as they are: no image is resized or unreadable."""
        pixels = self.split.pixels
        return (self.sizing is None and pixels is not None and pixels.dtype == np.uint8
                and (pixels.ndim == 3 or pixels.shape[3] in (1, self.preprocessing.channels))
                and self.preprocessing.leaves_unchanged(*pixels.shape[1:3]))

    def _from_array(self, rows: slice | np.ndarray) -> Tensor:
        """The images (B,C,H,W) of a final array, with the same pixels as one by one."""
        pixels = torch.from_numpy(self.split.pixels[rows])
        pixels = pixels[:, None] if pixels.ndim == 3 else pixels.permute(0, 3, 1, 2)
        return pixels.expand(-1, self.preprocessing.channels, -1, -1).contiguous()

    def _load_or_skip(self, i: int) -> Tensor | np.ndarray | None:
        name = self.split.names[i]
        try:
            return self.decode(read_sample(self.split, i), name)
        except BadImage as error:
            if self.on_bad_sample == "error":
                raise
            self.bad[i] = error.reason
            return None


def with_known_depth(preprocessing: Preprocessing, split: Split) -> Preprocessing:
    """The preprocessing for a split: the full range is stated as (0, 65535) for arrays of integers whose type leaves
    their depth open, but whose values are those of 16 bits, so that dark images are mapped as the others.
    """
    first = split.location(0) if len(split) and preprocessing.range == FULL else None
    if not isinstance(first, np.ndarray) or not has_unknown_depth(first.dtype):
        return preprocessing
    low, high = (extreme(getattr(split.location(i), name)() for i in range(len(split)))
                 for extreme, name in ((min, "min"), (max, "max")))
    return preprocessing.replace(range=(0.0, 65535.0)) if low >= 0 and 255 < high <= 65535 else preprocessing
