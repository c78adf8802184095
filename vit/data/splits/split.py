"""One split of a data set: undecoded images with their labels and names."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from vit.data.decoding.decode import BadImage
from vit.data.identity import fingerprint
from vit.data.sample_names import ConcatSequence, PackedStrings, RowNames, SelectedStrings, has_names, locate
from vit.data.system_limits import check_files_left
from vit.data.threads import StageProgress, map_in_threads, reported
from vit.files.untrusted import read_bytes

Raw = bytes | np.ndarray
FINGERPRINTS = "fingerprints"  # name of the stage in progress bars


@dataclass(frozen=True)
class Split:
    """Samples of one split.

    Args:
        labels: (N,) int64, or (N,classes) bool if samples may have several labels or none.
        names: names of the samples.
        read: `read(i)` returns the encoded bytes or the pixel array (H,W[,C]) of sample i.
        pixels: (N,H,W[,C]), if all samples are decoded in memory with one size.
        groups: the group of each sample, if the data has groups.
    """

    labels: np.ndarray
    names: Sequence[str]
    read: Callable[[int], Raw]
    pixels: np.ndarray | None = None
    groups: Sequence[str] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"Split(samples={len(self)})"

    def location(self, i: int) -> Raw | Path:
        """The file of sample i, whose header can be read on its own; the result of `read` if there is no file."""
        return location_of(self.read, i)

    def take(self, rows: np.ndarray) -> "Split":
        """The samples at `rows`, in that order."""
        pixels = None if self.pixels is None else self.pixels[rows]
        read = ReadArray(pixels) if pixels is not None else ReadRows(self.read, rows)
        groups = None if self.groups is None else SelectedStrings(self.groups, rows)
        return Split(self.labels[rows], SelectedStrings(self.names, rows), read, pixels, groups)

    def fingerprints(self, progress: StageProgress | None = None) -> list[str]:
        """A hash of each sample's encoded image or pixels."""
        return image_fingerprints(self, progress, in_memory=self.pixels is not None)

    @staticmethod
    def concat(splits: Sequence["Split"]) -> "Split":
        """The concatenation of several splits."""
        pixels = [split.pixels for split in splits]
        together = np.concatenate(pixels) if all(p is not None for p in pixels) else None
        ends = np.cumsum([len(split) for split in splits])
        read = ReadConcat([split.read for split in splits], ends) if together is None else ReadArray(together)
        names = ConcatSequence([split.names for split in splits])
        labels = np.concatenate([split.labels for split in splits])
        return Split(labels, names, read, together, concat_groups([split.groups for split in splits]))


def location_of(read: Callable[[int], Raw], i: int) -> Raw | Path:
    """The file of sample i, if the reader has a method `location`; otherwise what the reader returns."""
    return getattr(read, "location", read)(i)


def concat_groups(groups: Sequence[Sequence[str] | None]) -> Sequence[str] | None:
    """The groups of the concatenation of several splits; None unless all of them state groups."""
    return None if any(each is None for each in groups) else ConcatSequence(groups)


@dataclass(frozen=True)
class ReadArray:
    """Reads pixel arrays (H,W[,C]) from one array."""

    pixels: np.ndarray

    def __call__(self, i: int) -> np.ndarray:
        return self.pixels[i]


class ReadLocation(ABC):
    """Base class of readers whose samples are files, or partly files and partly contents in memory."""

    def __call__(self, i: int) -> Raw:
        location = self.location(i)
        return read_bytes(location) if isinstance(location, Path) else location

    @abstractmethod
    def location(self, i: int) -> Raw | Path:
        """The file of sample i, or its content if it is not a file."""


@dataclass(frozen=True)
class ReadFile(ReadLocation):
    """Reads the encoded bytes of image files below `root`."""

    root: Path
    names: Sequence[str]

    def location(self, i: int) -> Path:
        return self.root / self.names[i]


@dataclass(frozen=True)
class ReadRows:
    """Reads the selected rows of another reader."""

    read: Callable[[int], Raw]
    rows: np.ndarray

    def __call__(self, i: int) -> Raw:
        return self.read(int(self.rows[i]))

    def location(self, i: int) -> Raw | Path:
        return location_of(self.read, int(self.rows[i]))


@dataclass(frozen=True)
class ReadConcat:
    """Reads from several readers, one after the other; `ends` are their cumulative lengths."""

    reads: Sequence[Callable[[int], Raw]]
    ends: np.ndarray

    def __call__(self, i: int) -> Raw:
        part, row = locate(self.ends, i)
        return self.reads[part](row)

    def location(self, i: int) -> Raw | Path:
        part, row = locate(self.ends, i)
        return location_of(self.reads[part], row)


def array_split(pixels: np.ndarray, labels: np.ndarray, prefix: str) -> Split:
    """Images in one uint8 array (N,H,W[,C]) as samples, named `prefix` and their row."""
    return Split(typed_labels(labels), RowNames(prefix, np.arange(len(labels))), ReadArray(pixels), pixels)


def file_split(root: Path, names: Sequence[str], labels: np.ndarray) -> Split:
    """Image files below `root` as samples, named by their paths relative to it."""
    packed = PackedStrings(names)
    return Split(typed_labels(labels), packed, ReadFile(root, packed))


def typed_labels(labels: np.ndarray) -> np.ndarray:
    """labels (N,) as int64, or multi-label (N,classes) as bool"""
    return labels.astype(bool if labels.ndim == 2 else np.int64, copy=False)


def read_sample(split: Split, i: int) -> Raw:
    """The encoded image or pixels of sample i; raises BadImage with its name if the file cannot be read."""
    try:
        return split.read(i)
    except OSError as error:
        check_files_left(error)
        raise BadImage(split.names[i], f"cannot be read ({error.strerror or error})") from error


def content_of(split: Split, i: int, hashed: Callable[[Raw | Path], str] = fingerprint) -> str:
    """The fingerprint of image i by `hashed`, by default the one that runs record; "" if it cannot be read."""
    try:
        return hashed(location_of(split.read, i))
    except OSError as error:
        check_files_left(error)
        return ""


def image_fingerprints(split: Split, progress: StageProgress | None = None, in_memory: bool = False) -> list[str]:
    """The fingerprint of each image by `content_of`; files are read in threads, since many of them wait for a disk."""
    rows = range(len(split))
    found = (map if in_memory else map_in_threads)(partial(content_of, split), rows)
    return list(reported(found, FINGERPRINTS, len(split), progress))


def evenly_spaced(length: int, count: int) -> list[int]:
    """Up to `count` indices into a sequence of this length: 0, and the others at equal distances up to rounding."""
    count = min(length, count)
    return [i * length // count for i in range(count)]


def keys(split: Split) -> Sequence[str]:
    """The keys by which samples are assigned to splits: names, or fingerprints if the names are only row numbers."""
    return [name.replace("\\", "/") for name in split.names] if has_names(split.names) else split.fingerprints()
