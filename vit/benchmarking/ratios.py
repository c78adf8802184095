"""Ratios of paired times, with the spread over the rounds."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES, CONFIDENCE = 2_000, 0.95


@dataclass(frozen=True)
class Ratio:
    """The median of paired ratios and its confidence interval; above 1 this project is faster.

    The interval is the percentile bootstrap of the median (Efron, 1979): 95 % of the medians of rounds drawn with
    replacement lie in it. It covers the variation between rounds, not that between machines.
    """

    median: float
    low: float
    high: float
    rounds: int

    def __str__(self) -> str:
        return f"{self.median:.2f} [{self.low:.2f}, {self.high:.2f}]"


def paired_ratio(ours: Sequence[float], other: Sequence[float]) -> Ratio:
    """The ratio `other / ours` of the times of each round.

    Raises:
        ValueError: no round, or different numbers of rounds.
    """
    if not ours or len(ours) != len(other):
        raise ValueError(f"paired times need the same rounds of both programs, not {len(ours)} and {len(other)}")
    ratios = np.array(other) / np.array(ours)
    draws = np.random.default_rng(0).integers(0, len(ratios), (RESAMPLES, len(ratios)))
    medians = np.median(ratios[draws], axis=1)
    low, high = np.quantile(medians, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Ratio(float(np.median(ratios)), float(low), float(high), len(ratios))


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """The first quartile, the median and the third quartile."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high
