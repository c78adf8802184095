"""How well frozen vectors tell classes apart: nearest neighbours and logistic regression."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional as F

TEMPERATURE = 0.07  # of the neighbours' votes, as in DINO (arXiv 2104.14294)
STRENGTHS = tuple(10.0**power for power in range(-4, 3))  # C of the logistic regression, the inverse of its penalty
CHUNK = 1024  # queries that are compared at once


@dataclass(frozen=True)
class Labelled:
    """features (N,D) float32, labels (N,) int64"""

    features: np.ndarray
    labels: np.ndarray


def nearest_neighbours(
    train: Labelled, queries: np.ndarray, ks: Sequence[int], temperature: float = TEMPERATURE
) -> dict[int, np.ndarray]:
    """queries (Q,D) -> for each k the class (Q,) that the k most alike training vectors vote for.

    Alike is the cosine, and a vote weighs exp(cosine / temperature).

    Raises:
        ValueError: a k that is not between 1 and the number of training vectors.
    """
    for k in ks:
        if not 1 <= k <= len(train.labels):
            raise ValueError(f"k is {k}, but must be 1 to {len(train.labels)}, the number of training vectors")
    known = F.normalize(torch.from_numpy(train.features))  # (N,D)
    labels, classes = torch.from_numpy(train.labels), int(train.labels.max()) + 1
    found = {k: [] for k in ks}
    for chunk in torch.from_numpy(queries).split(CHUNK):
        cosines, rows = (F.normalize(chunk) @ known.T).topk(max(ks))  # (B,K)
        weights = (cosines / temperature).exp()
        for k in ks:
            votes = torch.zeros(len(chunk), classes).scatter_add(1, labels[rows[:, :k]], weights[:, :k])
            found[k].append(votes.argmax(1))
    return {k: torch.cat(parts).numpy() for k, parts in found.items()}


@dataclass(frozen=True)
class Regression:
    """A fitted logistic regression on standardised vectors: `classify(features)` (N,D) -> (N,)."""

    C: float
    classify: Callable[[np.ndarray], np.ndarray]


def logistic_regression(
    train: Labelled, val: Labelled, strengths: Sequence[float] = STRENGTHS, progress: Callable[[], None] | None = None
) -> Regression:
    """scikit-learn's, on vectors of mean 0 and deviation 1, with the `C` that names most validation samples rightly;
    of equals the smaller one.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler().fit(train.features)
    x, checked = scaler.transform(train.features), scaler.transform(val.features)
    best, right = None, -1
    for strength in sorted(strengths):
        model = LogisticRegression(C=strength, max_iter=2000).fit(x, train.labels)
        hits = int((model.predict(checked) == val.labels).sum())
        if hits > right:
            best, right = model, hits
        if progress:
            progress()
    return Regression(float(best.C), lambda features: best.predict(scaler.transform(features)))


def accuracy(answers: np.ndarray, labels: np.ndarray) -> float:
    return float((answers == labels).mean())
