"""Confidence intervals of the average precision and F1 of a multi-label classifier: the bootstrap over images."""

from dataclasses import dataclass

import numpy as np

from vit.evaluation.intervals.bootstrap import BOOTSTRAP, FEWEST, LEVEL, NONE, Interval, percentiles, resampled_counts
from vit.evaluation.multi_label import MultiLabelEvaluation

RESAMPLES = 500


@dataclass(frozen=True)
class LabelIntervals:
    """Means over the labels that occur, and per label; None for a label that no image has."""

    map: Interval
    f1: Interval
    average_precision: list[Interval | None]
    label_f1: list[Interval | None]


def label_intervals(evaluation: MultiLabelEvaluation) -> LabelIntervals:
    """The intervals of an evaluation. A label with fewer than `FEWEST` images has no interval, because its bootstrap
    interval would be too short.
    """
    size = len(evaluation.truth)
    counts = resampled_counts(np.arange(size), size, RESAMPLES).T.astype(np.uint8, order="C").T  # (RESAMPLES,N)
    present, predicted = np.flatnonzero(evaluation.truth.any(axis=0)), evaluation.predicted
    areas = np.full((len(evaluation.classes), RESAMPLES), np.nan)
    f1 = areas.copy()
    for c in present:
        areas[c] = weighted_precision(evaluation.truth[:, c], evaluation.probabilities[:, c], counts)
        f1[c] = weighted_f1(evaluation.truth[:, c], predicted[:, c], counts)
    scores = evaluation.scores
    return LabelIntervals(
        Interval(evaluation.metrics["map"], *percentiles(label_mean(areas[present]), LEVEL), BOOTSTRAP),
        Interval(evaluation.metrics["f1"], *percentiles(label_mean(f1[present]), LEVEL), BOOTSTRAP),
        [interval(score.images, score.average_precision, drawn) for score, drawn in zip(scores, areas, strict=True)],
        [interval(score.images, score.f1, drawn) for score, drawn in zip(scores, f1, strict=True)],
    )


def label_mean(scores: np.ndarray) -> np.ndarray:
    """Scores of labels in resamples (labels,R), nan for a label without images -> their mean over the labels that occur
    in a resample (R,); nan if no label occurs
    """
    count = (~np.isnan(scores)).sum(axis=0)
    return np.where(count, np.nansum(scores, axis=0) / np.maximum(count, 1), np.nan)


def interval(images: int, value: float, drawn: np.ndarray) -> Interval | None:
    """The interval of one label from its values in the resamples."""
    if not images:
        return None
    if images < FEWEST:
        return Interval(value, None, None, NONE)
    return Interval(value, *percentiles(drawn, LEVEL), BOOTSTRAP)


def weighted_precision(truth: np.ndarray, probabilities: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """truth, probabilities (N,), integer weights of the images (R,N) -> average precision (R,), without interpolation;
    nan if no image with the label has a weight

    Precision changes only at groups of equal probabilities with a true image. The weights between two such groups are
    summed at once, which is fast if `weights.T` is contiguous.
    """
    order = np.argsort(-probabilities, kind="stable")
    group = np.cumsum(np.append(False, np.diff(probabilities[order]) != 0))  # number of each image's group
    positives = np.flatnonzero(truth[order])
    numbers, firsts = np.unique(group[positives], return_index=True)
    ends = np.searchsorted(group, numbers, side="right")
    gains = np.add.reduceat(weights.T[order[positives]], firsts, axis=0, dtype=np.int64)  # (groups,R)
    between = np.add.reduceat(weights.T[order[: ends[-1]]], np.append(0, ends[:-1]), axis=0, dtype=np.int64)
    hits, total = gains.cumsum(axis=0), between.cumsum(axis=0)
    with np.errstate(invalid="ignore"):
        return (hits / np.maximum(total, 1) * gains).sum(axis=0) / hits[-1]


def weighted_f1(truth: np.ndarray, predicted: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """truth, predicted (N,) bool, integer weights of the images (R,N) -> F1 (R,); nan if no image with the label has
    a weight
    """
    both, true, predictions = (weights.T[chosen].sum(axis=0, dtype=np.int64)
                               for chosen in (truth & predicted, truth, predicted))
    return np.where(true, 2 * both / np.maximum(true + predictions, 1), np.nan)
