"""Folds of a data set for cross-validation, by a hash of each sample's name or group."""

import re
from collections.abc import Sequence

import numpy as np

from vit.data.errors import DataError, printable
from vit.data.identity import hash_positions
from vit.data.splits.splitting import rows_by_class
from vit.messages import number_of

ROUNDS = 4  # rounds of moving samples between folds; one or two suffice unless there are few groups
CLASS_SLACK, TOTAL_SLACK = 0.5, 0.25  # maximum deviation of a fold from its share of a class, and of all samples
GROUP_LIMIT = 1.5  # largest group relative to a fold; a larger one would be most of two folds


def parse_fold(text: str) -> tuple[int, int]:
    """(k, n) of "k/n", with k in 1..n.

    Raises:
        DataError: it is not of this form, or k or n is out of range.
    """
    match = re.fullmatch(r"\s*(\d+)\s*/\s*(\d+)\s*", str(text))
    if match is None:
        raise DataError(f"data.fold={text} is not k/n, such as 1/5 for the first of 5 folds")
    k, n = map(int, match.groups())
    if n < 2:
        raise DataError(f"data.fold={text}: {number_of(n, 'fold')}; there must be 2 or more")
    if not 1 <= k <= n:
        raise DataError(f"data.fold={text}: fold {k} is out of range, the {number_of(n, 'fold')} are 1/{n} to {n}/{n}")
    return k, n


def assign_folds(
    keys: Sequence[str], labels: np.ndarray, folds: int, seed: int, classes: Sequence[str] | None = None
) -> np.ndarray:
    """The fold 0..folds-1 of each sample (N,) int64, by a hash of its key; samples with the same key stay together.

    A sample keeps its fold when others are added. Only where the hash alone gives a fold less than half or more than
    one and a half times its share of a class, or 25 % less or more than its share of all samples, the keys nearest to
    the fold change sides. labels (N,), or (N,classes) bool.

    Raises:
        DataError: a class has fewer keys than there are folds, so that a fold would lack it, or the samples of a key
            are more than one and a half folds.
    """
    balance = _Balance(keys, labels, folds, seed)
    names = [str(c) for c in range(balance.width - 1)] if classes is None else list(classes)
    balance.check(names, [keys[i] for i in balance.first])
    balance.level()
    missing = np.argwhere(balance.counts[:, balance.present] == 0)
    if len(missing):
        fold, column = missing[0]
        name = printable([*names, "all"][np.flatnonzero(balance.present)[column]])
        raise DataError(f"fold {fold + 1}/{folds} would have no sample of class {name!r}, because its groups cannot be "
                        "distributed over all folds; use fewer folds, or smaller groups")
    return balance.fold[balance.unit]


class _Balance:
    """Units (the samples of one key), the fold of each (U,), and the samples of each class in each fold
    (folds,classes+1); the last column counts all samples.
    """

    def __init__(self, keys: Sequence[str], labels: np.ndarray, folds: int, seed: int):
        hashes = hash_positions(keys, seed)
        self.hashes, self.first, self.unit = np.unique(hashes, return_index=True, return_inverse=True)
        self.folds = folds
        self.fold = np.minimum((self.hashes * folds).astype(np.int64), folds - 1)
        self.width = (labels.shape[1] if labels.ndim == 2 else int(labels.max(initial=-1)) + 1) + 1
        rows, indices = np.nonzero(labels) if labels.ndim == 2 else (np.arange(len(labels)), labels)
        units = np.concatenate([self.unit[rows], self.unit])
        indices = np.concatenate([indices, np.full(len(labels), self.width - 1)])
        codes, self.entry_count = np.unique(units * self.width + indices, return_counts=True)
        self.entry_unit, self.entry_class = np.divmod(codes, self.width)  # an entry per class of each unit
        self.starts = np.searchsorted(self.entry_unit, np.arange(len(self.hashes) + 1))
        classes, entries = rows_by_class(self.entry_class)
        self.members = {c: self.entry_unit[each] for c, each in zip(classes.tolist(), entries, strict=True)}
        self.counts = self._count()
        totals = self.counts.sum(0)
        self.present, share = totals > 0, totals / folds
        slack = np.full(self.width, CLASS_SLACK)
        slack[-1] = TOTAL_SLACK
        self.lower = np.where(self.present, np.maximum(np.floor(share * (1 - slack)), 1), 0)
        self.upper = np.ceil(share * (1 + slack))

    def _count(self) -> np.ndarray:
        codes = self.fold[self.entry_unit] * self.width + self.entry_class
        size = self.folds * self.width
        return np.bincount(codes, self.entry_count, size).astype(np.int64).reshape(self.folds, self.width)

    def check(self, classes: Sequence[str], keys: Sequence[str]) -> None:
        """Raises DataError for a class with fewer units than folds, and for a unit larger than a fold."""
        total, grouped = int(self.counts[:, -1].sum()), len(self.hashes) < len(self.unit)
        if total < self.folds:
            raise DataError(f"{number_of(total, 'sample')} cannot be divided into {number_of(self.folds, 'fold')}; use "
                            f"at most {number_of(total, 'fold')}")
        sizes = self.entry_count[self.entry_class == self.width - 1]
        largest = int(sizes.argmax())
        if sizes[largest] > max(GROUP_LIMIT * total / self.folds, 1):
            most = max(int(GROUP_LIMIT * total / sizes[largest]), 1)
            fix = f"use at most {most} folds, or smaller groups" if most > 1 else "use smaller groups"
            raise DataError(f"the group {printable(keys[largest])!r} has {sizes[largest]} of the {total} samples, more "
                            f"than 1.5 times a fold of about {total // self.folds} samples; {fix}")
        units = np.bincount(self.entry_class, minlength=self.width)
        few = np.flatnonzero(self.present[:-1] & (units[:-1] < self.folds))
        if len(few):
            unit = "groups" if grouped else "samples"
            name, count = printable(classes[few[0]]), units[few[0]]
            fix = f"use at most {count} folds" if count > 1 else "leave it out"
            raise DataError(f"class {name!r} has {number_of(count, unit.removesuffix('s'))}, fewer than the "
                            f"{self.folds} folds, so a fold would lack it; add {unit} to it, or {fix}")

    def level(self) -> None:
        """Moves units until all counts are within their bounds, as far as single moves achieve it."""
        for _ in range(ROUNDS):
            before = self.fold.copy()
            for class_index in np.argsort(self.counts.sum(0), kind="stable"):  # rare classes have the least choice
                for fold in np.flatnonzero(self.counts[:, class_index] < self.lower[class_index]):
                    self._fill(fold, class_index)
                for fold in np.flatnonzero(self.counts[:, class_index] > self.upper[class_index]):
                    self._reduce(fold, class_index)
            if np.array_equal(before, self.fold):
                return

    def _fill(self, fold: int, class_index: int) -> None:
        units = self.members[class_index]
        units = units[self.fold[units] != fold]
        for unit in units[np.argsort(self._distance(units, fold), kind="stable")]:
            if self.counts[fold, class_index] >= self.lower[class_index]:
                return
            self._move(unit, fold, class_index)

    def _reduce(self, fold: int, class_index: int) -> None:
        units = self.members[class_index]
        units = units[self.fold[units] == fold]
        for unit in units[np.argsort(self.hashes[units], kind="stable")]:
            if self.counts[fold, class_index] <= self.upper[class_index]:
                return
            self._move(unit, int(self.counts[:, class_index].argmin()), class_index)

    def _distance(self, units: np.ndarray, fold: int) -> np.ndarray:
        """The distance of the units' hashes from the middle of the fold's interval, on a circle."""
        away = np.abs(self.hashes[units] - (fold + 0.5) / self.folds)
        return np.minimum(away, 1 - away)

    def _move(self, unit: int, fold: int, class_index: int) -> None:
        """Move a unit to another fold to correct the count of one class, unless the count of another class would then
        be outside its bounds. The total is corrected last, so it does not prevent a move for a class.
        """
        entries = slice(self.starts[unit], self.starts[unit + 1])
        indices, number, origin = self.entry_class[entries], self.entry_count[entries], self.fold[unit]
        left, joined = self.counts[origin, indices] - number, self.counts[fold, indices] + number
        worse = (left < self.lower[indices]) | (joined > np.maximum(self.upper[indices], left + number))
        if (worse & ((indices < self.width - 1) | (class_index == self.width - 1))).any():
            return
        self.fold[unit] = fold
        self.counts[origin, indices] -= number
        self.counts[fold, indices] += number
