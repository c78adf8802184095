"""Confidence intervals of a classifier's accuracies: the percentile bootstrap over samples, exact where it fails.

All accuracies are functions of the number of samples per cell (class, outcome), so a resample is one count per cell.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from vit.counters import hash_counters
from vit.evaluation.classification import Evaluation

RESAMPLES = 2000
LEVEL = 0.95
FEWEST = 10  # correct and wrong samples; with fewer, the interval of the bootstrap is too short
CHUNK = 1 << 19  # sample indices at a time
SAMPLES_DRAWN = 1 << 28  # samples drawn in all resamples, at most, in about 5 seconds; beyond that counts are drawn
CELLS_COUNTED = 1 << 25  # counts of all resamples, 128 MB; for more, classes are drawn in blocks
BLOCK_COUNTS = 1 << 22  # counts of a block, 32 MB
BOOTSTRAP, EXACT, NONE = "bootstrap", "exact binomial", "none"
OUTCOMES = 3  # wrong, among the best five, correct


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval; `low` and `high` are None for the method `NONE`."""

    value: float
    low: float | None
    high: float | None
    method: str


@dataclass(frozen=True)
class Accuracies:
    """The accuracies of a classifier, with their intervals.

    Args:
        top5: None for at most five classes.
        macro: the mean of the accuracies of the classes with samples.
        per_class: the accuracy of each class, in the order of the classes; None for a class without samples.
    """

    accuracy: Interval
    top5: Interval | None
    macro: Interval
    per_class: list[Interval | None]


def accuracies(evaluation: Evaluation, resamples: int = RESAMPLES, level: float = LEVEL, seed: int = 0) -> Accuracies:
    """The accuracies of an evaluation with confidence intervals over the draw of its samples.

    The intervals do not cover the variation between training runs of the same model. Accuracies with less than `FEWEST`
    correct or wrong samples have the exact binomial interval (Clopper and Pearson 1934).
    """
    hits = evaluation.predictions == evaluation.labels[:, None]  # (N,K)
    outcomes = hits[:, 0].astype(np.int64) + hits.any(axis=1)
    classes = len(evaluation.classes)
    cells = evaluation.labels.astype(np.int64) * OUTCOMES + outcomes
    observed = np.bincount(cells, minlength=classes * OUTCOMES).reshape(classes, OUTCOMES)
    total, recalls, present, per_class = np.zeros((resamples, OUTCOMES), np.int64), 0.0, 0, []
    for start, drawn in drawn_blocks(cells, observed, resamples, seed):
        total += drawn.sum(axis=1)
        images = drawn.sum(axis=-1)  # (resamples,block)
        recalls = recalls + (drawn[..., -1] / np.maximum(images, 1)).sum(axis=-1)
        present = present + (images > 0).sum(axis=-1)
        per_class += [rate_interval(each[None], drawn[:, i], level) if each.any() else None
                      for i, each in enumerate(observed[start : start + drawn.shape[1]])]
    whole = observed.sum(axis=0, keepdims=True)
    top5 = rate_interval(whole, total, level, first=1) if classes > 5 else None
    return Accuracies(rate_interval(whole, total, level), top5, macro_interval(observed, recalls / present, level),
                      per_class)


def drawn_blocks(
    cells: np.ndarray, observed: np.ndarray, resamples: int, seed: int = 0
) -> Iterator[tuple[int, np.ndarray]]:
    """Blocks of classes: the first class, and the counts of its block in the resamples (resamples,block,OUTCOMES).

    Up to `SAMPLES_DRAWN` samples and `CELLS_COUNTED` counts all samples are drawn, as `resampled_counts` does. Larger
    sets have counts from the multinomial distribution that such draws have, without a draw per sample and with
    `BLOCK_COUNTS` counts in memory at a time: the number of samples of a block is binomial given those of the blocks
    before it.
    """
    classes = len(observed)
    if resamples * len(cells) <= SAMPLES_DRAWN and resamples * observed.size <= CELLS_COUNTED:
        yield 0, resampled_counts(cells, observed.size, resamples, seed).reshape(resamples, classes, OUTCOMES)
        return
    random = np.random.Generator(np.random.Philox(key=seed % 2**64))
    rest, left = len(cells), np.full(resamples, len(cells))  # samples of the classes not yet drawn
    size = max(BLOCK_COUNTS // (resamples * OUTCOMES), 1)
    for start in range(0, classes, size):
        counts = observed[start : start + size].ravel()
        samples = int(counts.sum())
        number = random.binomial(left, min(samples / rest, 1.0)) if rest else left
        drawn = random.multinomial(number, counts / max(samples, 1)) if samples else np.zeros(
            (resamples, len(counts)), np.int64)
        rest, left = rest - samples, left - number
        yield start, drawn.reshape(resamples, -1, OUTCOMES)


def resampled_counts(cells: np.ndarray, count: int, resamples: int, seed: int = 0) -> np.ndarray:
    """cells (N,) -> int32 (resamples,count): the samples of each cell in N draws with replacement.

    Sample j of resample i is a hash of (seed, i, j).
    """
    size, rows = len(cells), max(CHUNK // max(len(cells), 1), 1)
    columns, values = torch.arange(size), torch.from_numpy(np.ascontiguousarray(cells))
    found = torch.empty((resamples, count), dtype=torch.int32)
    for start in range(0, resamples, rows):
        row = torch.arange(start, min(start + rows, resamples))
        bits = hash_counters(seed, row[:, None], columns)  # int64
        drawn = values[((bits >> 11) & ((1 << 52) - 1)) % size]  # (rows,N)
        offsets = torch.arange(len(row))[:, None] * count
        counts = torch.bincount((drawn + offsets).ravel(), minlength=len(row) * count)
        found[start : start + len(row)] = counts.reshape(len(row), count)
    return found.numpy()


def rate_interval(observed: np.ndarray, drawn: np.ndarray, level: float, first: int = OUTCOMES - 1) -> Interval:
    """The rate of the outcomes from `first` on, from the observed counts (1,OUTCOMES) and those of the resamples
    (resamples,OUTCOMES).
    """
    total, right = int(observed.sum()), int(observed[:, first:].sum())
    if min(right, total - right) < FEWEST:
        return Interval(right / total, *exact_interval(right, total, level), EXACT)
    with np.errstate(invalid="ignore"):  # a class may be missing in a resample
        values = drawn[:, first:].sum(axis=1) / drawn.sum(axis=1)
    return Interval(right / total, *percentiles(values, level), BOOTSTRAP)


def macro_interval(observed: np.ndarray, drawn: np.ndarray, level: float) -> Interval:
    """The mean accuracy of the classes, from the observed counts (classes,OUTCOMES) and its values in the resamples
    (resamples,).
    """
    totals = observed.sum(axis=-1)
    value = float((observed[:, -1] / np.maximum(totals, 1)).sum() / (totals > 0).sum())
    wrong = int(observed[:, :-1].sum())
    if min(wrong, int(observed.sum()) - wrong) < FEWEST:
        return Interval(value, None, None, NONE)
    return Interval(value, *percentiles(drawn, level), BOOTSTRAP)


def percentiles(values: np.ndarray, level: float) -> tuple[float, float]:
    """The percentile interval (Efron 1979) of the values of the resamples; undefined ones are ignored."""
    low, high = np.nanquantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def exact_interval(right: int, total: int, level: float = LEVEL) -> tuple[float, float]:
    """The interval of Clopper and Pearson (1934) of a rate, `right` of `total` samples."""
    from scipy.special import betaincinv  # the quantiles of beta distributions, without scipy.stats

    tail = (1 - level) / 2
    low = float(betaincinv(right, total - right + 1, tail)) if right else 0.0
    high = float(betaincinv(right + 1, total - right, 1 - tail)) if right < total else 1.0
    return low, high
