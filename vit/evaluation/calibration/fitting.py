"""Calibration of a classifier on validation samples: temperature, prediction sets, unknown score, errors by certainty.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vit.bundle import Calibration, Quantiles, UnknownScore
from vit.bundle.calibration import MAX_FEATURES, METHODS, required_samples
from vit.data import DataError
from vit.evaluation.calibration.reliability import calibration_error, certainty
from vit.evaluation.calibration.temperature import fit_temperature, log_loss, row_parts
from vit.inference.abstention import selective_risks
from vit.inference.conformal import true_scores
from vit.inference.unknown import unknown_scores
from vit.messages import agree, first_of

log = logging.getLogger("vit")

FULL, TEMPERATURE, NONE = "full", "temperature", "none"
CHOICES = (FULL, TEMPERATURE, NONE)


@dataclass(frozen=True)
class Outputs:
    """Logits (N,classes) and labels (N,) of samples, the draws of their prediction sets (N,), which follow from their
    contents, and the inputs of the head (N,D), None where the model has none. The logits of samples for class means,
    which need features only, are (N,0).
    """

    logits: Tensor
    labels: Tensor
    draws: Tensor
    features: Tensor | None = None

    def parts(self) -> Iterator["Outputs"]:
        """The outputs of a part of the samples at a time, as `row_parts`."""
        for rows in row_parts(self.logits):
            features = None if self.features is None else self.features[rows]
            yield Outputs(self.logits[rows], self.labels[rows], self.draws[rows], features)


def fit_calibration(
    classes: Sequence[str], val: Outputs, train: Outputs | None = None, choice: str = FULL
) -> Calibration | None:
    """The calibration from the outputs on validation samples.

    Args:
        train: outputs on training samples, for the class means of the unknown score; without them that score is the
            energy.
        choice: one of `CHOICES`.

    Raises:
        DataError: there are no validation samples.
    """
    if choice == NONE:
        return None
    if not len(val.labels):
        raise DataError("the validation split has 0 samples to calibrate the model on; choose another split, or "
                        "calibrate=none")
    temperature = fit_temperature(val.logits, val.labels)
    loss = tuple(log_loss(val.logits, val.labels, each) for each in (1.0, temperature))
    ece = tuple(error_at(val, each) for each in (1.0, temperature))
    counts = np.bincount(val.labels, minlength=len(classes))
    absent = tuple(name for name, count in zip(classes, counts, strict=True) if not count)
    calibration = Calibration(len(val.labels), temperature, loss, ece, absent=absent)
    report(calibration)
    return calibration if choice == TEMPERATURE else with_prediction_sets(calibration, classes, val, train)


def error_at(val: Outputs, temperature: float) -> float:
    """The expected calibration error at a temperature."""
    found = (certainty((part.logits.double() / temperature).softmax(-1), part.labels) for part in val.parts())
    return calibration_error(*map(np.concatenate, zip(*found, strict=True)))


def with_prediction_sets(
    found: Calibration, classes: Sequence[str], val: Outputs, train: Outputs | None
) -> Calibration:
    """The calibration with prediction sets, unknown score and errors by certainty."""
    name, centre, means = class_means(len(classes), train)
    bare = UnknownScore(name, Quantiles(0, ()), centre, means)
    columns = []  # scores for each method, unknown scores, probabilities, and whether predictions are right
    for part in val.parts():
        probabilities = (part.logits / found.temperature).softmax(-1)
        scores = [each.numpy() for each in true_scores(probabilities, part.draws, part.labels, METHODS)]
        unlike = unknown_scores(part.logits, part.features, bare).numpy()
        columns.append((*scores, unlike, *certainty(probabilities, part.labels)))
    *scores, unlike, highest, right = map(np.concatenate, zip(*columns, strict=True))
    sets = {method: Quantiles.of(each) for method, each in zip(METHODS, scores, strict=True)}
    unknown = UnknownScore(name, Quantiles.of(unlike), centre, means)
    risks = selective_risks(highest, right)
    return Calibration(found.samples, found.temperature, found.loss, found.ece, sets, unknown, risks, found.absent)


def report(found: Calibration) -> None:
    """Log the temperature, and warn where there are too few samples for prediction sets or none of a class."""
    log.info("calibration on %d validation samples: temperature %.3f, log loss %.4f -> %.4f, expected calibration "
             "error %.4f -> %.4f", found.samples, found.temperature, *found.loss, *found.ece)
    if found.samples < required_samples(0.9):
        log.warning("%d validation samples are too few for prediction sets at 90 %%, which need %d", found.samples,
                    required_samples(0.9))
    if found.absent:
        log.warning("no validation sample has the %s %s: the calibration does not cover %s",
                    agree(len(found.absent), "class", "classes"), first_of(list(map(repr, found.absent)), 3),
                    agree(len(found.absent), "it", "them"))


def has_class_means(classes: int, features: Tensor | None) -> bool:
    """Whether the class means of features (N,D) are part of a calibration."""
    return features is not None and classes * features.shape[1] <= MAX_FEATURES


def class_means(
    classes: int, train: Outputs | None
) -> tuple[str, tuple[float, ...], tuple[tuple[float, ...], ...]]:
    """(name of the unknown score, mean feature, mean of each class relative to it); a class without samples is at 0."""
    if train is None or not has_class_means(classes, train.features):
        return "energy", (), ()
    features = train.features.double()
    centre = features.mean(0)
    sums = torch.zeros(classes, features.shape[1], dtype=torch.float64).index_add_(0, train.labels, features - centre)
    means = sums / torch.bincount(train.labels, minlength=classes).clamp(min=1)[:, None]
    return "cosine", rounded(centre), tuple(rounded(row) for row in means)


def rounded(values: Tensor) -> tuple[float, ...]:
    """(D,) -> numbers with 6 significant digits, which keep config.json short"""
    return tuple(float(f"{value:.6g}") for value in values.tolist())
