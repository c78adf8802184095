"""A source: class names and splits of undecoded images."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from vit.data.errors import DataError
from vit.data.splits.split import Split, array_split, file_split
from vit.data.splits.splitting import three_ways, with_validation
from vit.messages import agree, first_of, number_of

__all__ = ["DataError", "Source", "Split", "array_split", "file_split", "separator_of", "three_ways",
           "with_validation"]  # for functions that return a Source

SEPARATORS = "|;/,&+ "  # separators of several class names in one cell, in order of preference


@dataclass(frozen=True)
class Source:
    """Ordered class names and the available splits out of "train", "val" and "test".

    `left_out` are (name, reason) of samples that are not in any split, `unreadable` those of them that cannot be read.
    `pinned`: options that select the same data again, such as the resolved commit. `corrected`: (name, former label,
    new label) of the labels that `data.corrections` changed.

    Raises:
        DataError: class names or labels are invalid, or a class has no training sample.
    """

    name: str
    classes: list[str]
    splits: dict[str, Split]
    left_out: list[tuple[str, str]] = field(default_factory=list)
    pinned: dict[str, str] = field(default_factory=dict)
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    corrected: list[tuple[str, str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        _check_arrays(self)
        _check_classes(self)
        for split_name, split in self.splits.items():
            _check_split(self, split_name, split)
        counts, total = self.counts("train"), len(self.splits["train"])
        empty = [c for c, n in zip(self.classes, counts, strict=True) if n == 0]
        if empty:
            raise DataError(
                f"{self.name}: {len(empty)} of {number_of(len(self.classes), 'class')} "
                f"{agree(len(empty), 'has', 'have')} no training {self.unit} ({_listed(empty)}); add {self.unit}s or "
                "remove the class"
            )
        full = [c for c, n in zip(self.classes, counts, strict=True) if n == total]
        if self.multi_label and full:
            raise DataError(
                f"{self.name}: all {total} training {self.unit}s have the label {full[0]!r}, so it cannot be "
                f"learned; remove that label, or add {self.unit}s without it"
            )

    @property
    def unit(self) -> str:
        """The singular name of a sample in messages."""
        return getattr(self.splits.get("train"), "unit", "image")

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def multi_label(self) -> bool:
        """Whether samples may have several labels or none."""
        return "train" in self.splits and self.splits["train"].labels.ndim == 2

    def counts(self, split: str) -> np.ndarray:
        """Images per class: (classes,) int64."""
        labels = self.splits[split].labels
        return labels.sum(axis=0) if labels.ndim == 2 else np.bincount(labels, minlength=len(self.classes))

    def class_weights(self) -> np.ndarray:
        """Loss weight per class, (classes,) float32: n / (classes * n_c), so that it averages 1 over samples.

        For multi-label samples it is the ratio of samples without and with the label, (n - n_c) / n_c.
        """
        counts = self.counts("train")
        if self.multi_label:
            return ((len(self.splits["train"]) - counts) / counts).astype(np.float32)
        return (counts.sum() / (len(counts) * counts)).astype(np.float32)

    def label_text(self, split: str, i: int) -> str:
        """The class name of a sample; several names are joined with `separator_of`."""
        label = self.splits[split].labels[i]
        if label.ndim == 0:
            return self.classes[label]
        return self._separator.join(self.classes[c] for c in np.flatnonzero(label))

    @cached_property
    def _separator(self) -> str:
        """`separator_of` the classes, which reads all of their names."""
        return separator_of(self.classes)

    def split_lists(self) -> dict[str, list[tuple[str, str]]]:
        """(name, class) of every sample by split, as a run records them."""
        return {
            key: [(split.names[i], self.label_text(key, i)) for i in range(len(split))]
            for key, split in self.splits.items()
        }

    def without(self, samples: Sequence[tuple[str, int, str]]) -> "Source":
        """The source without the given samples (split, index, reason), which are added to `left_out` and `unreadable`.
        """
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
    """The separator of several class names in one cell: |, or another character if a class name contains it."""
    return next((sign for sign in SEPARATORS if not any(sign in name for name in classes)), "\t")


def _check_arrays(source: Source) -> None:
    """Raises DataError unless the labels are arrays of integers or of true and false."""
    for key, split in source.splits.items():
        kind = getattr(split.labels, "dtype", type(split.labels).__name__)
        if getattr(kind, "kind", None) not in ("i", "u", "b"):
            raise DataError(f"{source.name}: the {key} labels are of the type {kind}; they must be a numpy array, (N,) "
                            "int64 of class numbers or (N,classes) bool")


def _check_classes(source: Source) -> None:
    """Raises DataError unless there are two or more different class names, and training samples."""
    wrong = next((name for name in source.classes if not isinstance(name, str)), None)
    if wrong is not None:
        kind = type(wrong).__name__
        raise DataError(f"{source.name}: the class name {wrong!r} is {kind}, not text; give {str(wrong)!r}")
    if len(set(source.classes)) != len(source.classes):
        twice = sorted(name for name, count in Counter(source.classes).items() if count > 1)
        raise DataError(f"{source.name}: class names must be unique, but these occur more than once: {_listed(twice)}")
    if len(source.classes) < (1 if source.multi_label else 2):
        raise DataError(
            f"{source.name}: found {len(source.classes)} class ({_listed(source.classes)}), a classifier needs at "
            "least 2; give every class its own folder or label"
        )
    if "train" not in source.splits or len(source.splits["train"]) == 0:
        found = _listed(sorted(source.splits))
        raise DataError(f"{source.name}: there are 0 training {source.unit}s; splits found: {found}")


def _check_split(source: Source, key: str, split: Split) -> None:
    """Raises DataError unless a split has labels of the right shape and range, and a name for each."""
    if len(split.names) != len(split):
        raise DataError(f"{source.name}: the {key} split has {number_of(len(split), 'label')} and "
                        f"{number_of(len(split.names), 'name')}; it needs one of each per {source.unit}")
    expected = (len(split), len(source.classes)) if source.multi_label else (len(split),)
    if split.labels.shape != expected:
        raise DataError(f"{source.name}: the {key} labels have shape {split.labels.shape}, expected {expected}")
    if source.multi_label:
        return
    bad = np.flatnonzero((split.labels < 0) | (split.labels >= len(source.classes)))
    if len(bad):
        raise DataError(
            f"{split.names[int(bad[0])]}: label {split.labels[bad[0]]} is out of range, {source.name} has "
            f"{number_of(len(source.classes), 'class')} (0..{len(source.classes) - 1}); "
            f"{len(bad)} of {len(split)} {key} {agree(len(bad), 'label is', 'labels are')} wrong"
        )


def _listed(names: Sequence[str], limit: int = 5) -> str:
    return first_of(list(map(repr, names)), limit) or "none"
