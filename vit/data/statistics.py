"""Statistics of the training images: mean and standard deviation per channel, and the range of high bit depths."""

import math
from collections.abc import Iterator

import numpy as np
from PIL import Image
from torch import Tensor

from vit.counters import permutation
from vit.data.decoding.bit_depth import FULL, MeasuredRange, has_unknown_depth, measure_range
from vit.data.decoding.decode import BadImage
from vit.data.errors import DataError
from vit.data.images.dataset import ImageDataset
from vit.data.images.line_images import AnyPreprocessing, LinePreprocessing
from vit.data.pairs.source import PairSplit
from vit.data.splits.split import Split
from vit.data.system_limits import check_files_left
from vit.data.threads import map_in_threads
from vit.messages import number_of, override_for_shell


class Histogram:
    """Running numbers of pixels with each value; the exact mean and std are those of pixels in [0, 1]."""

    def __init__(self, channels: int):
        self.counts = np.zeros((channels, 256), dtype=np.int64)

    @property
    def pixels(self) -> int:
        """The number of pixels in each channel."""
        return int(self.counts[0].sum())

    def add(self, images: Tensor) -> None:
        """images (C,H,W) or (B,C,H,W) uint8"""
        for counts, values in zip(self.counts, images.movedim(-3, 0).flatten(1).numpy(), strict=True):
            # in this thread alone: others decode the next images; np.bincount converts them to 8 bytes per value first
            counts += Image.fromarray(values[None]).histogram()

    def mean_std(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """(mean, std) per channel, rounded to 4 digits; a constant channel gets std 1."""
        values = np.arange(256)
        mean = [int(s) / self.pixels / 255 for s in self.counts @ values]
        squares = self.counts @ values**2
        variance = [int(q) / self.pixels / 255**2 - m * m for q, m in zip(squares, mean, strict=True)]
        std = [round(math.sqrt(max(v, 0.0)), 4) or 1.0 for v in variance]
        return tuple(round(m, 4) for m in mean), tuple(std)


def estimate(
    split: Split | PairSplit,
    preprocessing: AnyPreprocessing,
    limit: int = 2000,
    images: Tensor | None = None,
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(mean, std) of a split: of all images if they are in memory (`images` (N,C,H,W), or pixel arrays), otherwise of
    `limit` images.

    The images are selected by a fixed permutation, so that the same data gives the same numbers. Unreadable images are
    skipped.

    Raises:
        DataError: none of the selected images can be read.
    """
    histogram = Histogram(preprocessing.channels)
    if images is None and isinstance(split, Split) and split.pixels is not None:
        images = ImageDataset(split, preprocessing, cache=True).images
    if images is not None:
        for part in images.split(1024):
            histogram.add(part)
        return histogram.mean_std()

    def load(i: int) -> Tensor | Exception:
        try:
            return preprocessing.image(split.location(i), split.names[i])
        except (BadImage, OSError) as error:  # OSError of sources without files, such as a damaged member of an archive
            check_files_left(error)
            return error

    reason = None
    for image in map_in_threads(load, permutation(0, 0, len(split))[:limit].tolist()):
        if isinstance(image, Exception):
            reason = reason or image
        else:
            histogram.add(image)
    if histogram.pixels == 0:
        example = f"; for example {reason}" if reason else ""
        raise DataError(f"none of {number_of(min(limit, len(split)), 'training image')} can be read, so mean and std "
                        f"are unknown{example}")
    return histogram.mean_std()


def find_range(
    split: Split | PairSplit, preprocessing: AnyPreprocessing, rule: str, limit: int = 1000
) -> MeasuredRange | None:
    """The range by `rule` of the images of more than 8 bits among `limit` images of a split; None if there are none.

    The images are selected as in `estimate`; of images of 8 bits only the headers are read.
    """
    if getattr(split, "pixels", None) is not None and split.pixels.dtype == np.uint8:
        return None
    pixels = preprocessing.pixels if isinstance(preprocessing, LinePreprocessing) else preprocessing

    def values_of_images() -> Iterator[np.ndarray]:
        for i in permutation(0, 0, len(split))[:limit].tolist():
            try:
                values = pixels.high_bit_depth_values(split.location(i), split.names[i])
            except (BadImage, OSError) as error:
                check_files_left(error)
                continue
            if values is not None:
                yield values[..., :3] if values.ndim == 3 else values

    return measure_range(values_of_images(), rule)


def resolve_range(
    split: Split | PairSplit, preprocessing: AnyPreprocessing, rule: str
) -> tuple[AnyPreprocessing, str | None]:
    """The preprocessing with the range that `rule` (auto, full or percentile) finds, and a line for the log if there
    are images of more than 8 bits.

    The full range of arrays of integers wider than 16 bits is stored as (0, 65535), so that dark images are mapped in
    the same way: without a stored range they could be of 8 bits.

    Raises:
        DataError: the rule is full, and such arrays have values up to 255.
    """
    measured = find_range(split, preprocessing, rule)
    if measured is None:
        return preprocessing.replace(range=FULL), None
    dtype = array_type(split)
    measured = measured._replace(dtype="" if dtype is None else str(dtype))
    if measured.range == FULL and dtype is not None and has_unknown_depth(dtype):
        if measured.low >= 0 and measured.high <= 255:
            raise DataError(
                f"data.preprocessing.range=full: the training images are {dtype} arrays with values "
                f"{measured.low:g}..{measured.high:g}, which may be of 8 or of 16 bits; set "
                f"{override_for_shell('data.preprocessing.range', [0, 255])} or [0,65535]")
        measured = measured._replace(range=(0.0, float(measured.whole)))
    return preprocessing.replace(range=measured.range), measured.text(rule)


def array_type(split: Split | PairSplit) -> np.dtype | None:
    """The type of the numbers if the images of a split are arrays, otherwise None."""
    first = split.location(0) if len(split) else None
    return first.dtype if isinstance(first, np.ndarray) else None
