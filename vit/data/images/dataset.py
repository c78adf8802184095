"""A split of images as batches of uint8 pixels: cached in memory if they fit, else decoded on request."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from vit.data.augment.random_crop import Sizing
from vit.data.images.decode import BadImage, open_image
from vit.data.images.preprocessing import Preprocessing, to_tensor
from vit.data.split import Split

Batch = dict[str, Any]


class ImageDataset(Dataset):
    """A split with a preprocessing; in training, `sizing` (a random crop) replaces the resizing of evaluation.

    Batches are requested by keys (B,2) of (epoch, index), so that workers need no state. `cache`: True, False, or
    "auto" for up to `cache_bytes` of decoded images: whole images with `sizing`, else images of the final size.
    `on_bad_sample`: "error", or "skip", which leaves an unreadable image out of its batch and lists it under "bad".

    Raises:
        ValueError: `cache` or `on_bad_sample` is unknown.
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
    ):
        if on_bad_sample not in ("error", "skip"):
            raise ValueError(f"on_bad_sample={on_bad_sample!r} is not one of error, skip")
        if cache not in (True, False, "auto"):
            raise ValueError(f"cache={cache!r} is not one of true, false, auto")
        self.split, self.preprocessing, self.sizing = split, preprocessing, sizing
        self.on_bad_sample = on_bad_sample
        self.labels = torch.from_numpy(np.ascontiguousarray(split.labels))
        self.bad: dict[int, str] = {}
        self.images: Tensor | None = None  # (N,C,H,W) uint8: every sample at its final size
        self.decoded: list[np.ndarray | None] | None = None  # whole images, for random crops
        if self._fits(cache_bytes) if cache == "auto" else cache:
            self._fill()

    def __len__(self) -> int:
        return len(self.split)

    @property
    def cached(self) -> bool:
        return self.images is not None or self.decoded is not None

    def __getitem__(self, index: int) -> Batch:
        """One sample of epoch 0 as a batch of one."""
        return self.__getitems__([(0, index)])

    def __getitems__(self, keys: Sequence[tuple[int, int]] | np.ndarray) -> Batch:
        """image (B,C,H,W) uint8, label (B,), index (B,), epoch (B,); "bad": (name, reason) of unreadable images."""
        epoch, index = torch.from_numpy(np.array(keys, dtype=np.int64).reshape(-1, 2)).unbind(1)
        if self.images is not None:
            good, images, bad = self._from_memory(index)
        else:
            good, images, bad = self._one_by_one(epoch, index)
        index, epoch = index[good], epoch[good]
        batch: Batch = {"image": images, "label": self.labels[index], "index": index, "epoch": epoch}
        return batch | {"bad": bad} if bad else batch

    def filler(self) -> Batch:
        """A blank image, marked by epoch 1 as the padding of evaluation is."""
        image = torch.zeros((1, self.preprocessing.channels, *self.preprocessing.size), dtype=torch.uint8)
        first = torch.zeros(1, dtype=torch.int64)
        return {"image": image, "label": torch.zeros_like(self.labels[:1]), "index": first, "epoch": first + 1}

    def _from_memory(self, index: Tensor) -> tuple[Tensor | slice, Tensor, list[tuple[str, str]]]:
        if not self.bad:
            return slice(None), self.images.index_select(0, index), []  # index_select is much faster than [index]
        good = torch.tensor([int(i) not in self.bad for i in index], dtype=torch.bool)
        bad = [(self.split.names[int(i)], self.bad[int(i)]) for i in index[~good]]
        return good, self.images.index_select(0, index[good]), bad

    def _one_by_one(self, epoch: Tensor, index: Tensor) -> tuple[Tensor, Tensor, list[tuple[str, str]]]:
        images, good, bad = [], torch.ones(len(index), dtype=torch.bool), []
        draws = self.sizing.draws(epoch, index).tolist() if self.sizing is not None else [None] * len(index)
        for row, (i, numbers) in enumerate(zip(index.tolist(), draws, strict=True)):
            try:
                images.append(self._sample(i, numbers))
            except BadImage as error:
                good[row] = False
                bad.append((error.name, error.reason))
        shape = (0, self.preprocessing.channels, *self.preprocessing.size)
        return good, torch.stack(images) if images else torch.empty(shape, dtype=torch.uint8), bad

    def _sample(self, i: int, numbers: list[float] | None) -> Tensor:
        name = self.split.names[i]
        if numbers is None:
            return self.preprocessing.image(self._read(i, name), name)
        if self.decoded is None:
            return self._crop_while_decoding(i, name, numbers)
        if i in self.bad:
            raise BadImage(name, self.bad[i])
        image = Image.fromarray(self.decoded[i])
        box = self.sizing.box(*image.size, self.preprocessing.size, numbers)
        return to_tensor(self.preprocessing.crop(image, box))

    def _crop_while_decoding(self, i: int, name: str, numbers: list[float]) -> Tensor:
        height, width = self.preprocessing.size
        full: list[tuple[int, int]] = []

        def min_scale(full_width: int, full_height: int) -> float:
            """Draws the box on the full image, before a draft decode shrinks it."""
            full.append((full_width, full_height))
            left, top, right, bottom = self.sizing.box(full_width, full_height, self.preprocessing.size, numbers)
            return max(width / (right - left), height / (bottom - top))

        image = self.preprocessing.decode(self._read(i, name), name, min_scale)
        size = full[0] if full else image.size
        left, top, right, bottom = self.sizing.box(*size, self.preprocessing.size, numbers)
        across, down = image.width / size[0], image.height / size[1]
        return to_tensor(self.preprocessing.crop(image, (left * across, top * down, right * across, bottom * down)))

    def _read(self, i: int, name: str) -> bytes | np.ndarray:
        try:
            return self.split.read(i)
        except OSError as error:
            raise BadImage(name, f"cannot be read ({error.strerror or error})") from error

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
            raw = self._read(i, self.split.names[i])
            if isinstance(raw, np.ndarray):
                return raw.shape[0] * raw.shape[1]
            image = open_image(raw, self.split.names[i], self.preprocessing.max_pixels)
            return image.width * image.height
        except BadImage:
            return 0

    def _fill(self) -> None:
        if self.sizing is None and self._cache_array():
            return
        found = [self._load_or_skip(i) for i in range(len(self))]
        if self.sizing is not None:
            self.decoded = found
            return
        shape = (self.preprocessing.channels, *self.preprocessing.size)
        self.images = torch.zeros((len(self), *shape), dtype=torch.uint8)
        for i, image in enumerate(found):
            if image is not None:
                self.images[i] = image

    def _cache_array(self) -> bool:
        """Caches an array that needs no resizing in one step, with the same pixels as one by one."""
        pixels, channels = self.split.pixels, self.preprocessing.channels
        if pixels is None or pixels.dtype != np.uint8 or not self.preprocessing.leaves_unchanged(*pixels.shape[1:3]):
            return False
        pixels = torch.from_numpy(pixels)
        pixels = pixels[:, None] if pixels.ndim == 3 else pixels.permute(0, 3, 1, 2)
        if pixels.shape[1] not in (1, channels):
            return False
        self.images = pixels.expand(-1, channels, -1, -1).contiguous()
        return True

    def _load_or_skip(self, i: int) -> Tensor | np.ndarray | None:
        name = self.split.names[i]
        try:
            raw = self._read(i, name)
            if self.sizing is not None:
                return np.array(self.preprocessing.decode(raw, name))
            return self.preprocessing.image(raw, name)
        except BadImage as error:
            if self.on_bad_sample == "error":
                raise
            self.bad[i] = error.reason
            return None
