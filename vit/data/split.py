"""One split of a data set: undecoded images with their labels and names."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vit.data.identity import fingerprint
from vit.data.sample_names import Chain, NameRows, Names, RowNames, has_names, located
from vit.files.untrusted import read_bytes

Raw = bytes | np.ndarray


@dataclass(frozen=True)
class Split:
    """Samples of one split: `labels` (N,) int64, a name each, and `read(i)` → encoded bytes or a pixel array (H,W[,C]).

    If samples may have several labels or none, `labels` is (N,classes) bool. `pixels` (N,H,W[,C]) exists if all samples
    are in memory, decoded and of one size.
    """

    labels: np.ndarray
    names: Sequence[str]
    read: Callable[[int], Raw]
    pixels: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def location(self, i: int) -> Raw | Path:
        """The location of sample i: its file, else the result of `read`; enough to read a header without the whole
        file.
        """
        return getattr(self.read, "location", self.read)(i)

    def take(self, rows: np.ndarray) -> "Split":
        """The samples at `rows`, in that order."""
        pixels = None if self.pixels is None else self.pixels[rows]
        read = ReadArray(pixels) if pixels is not None else ReadRows(self.read, rows)
        return Split(self.labels[rows], NameRows(self.names, rows), read, pixels)

    def fingerprints(self) -> list[str]:
        """A hash of each sample's encoded image or pixels."""
        return [content_of(self, i) for i in range(len(self))]

    @staticmethod
    def joined(splits: Sequence["Split"]) -> "Split":
        """The samples of several splits one after the other."""
        pixels = [split.pixels for split in splits]
        together = np.concatenate(pixels) if all(p is not None for p in pixels) else None
        read = ReadArray(together) if together is not None else ReadJoined([split.read for split in splits],
                                                                          np.cumsum([len(s) for s in splits]))
        return Split(np.concatenate([s.labels for s in splits]), Chain([s.names for s in splits]), read, together)


@dataclass(frozen=True)
class ReadArray:
    pixels: np.ndarray

    def __call__(self, i: int) -> np.ndarray:
        return self.pixels[i]


@dataclass(frozen=True)
class ReadFile:
    root: Path
    names: Sequence[str]

    def __call__(self, i: int) -> bytes:
        return read_bytes(self.location(i))

    def location(self, i: int) -> Path:
        return self.root / self.names[i]


@dataclass(frozen=True)
class ReadRows:
    read: Callable[[int], Raw]
    rows: np.ndarray

    def __call__(self, i: int) -> Raw:
        return self.read(int(self.rows[i]))

    def location(self, i: int) -> Raw | Path:
        return getattr(self.read, "location", self.read)(int(self.rows[i]))


@dataclass(frozen=True)
class ReadJoined:
    """Sample i of several splits one after the other, with cumulative `ends`."""

    reads: Sequence[Callable[[int], Raw]]
    ends: np.ndarray

    def __call__(self, i: int) -> Raw:
        part, row = located(self.ends, i)
        return self.reads[part](row)

    def location(self, i: int) -> Raw | Path:
        part, row = located(self.ends, i)
        return getattr(self.reads[part], "location", self.reads[part])(row)


def array_split(pixels: np.ndarray, labels: np.ndarray, prefix: str) -> Split:
    """Samples in memory as one uint8 array (N,H,W[,C])."""
    return Split(_typed(labels), RowNames(prefix, np.arange(len(labels))), ReadArray(pixels), pixels)


def file_split(root: Path, names: Sequence[str], labels: np.ndarray) -> Split:
    """Samples that are image files under `root`; their names are the paths relative to it."""
    packed = Names(names)
    return Split(_typed(labels), packed, ReadFile(root, packed))


def _typed(labels: np.ndarray) -> np.ndarray:
    return labels.astype(bool if labels.ndim == 2 else np.int64)


def content_of(split: Split, i: int) -> str:
    """The fingerprint of image i; "" if it cannot be read."""
    try:
        return fingerprint(split.location(i))
    except OSError:
        return ""


def keys(split: Split) -> Sequence[str]:
    """The keys by which samples are split: their names, or their contents if they have no names of their own."""
    return [name.replace("\\", "/") for name in split.names] if has_names(split.names) else split.fingerprints()
