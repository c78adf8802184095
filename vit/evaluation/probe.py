"""How well frozen vectors tell classes apart: nearest neighbours and logistic regression."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional as F

if TYPE_CHECKING:
    from sklearn.linear_model import LogisticRegression

TEMPERATURE = 0.07  # of the neighbours' votes, as in DINO (arXiv 2104.14294)
STRENGTHS = tuple(10.0**power for power in range(-4, 3))  # C of the logistic regression, the inverse of its penalty
CHUNK = 1024  # queries that are compared at once
FIT_STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0)
FOLDS, FOLD_ROWS, C_ALONE = 5, 2000, 0.1


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


@dataclass(frozen=True)
class LinearFit:
    """Logistic regression as one linear layer: weight (classes,D) and bias (classes,) float32.

    `accuracy` is that of the cross-validation which chose `C`.
    """

    C: float
    weight: np.ndarray
    bias: np.ndarray
    accuracy: float


def fit_linear(train: Labelled, classes: int, strengths: Sequence[float] = FIT_STRENGTHS) -> LinearFit:
    """Logistic regression on standardised vectors, the standardisation folded into the layer.

    `C` has the least cross entropy in a cross-validation of up to `FOLDS` folds over at most `FOLD_ROWS` vectors; where
    a class has a single vector it is `C_ALONE`. A class without any vector gets the weights of an average one.
    """
    mean, std = train.features.mean(0), train.features.std(0)
    std = np.where(std > 1e-6 * max(std.max(), 1e-12), std, np.inf)  # what never varies says nothing
    x = ((train.features - mean) / std).astype(np.float64)
    C, right = choose_strength(x, train.labels, strengths)
    model = regression(C).fit(x, train.labels)
    weight, bias = model.coef_ / std, model.intercept_
    if len(model.classes_) == 2:
        weight, bias = np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
    bias = bias - weight @ mean
    full = np.tile(weight.mean(0), (classes, 1)), np.full(classes, bias.min())
    full[0][model.classes_], full[1][model.classes_] = weight, bias
    return LinearFit(C, full[0].astype(np.float32), full[1].astype(np.float32), right)


def choose_strength(x: np.ndarray, labels: np.ndarray, strengths: Sequence[float]) -> tuple[float, float]:
    """The `C` with the least cross entropy over held-out folds, and the accuracy there."""
    from sklearn.model_selection import StratifiedKFold

    x, labels = x[:FOLD_ROWS], labels[:FOLD_ROWS]
    folds = min(FOLDS, int(np.bincount(labels)[np.unique(labels)].min()))
    if folds < 2:
        return C_ALONE, float("nan")
    parts = list(StratifiedKFold(folds, shuffle=True, random_state=0).split(x, labels))
    scores = []
    for strength in strengths:
        losses, right = [], []
        for kept, held in parts:
            model = regression(strength).fit(x[kept], labels[kept])
            probabilities = model.predict_proba(x[held])
            column = np.searchsorted(model.classes_, labels[held])
            losses.append(-np.log(probabilities[np.arange(len(held)), column] + 1e-12))
            right.append(model.classes_[probabilities.argmax(1)] == labels[held])
        scores.append((float(np.concatenate(losses).mean()), strength, float(np.concatenate(right).mean())))
    _, strength, right = min(scores)
    return strength, right


def regression(strength: float) -> "LogisticRegression":
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=strength, max_iter=300)


def accuracy(answers: np.ndarray, labels: np.ndarray) -> float:
    return float((answers == labels).mean())
