"""Which unlabelled samples to label next: uncertain ones that differ from each other.

BADGE (Ash et al., arXiv 1906.03671): samples are drawn by k-means++ in the space of the gradients of the last layer,
with the prediction as the label. The gradient is the outer product of (probability - prediction) and the features. It
is long for uncertain samples, and its directions differ for samples that change different weights.
"""

import numpy as np
import torch

from vit.counters import hash_counters, to_unit_interval

SEED = 77  # seed of the draws


def uncertainty(probabilities: np.ndarray, thresholds: np.ndarray | None = None) -> np.ndarray:
    """probabilities (N,classes) -> (N,) in [0,1], 1 for the most uncertain.

    One label per sample: 1 - the margin between the two most probable classes (Scheffer et al. 2001). Several labels
    (`thresholds` (classes,)): the mean binary entropy of the labels in bits.
    """
    if thresholds is not None:
        p = np.clip(probabilities, 1e-12, 1 - 1e-12)
        return -(p * np.log2(p) + (1 - p) * np.log2(1 - p)).mean(1)
    if probabilities.shape[1] < 2:
        return np.zeros(len(probabilities))
    second, first = np.partition(probabilities, -2, axis=1)[:, -2:].T
    return 1 - (first - second)


def most_uncertain(scores: np.ndarray, count: int) -> np.ndarray:
    """scores (N,) -> the indices of the `count` highest ones, highest first."""
    return np.argsort(-scores, kind="stable")[:count]


def residuals(probabilities: np.ndarray, thresholds: np.ndarray | None = None) -> np.ndarray:
    """probabilities (N,classes) -> their difference (N,classes) from the predicted labels: the gradient of the loss
    with respect to the logits.
    """
    if thresholds is not None:
        return probabilities - (probabilities >= thresholds)
    predicted = np.zeros_like(probabilities)
    predicted[np.arange(len(probabilities)), probabilities.argmax(1)] = 1
    return probabilities - predicted


def directions(features: np.ndarray) -> np.ndarray:
    """features (N,D) -> (N,D) relative to their mean, of length 1, so that large vectors do not dominate the choice."""
    centred = features - features.mean(0)
    return centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12)


def choose_diverse(features: np.ndarray, residual: np.ndarray, count: int, seed: int = 0) -> np.ndarray:
    """features (N,D), residual (N,classes) -> the indices (count,) of the chosen samples, in the order of their choice.

    The first is the sample with the longest gradient; each further one is drawn with a probability proportional to its
    squared distance from the nearest chosen one. The first k samples do not depend on `count`.
    """
    lengths = (residual**2).sum(1) * (features**2).sum(1)  # squared lengths of the gradients, (N,)
    chosen: list[int] = []
    nearest = np.full(len(lengths), np.inf)
    draws = to_unit_interval(hash_counters(SEED, seed, torch.arange(count))).numpy()
    for draw in draws[: min(count, len(features))]:
        weights = np.maximum(nearest if chosen else lengths, 0)
        weights[chosen] = 0
        if not weights.sum() > 0:  # only copies of chosen samples are left
            weights = np.ones(len(features))
            weights[chosen] = 0
        total = weights.cumsum()
        pick = int(np.searchsorted(total, draw * total[-1], side="right")) if chosen else int(weights.argmax())
        chosen.append(pick)
        products = (residual @ residual[pick]) * (features @ features[pick])
        nearest = np.minimum(nearest, lengths + lengths[pick] - 2 * products)
    return np.array(chosen, dtype=np.int64)
