"""Held-out splits for a source that comes without its own validation or test part.

`assign` decides by a hash of each sample's key, so that a sample stays in its part when others are added or removed.
`hold_out` takes an exact number from a set that never changes, such as MNIST.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from vit.counters import hashed, permutation
from vit.data.errors import DataError
from vit.data.identity import positions
from vit.data.split import Split, keys

PARTS = ("train", "val", "test")
TRAIN, VAL, TEST = range(3)
SLACK = 1e-6  # of sums of fractions that binary numbers cannot hold
TIES = 8  # of the hash that breaks ties: the published splits of scikit-learn's digits stay as they were


def assign(keys: Sequence[str], labels: np.ndarray, fractions: Sequence[float], seed: int) -> dict[str, np.ndarray]:
    """Indices of train, val and test by a hash of each key in [0, 1): test at the lower end, val at the upper end.

    Samples with one key stay together. Every class has a sample in train, and between half and twice its share in val
    and in test; of the whole set these have between half and one and a half times their share. If the hash gives
    something else, as it may in small classes, the samples nearest to the threshold change sides. labels (N,), or
    (N,classes) bool.
    """
    check_fractions(fractions)
    _, val, test = fractions
    hashes = positions(keys, seed)
    part = np.where(hashes < test, TEST, np.where(hashes >= 1 - val, VAL, TRAIN))
    _Bounds(part, hashes, labels, fractions).ensure()
    return {name: np.flatnonzero(part == number) for number, name in enumerate(PARTS)}


def check_fractions(fractions: Sequence[float]) -> None:
    if len(fractions) != 3 or min(fractions) < 0 or abs(sum(fractions) - 1) > 1e-6:
        raise ValueError(
            f"fractions {tuple(fractions)} must be three numbers >= 0 that add up to 1, like (0.8, 0.1, 0.1)"
        )


class _Bounds:
    """Moves the samples nearest to a threshold until no class has too few or too many in a part; changes `part`."""

    def __init__(self, part: np.ndarray, hashes: np.ndarray, labels: np.ndarray, fractions: Sequence[float]):
        self.part, self.hashes, self.fractions = part, hashes, fractions
        self.classes = labels.shape[1] if labels.ndim == 2 else int(labels.max(initial=-1)) + 1
        rows, owners = np.nonzero(labels) if labels.ndim == 2 else (np.arange(len(labels)), labels)
        # one entry for each label of each sample, and one of the class "all" for each sample
        self.rows = np.concatenate([rows, np.arange(len(labels))])
        self.owners = np.concatenate([owners, np.full(len(labels), self.classes)])
        self.counts = self._count(slice(None))  # (3,classes+1)
        self.least, self.most = self._bounds()

    def ensure(self) -> None:
        self._fill(TRAIN)  # first: a class that is not there cannot be learnt
        for number in (TEST, VAL):
            for owner in np.flatnonzero(self.counts[number] > self.most[number]):
                rows = self.rows[(self.owners == owner) & (self.part[self.rows] == number)]
                self._move(rows, TRAIN, lambda n=number, c=owner: self.counts[n, c] <= self.most[n, c])
        for number in (TEST, VAL):
            self._fill(number)

    def _fill(self, number: int) -> None:
        for owner in np.flatnonzero(self.counts[number] < self.least[number]):
            rows = self.rows[(self.owners == owner) & (self.part[self.rows] != number)]
            self._move(rows, number, lambda c=owner: self.counts[number, c] >= self.least[number, c])

    def _count(self, entries: np.ndarray | slice) -> np.ndarray:
        width = self.classes + 1
        codes = self.part[self.rows[entries]] * width + self.owners[entries]
        return np.bincount(codes, minlength=3 * width).reshape(3, width)

    def _bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """The least and the most samples of each class in each part, (3,classes+1)."""
        fractions, present = np.array(self.fractions)[:, None], self.counts.sum(0) > 0
        shares = self.counts.sum(0) * fractions
        least = np.maximum(np.floor(shares / 2 + SLACK), shares > 1 - SLACK).astype(np.int64)
        most = np.maximum(np.ceil(2 * shares - SLACK), fractions > 0).astype(np.int64)
        least[TRAIN] = present & (fractions[TRAIN] > 0)
        least[:, -1] = np.maximum(np.ceil(shares[:, -1] / 2 - SLACK), fractions[:, 0] > 0)
        most[:, -1] = np.maximum(np.floor(1.5 * shares[:, -1] + SLACK), fractions[:, 0] > 0)
        return least, most

    def _move(self, rows: np.ndarray, number: int, enough: Callable[[], bool]) -> None:
        """Moves samples into a part, the nearest hashes first, until it is enough."""
        for row in rows[np.argsort(self._distance(number, self.hashes[rows]), kind="stable")]:
            if enough():
                return
            if self.part[row] != number:
                self._move_together(self.hashes == self.hashes[row], number)

    def _distance(self, number: int, hashes: np.ndarray) -> np.ndarray:
        """How far hashes lie outside the interval of a part."""
        _, val, test = self.fractions
        train = np.where(hashes < test, test - hashes, hashes - (1 - val))
        return (train, -hashes, hashes)[number]

    def _move_together(self, together: np.ndarray, number: int) -> None:
        """Moves samples (N,) bool of one key, unless val or test would have too few; train may take any."""
        entries = together[self.rows]
        moved = self._count(entries)
        short = (self.counts - moved < self.least) & (moved > 0)
        if short[TRAIN].any() or number != TRAIN and short.any():
            return
        self.part[together] = number
        self.counts += self._count(entries) - moved


def hold_out(labels: np.ndarray, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(remaining, held-out) indices, sorted; `count` samples are held out, stratified, and no class loses its last one.

    Which samples of a class are held out depends on their order. labels (N,).
    """
    members = [np.flatnonzero(labels == c) for c in np.unique(labels)]
    quotas = _quotas(np.array([len(m) for m in members]), count, seed)
    chosen = [m[permutation(seed, c, len(m)).numpy()[:q]] for c, (m, q) in enumerate(zip(members, quotas, strict=True))]
    held = np.sort(np.concatenate(chosen)) if chosen else np.zeros(0, np.int64)
    return np.setdiff1d(np.arange(len(labels)), held), held


def _quotas(counts: np.ndarray, total: int, seed: int) -> np.ndarray:
    """Shares of `total` in proportion to `counts` (largest remainder), each below its count; a hash breaks ties."""
    exact = counts * total / max(counts.sum(), 1)
    quotas = np.minimum(np.floor(exact).astype(np.int64), counts - 1)
    order = np.lexsort((hashed(seed, TIES, torch.arange(len(counts))).numpy(), np.floor(exact) - exact))
    while quotas.sum() < total and (quotas < counts - 1).any():
        for c in order:
            if quotas.sum() < total and quotas[c] < counts[c] - 1:
                quotas[c] += 1
    return quotas


def with_validation(splits: dict[str, Split], count: int | None, fraction: float, seed: int) -> dict[str, Split]:
    """The splits, with "val" split off "train" if there is none: `count` samples, stratified, or a fraction.

    A count is for sets that never change: it depends on the order of the samples, a fraction does not.

    Raises:
        DataError: `count` is not below the number of training samples.
    """
    if "val" in splits:
        return splits
    train, rest = splits["train"], {key: split for key, split in splits.items() if key != "train"}
    if count is None:
        return three_ways(train, (1 - fraction, fraction, 0.0), seed) | rest
    if count >= len(train):
        unit = getattr(train, "unit", "image")
        raise DataError(f"val={count} {unit}s cannot be held out of {len(train)} training {unit}s; lower data.val")
    remaining, held_out = hold_out(train.labels, count, seed)
    return {"train": train.take(remaining), "val": train.take(held_out)} | rest


def three_ways(whole: Split, fractions: Sequence[float], seed: int) -> dict[str, Split]:
    """Train, val and test out of an undivided set, each sample by its key; empty parts are omitted."""
    parts = assign(keys(whole), whole.labels, fractions, seed)
    return {part: whole.take(rows) for part, rows in parts.items() if len(rows)}
