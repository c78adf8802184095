"""Generated line images: scikit-learn's handwritten digits side by side, with the digits as text."""

from dataclasses import dataclass

import numpy as np
import torch

from vit.counters import uniform
from vit.data.pairs.source import PairSource, PairSplit
from vit.data.sample_names import PackedStrings, RowNames
from vit.data.sets.builtin import digits as single_digits
from vit.data.splits.split import Split


def digit_strips(
    digits: int = 5,
    min_digits: int | None = None,
    train: int = 20_000,
    val: int = 1_000,
    test: int = 2_000,
    split_seed: int = 0,
) -> PairSource:
    """Images (8, 8 * digits) uint8 → "40713", composed when they are read.

    Each split uses the handwritten digits of the same split of `vit.data.digits`. The number of strips is arbitrary,
    since 1,257 digits form 10^15 strips of five. With `min_digits`, all lengths from it to `digits` are equally likely.

    Raises:
        ValueError: a number is out of range.
    """
    min_digits = digits if min_digits is None else min_digits
    if not 1 <= min_digits <= digits:
        raise ValueError(f"min_digits={min_digits} must be in 1..{digits}, the value of digits")
    if min(train, val, test) < 0:
        raise ValueError(f"train={train}, val={val} and test={test} must be at least 0")
    singles = single_digits(split_seed).splits
    counts = {"train": train, "val": val, "test": test}
    splits = {
        key: _strips(singles[key], key, count, min_digits, digits, split_seed, number)
        for number, (key, count) in enumerate(counts.items())
        if count
    }
    return PairSource("digit_strips", splits)


@dataclass(frozen=True)
class ReadStrip:
    """Strip i shows the digits `rows[i, : lengths[i]]` of `pixels` (N,8,8) from left to right."""

    pixels: np.ndarray
    rows: np.ndarray
    lengths: np.ndarray

    def __call__(self, i: int) -> np.ndarray:
        return np.concatenate(list(self.pixels[self.rows[i, : self.lengths[i]]]), axis=1)


def _strips(
    singles: Split, key: str, count: int, min_digits: int, max_digits: int, seed: int, number: int
) -> PairSplit:
    """The digits and their number are a function of (seed, split, strip)."""
    drawn = uniform(seed, number, torch.arange(count)[:, None], torch.arange(max_digits + 1)).numpy()  # (count,D+1)
    lengths = min_digits + (drawn[:, max_digits] * (max_digits + 1 - min_digits)).astype(np.int64)
    rows = (drawn[:, :max_digits] * len(singles)).astype(np.int64)
    shown = singles.labels[rows]
    targets = PackedStrings(["".join(map(str, shown[i, : lengths[i]])) for i in range(count)])
    names = RowNames(f"digit_strips {key}", np.arange(count))
    return PairSplit(targets, names, read=ReadStrip(singles.pixels, rows, lengths))
