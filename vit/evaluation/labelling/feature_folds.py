"""Held-out predictions by logistic regression on frozen features, for finding label errors without training a model."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from vit.data.splits.folds import assign_folds
from vit.evaluation.features.probe import FIT_C_VALUES, choose_c, new_regression
from vit.evaluation.labelling.label_errors import find_label_errors
from vit.evaluation.out_of_fold import HeldOut
from vit.messages import ArgumentError

FOLDS, REPEATS = 5, 3
ROUNDS = 2  # the second one without the suspicious samples of the first


def held_out_by_features(
    names: Sequence[str], features: np.ndarray, labels: np.ndarray, classes: list[str],
    keys: Sequence[str] | None = None, seed: int = 0, c: float | None = None, rounds: int = ROUNDS,
    progress: Callable[[str, int, int], None] | None = None,
) -> HeldOut:
    """features (N,D) float32, labels (N,) int64 -> the mean probabilities over `REPEATS` divisions into `FOLDS` folds.

    The regressions of the first round learn from all samples outside their fold. Those of the second one, whose
    probabilities are returned, leave out the samples that `find_label_errors` reports in the first, since wrong labels
    that resemble each other confirm each other. Every sample has a prediction, left out or not. `folds` of the result
    are those of the first division only.

    Args:
        keys: samples with the same key are in one fold; by default every sample has its own key.
        c: inverse regularization strength of scikit-learn; by default chosen by cross-validation.
        rounds: at least 1; 1 for the first round alone.
        progress: called with the stage, the number of finished regressions and the total.

    Raises:
        DataError: as `assign_folds` and `find_label_errors`.
        ValueError: `rounds` is below 1.
    """
    if rounds < 1:
        raise ArgumentError(f"rounds is {rounds}, but must be at least 1")
    advance = progress or (lambda stage, done, total: None)
    x = standardized(features)
    repeats = [assign_folds(keys or names, labels, FOLDS, seed * REPEATS + r, classes) for r in range(REPEATS)]
    if c is None:
        advance("regularization", 0, 1)
        c, _ = choose_c(x, labels, FIT_C_VALUES)
        advance("regularization", 1, 1)
    used = np.ones(len(labels), bool)
    for number in range(1, rounds + 1):
        report = partial(advance, f"round {number} of {rounds}")
        probabilities = one_round(x, labels, len(classes), repeats, used, c, report)
        held_out = HeldOut(names, [f"{fold + 1}/{FOLDS}" for fold in repeats[0]], labels, probabilities, classes)
        if number < rounds:
            suspicious = {error.name for error in find_label_errors(held_out)}
            used = np.array([name not in suspicious for name in names])
    return held_out


def standardized(features: np.ndarray) -> np.ndarray:
    """features (N,D) -> (N,D) with zero mean and unit standard deviation; constant ones are 0"""
    mean, std = features.mean(0), features.std(0)
    return (features - mean) / np.where(std > 1e-6 * max(float(std.max()), 1e-12), std, np.inf)


def one_round(
    x: np.ndarray, labels: np.ndarray, classes: int, repeats: Sequence[np.ndarray], used: np.ndarray, c: float,
    report: Callable[[int, int], None],
) -> np.ndarray:
    """x (N,D), labels (N,) -> the mean held-out probabilities (N,classes) over the divisions into folds.

    Args:
        repeats: the fold (N,) of each sample, for each division.
        used: (N,) bool, the samples that the regressions learn from.
        report: called with the number of finished regressions and the total.
    """
    fits = len(repeats) * FOLDS
    report(0, fits)
    probabilities = np.zeros((len(labels), classes))
    for r, folds in enumerate(repeats):
        for fold in range(FOLDS):
            inside, outside = folds == fold, folds != fold
            fitted = outside & used
            if (labels[fitted] == labels[fitted][:1]).all():  # all others are suspicious
                fitted = outside
            model = new_regression(c).fit(x[fitted], labels[fitted])
            probabilities[np.ix_(inside, model.classes_)] += model.predict_proba(x[inside]) / len(repeats)
            report(r * FOLDS + fold + 1, fits)
    return probabilities
