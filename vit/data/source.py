"""A source: class names and splits of undecoded images, wherever they come from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from vit.data.identity import fingerprint
from vit.data.splitting import assign, hold_out
from vit.files.untrusted import read_bytes

Raw = bytes | np.ndarray
SIGNS = "|;/,&+ "  # what may stand between several names in one cell


class DataError(ValueError):
    """Something about a data set that a person has to put right; the text is one line and says how."""


class Names(Sequence[str]):
    """Many strings in two arrays: worker processes then share the memory (Python strings are copied when counted)."""

    def __init__(self, names: Sequence[str]):
        encoded = [n.encode("utf-8", "surrogateescape") for n in names]
        self._blob = np.frombuffer(b"".join(encoded), np.uint8)
        self._ends = np.cumsum([len(e) for e in encoded], dtype=np.int64)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, i: int) -> str:
        i = range(len(self))[i]
        start = self._ends[i - 1] if i else 0
        return self._blob[start : self._ends[i]].tobytes().decode("utf-8", "surrogateescape")


class RowNames(Sequence[str]):
    """Names of samples that have no file of their own: "train.parquet row 17", "train.en line 17"."""

    def __init__(self, prefix: str, rows: np.ndarray, unit: str = "row"):
        self.prefix, self.rows, self.unit = prefix, rows, unit

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> str:
        return f"{self.prefix} {self.unit} {self.rows[i]}"


class Chain(Sequence):
    """Several sequences one after the other, copied nowhere."""

    def __init__(self, parts: Sequence[Sequence]):
        self.parts, self.ends = parts, np.cumsum([len(part) for part in parts])

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, i: int):
        part, row = located(self.ends, i)
        return self.parts[part][row]


def located(ends: np.ndarray, i: int) -> tuple[int, int]:
    """Which of several parts, that end at `ends`, has item i, and where in it."""
    part = int(np.searchsorted(ends, i, side="right"))
    return part, int(i - (ends[part - 1] if part else 0))


def has_names(names: Sequence[str]) -> bool:
    """Whether samples have names of their own, such as file names; else their names are positions: "x.csv line 17"."""
    if isinstance(names, Chain):
        return all(map(has_names, names.parts))
    return has_names(names.names) if isinstance(names, NameRows) else not isinstance(names, RowNames)


@dataclass(frozen=True)
class Split:
    """Samples of one split: `labels` (N,) int64, a name for each, and `read(i)`: encoded bytes or a pixel array
    (H,W[,C]).

    Where a sample may have several labels, or none, `labels` is (N,classes) bool. `pixels` (N,H,W[,C]) is there when
    all samples lie in memory decoded and of one size.
    """

    labels: np.ndarray
    names: Sequence[str]
    read: Callable[[int], Raw]
    pixels: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def place(self, i: int) -> Raw | Path:
        """Where sample i lies: its file, else what `read` gives; enough to read a header without the whole file."""
        return getattr(self.read, "place", self.read)(i)

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
        return read_bytes(self.place(i))

    def place(self, i: int) -> Path:
        return self.root / self.names[i]


@dataclass(frozen=True)
class ReadRows:
    read: Callable[[int], Raw]
    rows: np.ndarray

    def __call__(self, i: int) -> Raw:
        return self.read(int(self.rows[i]))

    def place(self, i: int) -> Raw | Path:
        return getattr(self.read, "place", self.read)(int(self.rows[i]))


@dataclass(frozen=True)
class ReadJoined:
    """Sample i of several splits one after the other, which end at `ends`."""

    reads: Sequence[Callable[[int], Raw]]
    ends: np.ndarray

    def __call__(self, i: int) -> Raw:
        part, row = located(self.ends, i)
        return self.reads[part](row)

    def place(self, i: int) -> Raw | Path:
        part, row = located(self.ends, i)
        return getattr(self.reads[part], "place", self.reads[part])(row)


class NameRows(Sequence[str]):
    """Names of the chosen rows of another list of names."""

    def __init__(self, names: Sequence[str], rows: np.ndarray):
        self.names, self.rows = names, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> str:
        return self.names[int(self.rows[i])]


def array_split(pixels: np.ndarray, labels: np.ndarray, prefix: str) -> Split:
    """Samples that lie in memory as one uint8 array (N,H,W[,C])."""
    return Split(_typed(labels), RowNames(prefix, np.arange(len(labels))), ReadArray(pixels), pixels)


def file_split(root: Path, names: Sequence[str], labels: np.ndarray) -> Split:
    """Samples that are image files under `root`; their names are the paths relative to it."""
    packed = Names(names)
    return Split(_typed(labels), packed, ReadFile(root, packed))


def _typed(labels: np.ndarray) -> np.ndarray:
    return labels.astype(bool if labels.ndim == 2 else np.int64)


@dataclass(frozen=True)
class Source:
    """Class names in order, the splits "train", "val", "test" as there are, and what was left out: (name, reason).

    `pinned`: options that the same data can be asked for by again, such as the commit that was taken. `unreadable`:
    what of `left_out` are samples that cannot be read.
    """

    name: str
    classes: list[str]
    splits: dict[str, Split]
    left_out: list[tuple[str, str]] = field(default_factory=list)
    pinned: dict[str, str] = field(default_factory=dict)
    unreadable: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        _check_classes(self)
        for split_name, split in self.splits.items():
            _check_split(self, split_name, split)
        counts, total = self.counts("train"), len(self.splits["train"])
        empty = [c for c, n in zip(self.classes, counts, strict=True) if n == 0]
        if empty:
            raise DataError(
                f"{self.name}: {len(empty)} of {len(self.classes)} classes have no training {self.unit} "
                f"({_some(empty)}); add {self.unit}s or remove the class"
            )
        full = [c for c, n in zip(self.classes, counts, strict=True) if n == total]
        if self.multi_label and full:
            raise DataError(
                f"{self.name}: all {total} training {self.unit}s have the label {full[0]!r}, so there is nothing to "
                "learn about it; remove that label, or add images without it"
            )

    @property
    def unit(self) -> str:
        """What a sample is called in messages."""
        return getattr(self.splits.get("train"), "unit", "image")

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def multi_label(self) -> bool:
        """Whether a sample may have several labels, or none."""
        return "train" in self.splits and self.splits["train"].labels.ndim == 2

    def counts(self, split: str) -> np.ndarray:
        """Images per class: (classes,) int64."""
        labels = self.splits[split].labels
        return labels.sum(axis=0) if labels.ndim == 2 else np.bincount(labels, minlength=len(self.classes))

    def class_weights(self) -> np.ndarray:
        """Loss weight per class, (classes,) float32: n / (classes * n_c), so that it averages 1 over samples.

        Of several labels per sample: how often the label is absent for each time that it is there, (n - n_c) / n_c.
        """
        counts = self.counts("train")
        if self.multi_label:
            return ((len(self.splits["train"]) - counts) / counts).astype(np.float32)
        return (counts.sum() / (len(counts) * counts)).astype(np.float32)

    def label_text(self, split: str, i: int) -> str:
        """The class of a sample by name; several ones with the sign of `separator_of` between them."""
        label = self.splits[split].labels[i]
        if label.ndim == 0:
            return self.classes[label]
        return separator_of(self.classes).join(self.classes[c] for c in np.flatnonzero(label))

    def split_lists(self) -> dict[str, list[tuple[str, str]]]:
        """Per split the (name, class) of every sample: what a run keeps to say later on which images it was trained."""
        return {
            key: [(split.names[i], self.label_text(key, i)) for i in range(len(split))]
            for key, split in self.splits.items()
        }

    def without(self, samples: Sequence[tuple[str, int, str]]) -> "Source":
        """The same source less the given (split, index, reason); they are listed in `left_out`."""
        dropped = {key: {i for s, i, _ in samples if s == key} for key in self.splits}
        splits = {
            key: split.take(np.array([i for i in range(len(split)) if i not in dropped[key]], dtype=np.int64))
            if dropped[key]
            else split
            for key, split in self.splits.items()
        }
        listed = [(self.splits[s].names[i], reason) for s, i, reason in samples]
        return replace(self, splits=splits, left_out=self.left_out + listed, unreadable=self.unreadable + listed)


def separator_of(classes: Sequence[str]) -> str:
    """What stands between several class names in one cell: |, or another sign where a class has that in its name."""
    return next((sign for sign in SIGNS if not any(sign in name for name in classes)), "\t")


def with_validation(splits: dict[str, Split], count: int | None, fraction: float, seed: int) -> dict[str, Split]:
    """The splits with "val" split off "train" where none is there: `count` samples, stratified, or a fraction.

    A count is for sets that never change: it depends on the order of the samples, a fraction does not.
    """
    if "val" in splits:
        return splits
    train, rest = splits["train"], {key: split for key, split in splits.items() if key != "train"}
    if count is None:
        return three_ways(train, (1 - fraction, fraction, 0.0), seed) | rest
    if count >= len(train):
        unit = getattr(train, "unit", "image")
        raise DataError(f"val={count} {unit}s cannot be held out of {len(train)} training {unit}s; lower data.val")
    kept, held = hold_out(train.labels, count, seed)
    return {"train": train.take(kept), "val": train.take(held)} | rest


def three_ways(whole: Split, fractions: Sequence[float], seed: int) -> dict[str, Split]:
    """Train, val and test out of a set that came in one piece, each sample by its key; empty parts are not there."""
    parts = assign(keys(whole), whole.labels, fractions, seed)
    return {part: whole.take(rows) for part, rows in parts.items() if len(rows)}


def content_of(split: Split, i: int) -> str:
    """The fingerprint of image i; "" where it cannot be read."""
    try:
        return fingerprint(split.place(i))
    except OSError:
        return ""


def keys(split: Split) -> Sequence[str]:
    """What decides which part a sample falls into: its name, or its content where it has no name of its own."""
    return [name.replace("\\", "/") for name in split.names] if has_names(split.names) else split.fingerprints()


def _check_classes(source: Source) -> None:
    wrong = next((name for name in source.classes if not isinstance(name, str)), None)
    if wrong is not None:
        kind = type(wrong).__name__
        raise DataError(f"{source.name}: the class name {wrong!r} is {kind}, not text; give {str(wrong)!r}")
    if len(set(source.classes)) != len(source.classes):
        twice = sorted({c for c in source.classes if source.classes.count(c) > 1})
        raise DataError(f"{source.name}: class names must differ, these come more than once: {_some(twice)}")
    if len(source.classes) < (1 if source.multi_label else 2):
        raise DataError(
            f"{source.name}: found {len(source.classes)} class ({_some(source.classes)}), a classifier needs at "
            "least 2; give every class its own folder or label"
        )
    if "train" not in source.splits or len(source.splits["train"]) == 0:
        found = _some(sorted(source.splits))
        raise DataError(f"{source.name}: there are 0 training {source.unit}s; splits found: {found}")


def _check_split(source: Source, key: str, split: Split) -> None:
    wanted = (len(split), len(source.classes)) if source.multi_label else (len(split),)
    if split.labels.shape != wanted:
        raise DataError(f"{source.name}: the {key} labels have shape {split.labels.shape}, but must have {wanted}")
    if source.multi_label:
        return
    bad = np.flatnonzero((split.labels < 0) | (split.labels >= len(source.classes)))
    if len(bad):
        raise DataError(
            f"{split.names[int(bad[0])]}: label {split.labels[bad[0]]} is out of range, {source.name} has "
            f"{len(source.classes)} classes (0..{len(source.classes) - 1}); "
            f"{len(bad)} of {len(split)} {key} labels are wrong"
        )


def _some(names: Sequence[str], limit: int = 5) -> str:
    listed = ", ".join(repr(n) for n in names[:limit])
    return listed + (f" and {len(names) - limit} more" if len(names) > limit else "") or "none"
