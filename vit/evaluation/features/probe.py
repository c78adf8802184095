"""Probes of frozen features: k-nearest-neighbour classification and logistic regression (linear probing)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional as F

from vit.counters import permutation
from vit.messages import ArgumentError

if TYPE_CHECKING:
    from sklearn.linear_model import LogisticRegression

TEMPERATURE = 0.07  # temperature of the neighbours' votes, as in DINO (arXiv 2104.14294)
C_VALUES = tuple(10.0**power for power in range(-4, 3))  # inverse regularization strengths of the linear probe
CHUNK, LARGEST = 1024, 1 << 27  # queries and cosines per matrix product, at most: 512 MB
FIT_C_VALUES = (1e-3, 1e-2, 1e-1, 1.0)  # regularizations that `fit_linear` compares
MAX_FOLDS, MAX_CV_SAMPLES = 5, 2000  # limits of the cross-validation of `fit_linear`
C_WITHOUT_CV = 0.1  # if a class has a single sample


@dataclass(frozen=True)
class Labelled:
    """features (N,D) float32, labels (N,) int64"""

    features: np.ndarray
    labels: np.ndarray


def nearest_neighbours(
    train: Labelled, queries: np.ndarray, ks: Sequence[int], temperature: float = TEMPERATURE
) -> dict[int, np.ndarray]:
    """queries (Q,D) -> for each k the predicted class (Q,) by a weighted vote of the k nearest training vectors.

    Weighted k-NN of Wu et al. (arXiv 1805.01978): similarity is the cosine, a vote weighs exp(cosine / temperature).

    Raises:
        ValueError: a k is below 1 or above the number of training vectors.
    """
    for k in ks:
        if not 1 <= k <= len(train.labels):
            raise ArgumentError(f"k is {k}, but must be 1 to {len(train.labels)}, the number of training vectors")
    keys = F.normalize(torch.from_numpy(train.features))  # (N,D)
    labels, classes = torch.from_numpy(train.labels), int(train.labels.max()) + 1
    predicted = {k: [] for k in ks}
    for chunk in torch.from_numpy(queries).split(max(1, min(CHUNK, LARGEST // len(keys)))):
        cosines, rows = (F.normalize(chunk) @ keys.T).topk(max(ks))  # (B,max k)
        weights = (cosines / temperature).exp()
        for k in ks:
            votes = torch.zeros(len(chunk), classes).scatter_add(1, labels[rows[:, :k]], weights[:, :k])
            predicted[k].append(votes.argmax(1))
    return {k: torch.cat(parts).numpy() for k, parts in predicted.items()}


@dataclass(frozen=True)
class Regression:
    """A fitted logistic regression on standardized features: `classify(features)` (N,D) -> (N,)."""

    C: float
    classify: Callable[[np.ndarray], np.ndarray]


def logistic_regression(
    train: Labelled, val: Labelled, c_values: Sequence[float] = C_VALUES, progress: Callable[[], None] | None = None
) -> Regression:
    """scikit-learn's logistic regression on standardized features; `C` has the highest validation accuracy, among
    equals it is the smallest.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler().fit(train.features)
    x, x_val = scaler.transform(train.features), scaler.transform(val.features)
    best, best_hits = None, -1
    for c in sorted(c_values):
        model = LogisticRegression(C=c, max_iter=2000).fit(x, train.labels)
        hits = int((model.predict(x_val) == val.labels).sum())
        if hits > best_hits:
            best, best_hits = model, hits
        if progress:
            progress()
    return Regression(float(best.C), lambda features: best.predict(scaler.transform(features)))


@dataclass(frozen=True)
class LinearFit:
    """Logistic regression as one linear layer: weight (classes,D) and bias (classes,) float32.

    `accuracy` is the accuracy in the cross-validation that selected `C`; nan without cross-validation.
    """

    C: float
    weight: np.ndarray
    bias: np.ndarray
    accuracy: float


def fit_linear(train: Labelled, classes: int, c_values: Sequence[float] = FIT_C_VALUES) -> LinearFit:
    """Logistic regression on standardized features, with the standardization folded into the layer.

    `C` has the lowest cross entropy in a cross-validation of up to `MAX_FOLDS` folds over at most `MAX_CV_SAMPLES`
    vectors; if a class has a single vector it is `C_WITHOUT_CV`. A class without vectors gets the mean weights of the
    other classes and their lowest bias.
    """
    mean, std = train.features.mean(0), train.features.std(0)
    std = np.where(std > 1e-6 * max(std.max(), 1e-12), std, np.inf)  # a constant feature gets weight 0
    x = ((train.features - mean) / std).astype(np.float64)
    c, accuracy = choose_c(x, train.labels, c_values)
    model = new_regression(c).fit(x, train.labels)
    weight, bias = model.coef_ / std, model.intercept_
    if len(model.classes_) == 2:
        weight, bias = np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
    bias = bias - weight @ mean
    full_weight, full_bias = np.tile(weight.mean(0), (classes, 1)), np.full(classes, bias.min())
    full_weight[model.classes_], full_bias[model.classes_] = weight, bias
    return LinearFit(c, full_weight.astype(np.float32), full_bias.astype(np.float32), accuracy)


def choose_c(x: np.ndarray, labels: np.ndarray, c_values: Sequence[float]) -> tuple[float, float]:
    """x (N,D), labels (N,) -> the `C` with the lowest cross entropy on held-out folds, and the accuracy there.

    Of more than `MAX_CV_SAMPLES` vectors a class-balanced subset is used, whatever their order.
    """
    from sklearn.model_selection import StratifiedKFold

    rows = np.sort(class_balanced_order(labels)[:MAX_CV_SAMPLES])
    x, labels = x[rows], labels[rows]
    folds = min(MAX_FOLDS, int(np.bincount(labels)[np.unique(labels)].min()))
    if folds < 2:
        return C_WITHOUT_CV, float("nan")
    parts = list(StratifiedKFold(folds, shuffle=True, random_state=0).split(x, labels))
    scores = []
    for c in c_values:
        losses, hits = [], []
        for fitted, held_out in parts:
            model = new_regression(c).fit(x[fitted], labels[fitted])
            probabilities = model.predict_proba(x[held_out])
            columns = np.searchsorted(model.classes_, labels[held_out])
            losses.append(-np.log(probabilities[np.arange(len(held_out)), columns] + 1e-12))
            hits.append(model.classes_[probabilities.argmax(1)] == labels[held_out])
        scores.append((float(np.concatenate(losses).mean()), c, float(np.concatenate(hits).mean())))
    _, c, accuracy = min(scores)
    return c, accuracy


def class_balanced_order(labels: np.ndarray) -> np.ndarray:
    """labels (N,) -> (N,): all indices in a fixed random order such that every prefix has equally many of each class,
    as far as the class has enough.
    """
    order = permutation(0, 0, len(labels)).numpy()
    _, classes, counts = np.unique(labels[order], return_inverse=True, return_counts=True)
    by_class, starts = np.argsort(classes, kind="stable"), np.cumsum(counts) - counts
    rank = np.empty(len(order), dtype=np.int64)  # of each sample within its class
    rank[by_class] = np.arange(len(order)) - np.repeat(starts, counts)
    return order[np.argsort(rank, kind="stable")]


def new_regression(c: float) -> "LogisticRegression":
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=c, max_iter=300)


def run_probes(
    splits: dict[str, Labelled], ks: Sequence[int], progress: Callable[[str, int, int], None] | None = None
) -> list[dict]:
    """A row per probe with its name, its setting, and the accuracy on each split other than train.

    Args:
        splits: "train" and "val", which selects `C`, and optionally "test".
        progress: called with the stage, the finished steps and the number of steps.

    Raises:
        ValueError: a k is below 1 or above the number of training vectors.
    """
    train, evaluated = splits["train"], {key: part for key, part in splits.items() if key != "train"}
    advance = progress or (lambda stage, done, total: None)
    voted = {}
    advance("nearest neighbours", 0, len(evaluated))
    for done, (key, part) in enumerate(evaluated.items(), 1):
        voted[key] = nearest_neighbours(train, part.features, ks)
        advance("nearest neighbours", done, len(evaluated))
    advance("logistic regression", 0, len(C_VALUES))
    fitted = iter(range(1, len(C_VALUES) + 1))
    regression = logistic_regression(
        train, evaluated["val"], progress=lambda: advance("logistic regression", next(fitted), len(C_VALUES))
    )
    predictions = {("nearest neighbours", f"k={k}"): {key: voted[key][k] for key in evaluated} for k in ks}
    classified = {key: regression.classify(part.features) for key, part in evaluated.items()}
    predictions["logistic regression", f"C={regression.C:g}"] = classified
    return [
        {"probe": name, "setting": setting}
        | {f"{key}/accuracy": accuracy(predicted, evaluated[key].labels) for key, predicted in by_split.items()}
        for (name, setting), by_split in predictions.items()
    ]


def accuracy(predicted: np.ndarray, labels: np.ndarray) -> float:
    """(N,) each -> the fraction of equal entries."""
    return float((predicted == labels).mean())
