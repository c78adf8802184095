"""Validation and test splits for sources that have none of their own.

`assign_splits` uses a hash of each sample's key, so that nearly all samples stay in their split when others
are added or removed.
`hold_out` selects an exact number of samples of a set that never changes, such as MNIST.
`rows_by_class` and `draw_from_each` process all classes together: one search or one call per class would take minutes
for 20,000 classes.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
import torch

from vit.counters import hash_counters
from vit.data.errors import DataError
from vit.data.identity import hash_positions
from vit.data.splits.split import Split, keys
from vit.messages import number_of

PARTS = ("train", "val", "test")
TRAIN, VAL, TEST = range(3)
SLACK = 1e-6  # tolerance for the rounding of sums of fractions
TIES = 8  # counter of the hash that breaks ties; another value would change published splits

_ASSIGNED: ContextVar[list[str] | None] = ContextVar("_ASSIGNED", default=None)


@contextmanager
def watched_splitting() -> Iterator[list[str]]:
    """A list that has an entry for each call of `assign_splits` in this context: it stays empty if the data has its
    own splits, so that neither fractions nor the seed have an effect.
    """
    calls: list[str] = []
    token = _ASSIGNED.set(calls)
    try:
        yield calls
    finally:
        _ASSIGNED.reset(token)


def assign_splits(
    keys: Sequence[str], labels: np.ndarray, fractions: Sequence[float], seed: int
) -> dict[str, np.ndarray]:
    """Indices of train, val and test by a hash of each key in [0, 1): test at the lower end, val at the upper end.

    Samples with the same key stay together. Every class has a sample in train, and between half and twice its share in
    val and in test; over all classes, val and test have between half and one and a half times their share. Where the
    hash alone violates this, as it may in small classes, the samples nearest to the threshold change sides. labels
    (N,), or (N,classes) bool.

    Raises:
        ValueError: `fractions` are not three numbers of at least 0 that add up to 1.
    """
    _check_fractions(fractions)
    if (calls := _ASSIGNED.get()) is not None:
        calls.append("fractions")
    _, val, test = fractions
    hashes = hash_positions(keys, seed)
    part = np.where(hashes < test, TEST, np.where(hashes >= 1 - val, VAL, TRAIN))
    _Rebalancer(part, hashes, labels, fractions).ensure()
    return {name: np.flatnonzero(part == number) for number, name in enumerate(PARTS)}


def _check_fractions(fractions: Sequence[float]) -> None:
    if len(fractions) != 3 or not (min(fractions) >= 0 and abs(sum(fractions) - 1) <= 1e-6):  # NaN too
        raise ValueError(
            f"fractions={list(fractions)} must be three numbers >= 0 that add up to 1, such as [0.8, 0.1, 0.1]"
        )


class _Rebalancer:
    """Moves the samples nearest to a threshold until every class is within its bounds in each part; modifies `part`."""

    def __init__(self, part: np.ndarray, hashes: np.ndarray, labels: np.ndarray, fractions: Sequence[float]):
        self.part, self.hashes, self.fractions = part, hashes, fractions
        self.classes = labels.shape[1] if labels.ndim == 2 else int(labels.max(initial=-1)) + 1
        rows, indices = np.nonzero(labels) if labels.ndim == 2 else (np.arange(len(labels)), labels)
        # one entry for each label of each sample, and one entry per sample for the extra class "all"
        self.rows = np.concatenate([rows, np.arange(len(labels))])
        self.entry_classes = np.concatenate([indices, np.full(len(labels), self.classes)])
        self.first = np.searchsorted(rows, np.arange(len(labels) + 1))  # first entry of each row, without "all"
        classes, entries = rows_by_class(self.entry_classes)
        members = {c: self.rows[each] for c, each in zip(classes.tolist(), entries, strict=True)}
        self.members = defaultdict(lambda: np.zeros(0, np.int64), members)
        self.by_hash = np.argsort(hashes, kind="stable")
        self.sorted_hashes = hashes[self.by_hash]
        self.counts = self._count()  # (3,classes+1)
        self.lower, self.upper = self._bounds()

    def ensure(self) -> None:
        self._fill(TRAIN)  # first, since a class without training samples cannot be learned
        for number in (TEST, VAL):
            for class_index in np.flatnonzero(self.counts[number] > self.upper[number]):
                rows = self.members[class_index]
                rows = rows[self.part[rows] == number]
                self._move(rows, TRAIN, lambda n=number, c=class_index: self.counts[n, c] <= self.upper[n, c])
        for number in (TEST, VAL):
            self._fill(number)

    def _fill(self, number: int) -> None:
        for class_index in np.flatnonzero(self.counts[number] < self.lower[number]):
            rows = self.members[class_index]
            rows = rows[self.part[rows] != number]
            self._move(rows, number, lambda c=class_index: self.counts[number, c] >= self.lower[number, c])

    def _count(self) -> np.ndarray:
        width = self.classes + 1
        codes = self.part[self.rows] * width + self.entry_classes
        return np.bincount(codes, minlength=3 * width).reshape(3, width)

    def _bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """The lower and upper bounds of the samples of each class in each part, (3,classes+1) each."""
        fractions, present = np.array(self.fractions)[:, None], self.counts.sum(0) > 0
        shares = self.counts.sum(0) * fractions
        lower = np.maximum(np.floor(shares / 2 + SLACK), shares > 1 - SLACK).astype(np.int64)
        upper = np.maximum(np.ceil(2 * shares - SLACK), fractions > 0).astype(np.int64)
        lower[TRAIN] = present & (fractions[TRAIN] > 0)
        lower[:, -1] = np.maximum(np.ceil(shares[:, -1] / 2 - SLACK), fractions[:, 0] > 0)
        upper[:, -1] = np.maximum(np.floor(1.5 * shares[:, -1] + SLACK), fractions[:, 0] > 0)
        return lower, upper

    def _move(self, rows: np.ndarray, number: int, enough: Callable[[], bool]) -> None:
        """Moves samples into a part, the nearest hashes first, until `enough()`."""
        refused = None  # the hash of the last key that could not move: nothing has moved since
        for row in rows[np.argsort(self._distance(number, self.hashes[rows]), kind="stable")]:
            if enough():
                return
            if self.part[row] != number and self.hashes[row] != refused:
                moved = self._move_together(self._same_key(row), number)
                refused = None if moved else self.hashes[row]

    def _distance(self, number: int, hashes: np.ndarray) -> np.ndarray:
        """The distance of hashes from the interval of a part."""
        _, val, test = self.fractions
        train = np.where(hashes < test, test - hashes, hashes - (1 - val))
        return (train, -hashes, hashes)[number]

    def _same_key(self, row: int) -> np.ndarray:
        """The samples with the hash of a sample."""
        first, end = (np.searchsorted(self.sorted_hashes, self.hashes[row], side) for side in ("left", "right"))
        return self.by_hash[first:end]

    def _move_together(self, together: np.ndarray, number: int) -> bool:
        """Moves the samples of one key, unless a class would fall below its lower bound in train, or for a move to val
        or test in any part; returns whether they were moved.
        """
        first, lengths = self.first[together], self.first[together + 1] - self.first[together]
        labels = np.arange(lengths.sum()) + np.repeat(first - lengths.cumsum() + lengths, lengths)
        entries = np.concatenate([labels, len(self.rows) - len(self.part) + together])
        indices, column = np.unique(self.entry_classes[entries], return_inverse=True)
        parts, moved = self.part[self.rows[entries]], np.zeros((3, len(indices)), np.int64)
        np.add.at(moved, (parts, column), 1)
        short = (self.counts[:, indices] - moved < self.lower[:, indices]) & (moved > 0)
        if short[TRAIN].any() or number != TRAIN and short.any():
            return False
        self.part[together] = number
        self.counts[:, indices] -= moved
        self.counts[number, indices] += moved.sum(0)
        return True


def hold_out(labels: np.ndarray, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """labels (N,) -> sorted indices of the remaining and of the `count` held-out samples, stratified by class.

    Each class keeps a sample, so that at most N - classes samples are held out. The selection depends on the order of
    the samples.
    """
    _, members = rows_by_class(labels)
    quotas = _quotas(np.array([len(m) for m in members], dtype=np.int64), count, seed)
    number = np.arange(len(members))
    held = np.sort(draw_from_each(members, np.full_like(number, seed), number, quotas)[1])
    remaining = np.ones(len(labels), dtype=bool)
    remaining[held] = False
    return np.flatnonzero(remaining), held


def _quotas(counts: np.ndarray, total: int, seed: int) -> np.ndarray:
    """Shares of `total` in proportion to `counts` (largest remainder), each below its count; a hash breaks ties."""
    exact = counts * total / max(counts.sum(), 1)
    quotas = np.minimum(np.floor(exact).astype(np.int64), counts - 1)
    order = np.lexsort((hash_counters(seed, TIES, torch.arange(len(counts))).numpy(), np.floor(exact) - exact))
    while quotas.sum() < total and (quotas < counts - 1).any():
        quotas[order[quotas[order] < counts[order] - 1][: total - quotas.sum()]] += 1
    return quotas


def validation_fraction(fractions: Sequence[float]) -> float:
    """The fraction of the samples of train and val together that fractions of train, val and test give to val."""
    return fractions[1] / max(fractions[0] + fractions[1], 1e-9)


def with_validation(splits: dict[str, Split], count: int | None, fraction: float, seed: int) -> dict[str, Split]:
    """The splits, with "val" split off "train" if it is missing: `count` samples, stratified, or a `fraction`.

    A count is for sets that never change, since it depends on the order of the samples; a fraction does not. With a
    count or a fraction of 0 there is no "val".

    Raises:
        DataError: `count` is negative or not below the number of training samples.
    """
    if "val" in splits or count == 0:
        return splits
    train, rest = splits["train"], {key: split for key, split in splits.items() if key != "train"}
    if count is None:
        return three_ways(train, (1 - fraction, fraction, 0.0), seed) | rest
    unit = getattr(train, "unit", "image")
    if count < 0:
        raise DataError(f"data.val={count} must be at least 0, the number of {unit}s to hold out")
    if count >= len(train):
        raise DataError(f"val={count}: so many {unit}s cannot be held out of "
                        f"{number_of(len(train), f'training {unit}')}; lower data.val")
    remaining, held_out = hold_out(train.labels, count, seed)
    return {"train": train.take(remaining), "val": train.take(held_out)} | rest


def three_ways(whole: Split, fractions: Sequence[float], seed: int) -> dict[str, Split]:
    """Train, val and test of an undivided set, assigned by the samples' keys; empty splits are omitted."""
    parts = assign_splits(keys(whole), whole.labels, fractions, seed)
    return {part: whole.take(rows) for part, rows in parts.items() if len(rows)}


def rows_by_class(labels: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """labels (N,) → the classes that occur (C,), sorted, and the rows of each, ascending."""
    order = np.argsort(labels, kind="stable")
    classes, starts = np.unique(labels[order], return_index=True)
    return classes, np.split(order, starts[1:]) if len(classes) else []


def draw_from_each(
    groups: Sequence[np.ndarray], seeds: np.ndarray, counters: np.ndarray, counts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The first `counts` rows of each group g in the order of `permutation(seeds[g], counters[g], len(groups[g]))`: the
    group of each drawn row, ascending, and the row. Seeds, counters and counts are (G,) int64.
    """
    sizes = np.array([len(rows) for rows in groups], dtype=np.int64)
    group = np.repeat(np.arange(len(groups)), sizes)
    position = np.arange(len(group)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # within its group
    hashes = hash_counters(*map(torch.from_numpy, (seeds[group], counters[group], position))).numpy()
    rows = np.concatenate([np.zeros(0, np.int64), *groups])[np.lexsort((hashes, group))]
    drawn = position < counts[group]
    return group[drawn], rows[drawn]
