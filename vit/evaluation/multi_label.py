"""Evaluation of a multi-label classifier: average precision, and F1 at a threshold per label."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from vit.bundle import LabelCalibration
from vit.bundle.label_calibration import label_probabilities, scaled_logits
from vit.data import BadImage, DataError, Preprocessing, Split
from vit.evaluation.calibration.reliability import calibration_error
from vit.evaluation.classification import RunOptions, ratio, run_over_split, warn_of_nan
from vit.evaluation.progress import Progress
from vit.evaluation.sample_scores import Contents
from vit.messages import check_several, number_of


@dataclass(frozen=True)
class LabelScore:
    """Metrics of one label.

    Args:
        images: number of images that have the label.
        average_precision: nan if no image has the label, or a probability is nan.
        precision, recall, f1: at the threshold; None where the denominator is 0: the precision if the label is never
            predicted, the recall if no image has it, F1 if both.
    """

    name: str
    images: int
    average_precision: float
    threshold: float
    precision: float | None
    recall: float | None
    f1: float | None


@dataclass(frozen=True)
class MultiLabelEvaluation:
    """Metrics and per-sample results.

    Args:
        metrics: map and f1 are averaged over the labels that occur (macro average); f1_micro is computed over all
            decisions together; exact_match is the fraction of images with all labels correct; loss is the binary cross
            entropy, and ece the expected calibration error averaged over the labels, both before calibration; those of
            a calibrated model are calibrated_loss and calibrated_ece.
        rows: (N,) indices of the samples in the split.
        truth: (N,classes) bool.
        losses, probabilities: (N,) and (N,classes), after calibration if the model is calibrated.
        uncalibrated: (N,classes) probabilities before calibration; None if the model is not calibrated.
    """

    classes: list[str]
    thresholds: np.ndarray
    metrics: dict[str, float]
    rows: np.ndarray
    truth: np.ndarray
    losses: np.ndarray
    probabilities: np.ndarray
    scores: list[LabelScore]
    unreadable: list[BadImage] = field(default_factory=list)
    uncalibrated: np.ndarray | None = None

    @property
    def predicted(self) -> np.ndarray:
        """(N,classes) bool: the predicted labels."""
        return reaches(self.probabilities, self.thresholds)

    def class_scores(self) -> list[LabelScore]:
        return self.scores

    def to_dict(self, split: str) -> dict:
        """All metrics as values for JSON."""
        metrics = {f"{split}/{name}": value for name, value in self.metrics.items()}
        scores = [asdict(score) | ({} if score.images else {"average_precision": None}) for score in self.scores]
        unreadable = [str(error) for error in self.unreadable]
        return {**metrics, "images": len(self.rows), "classes": scores, "unreadable": unreadable}


def reaches(probabilities: np.ndarray, thresholds: Sequence[float] | np.ndarray) -> np.ndarray:
    """(N,classes), (classes,) -> (N,classes) bool: probability >= threshold."""
    return np.asarray(probabilities, np.float64) >= np.asarray(thresholds, np.float64)


def evaluate_multi_label(
    model: nn.Module,
    preprocessing: Preprocessing,
    split: Split,
    classes: list[str],
    thresholds: Sequence[float],
    batch_size: int = 64,
    precision: str = "32-true",
    on_bad_sample: str = "error",
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    calibration: LabelCalibration | None = None,
) -> MultiLabelEvaluation:
    """Classify a whole split in order; further arguments as in `evaluate`.

    Args:
        thresholds: thresholds of the probabilities, after calibration if there is a `calibration`.

    Raises:
        BadImage: an image cannot be read and `on_bad_sample` is "error", or no image can be read.
        DataError: the split is empty, or its labels do not match the model's.
        ValueError: an unknown `precision`.
    """
    check_multi_label(split, classes)
    options = RunOptions(batch_size, precision, on_bad_sample, device, progress)
    score = partial(score_batch, calibration=calibration)
    columns, unreadable = run_over_split(model, preprocessing, split, score, options)
    rows, truth, raw_losses, losses, raw_probabilities, probabilities = (column.numpy() for column in columns)
    warn_of_nan(raw_probabilities)
    scores = label_scores(classes, truth, probabilities, thresholds)
    metrics = average_scores(scores, truth, reaches(probabilities, thresholds), raw_losses)
    metrics["ece"] = label_calibration_error(raw_probabilities, truth)
    if calibration is not None:
        metrics |= {"calibrated_loss": float(losses.astype(np.float64).mean()),
                    "calibrated_ece": label_calibration_error(probabilities, truth)}
    thresholds = np.asarray(thresholds, np.float64)
    return MultiLabelEvaluation(classes, thresholds, metrics, rows, truth, losses, probabilities, scores, unreadable,
                                None if calibration is None else raw_probabilities)


def check_multi_label(split: Split, classes: list[str]) -> None:
    """Check that a split has samples with a column for each label of the model.

    Raises:
        DataError: the split is empty, has one label per image, or has no positive label.
    """
    check_several("classes", classes)
    if len(split) == 0:
        raise DataError("the split has 0 images; choose another split")
    if split.labels.ndim != 2 or split.labels.shape[1] != len(classes):
        raise DataError(f"the model is multi-label with {number_of(len(classes), 'label')}, but these images have one "
                        "class each; choose other data")
    if not split.labels.any():
        raise DataError(f"none of the {number_of(len(split), 'image')} of the split has a label; choose a split with "
                        "labels")


def score_batch(
    logits: Tensor, labels: Tensor, rows: Tensor, contents: Contents, calibration: LabelCalibration | None = None
) -> tuple[Tensor, ...]:
    """logits and labels (B,classes) -> rows (B,), labels (B,classes), losses without and with calibration (B,),
    probabilities without and with calibration (B,classes)
    """
    targets = labels.to(logits.device, torch.float32)

    def mean_losses(record: LabelCalibration | None) -> Tensor:
        scaled = scaled_logits(logits, record)
        return nn.functional.binary_cross_entropy_with_logits(scaled, targets, reduction="none").mean(dim=1)

    losses = mean_losses(None), mean_losses(calibration)
    return rows, labels, *losses, label_probabilities(logits, None), label_probabilities(logits, calibration)


def label_calibration_error(probabilities: np.ndarray, truth: np.ndarray) -> float:
    """probabilities, truth (N,classes) -> the mean over the labels of their expected calibration errors"""
    return float(np.mean(label_calibration_errors(probabilities, truth)))


def label_calibration_errors(probabilities: np.ndarray, truth: np.ndarray) -> list[float]:
    """probabilities, truth (N,classes) -> the expected calibration error of each label"""
    columns = zip(probabilities.astype(np.float64).T, truth.T, strict=True)
    return [calibration_error(each, true) for each, true in columns]


def label_scores(
    classes: list[str], truth: np.ndarray, probabilities: np.ndarray, thresholds: Sequence[float]
) -> list[LabelScore]:
    """Metrics per label from truth and probabilities (N,classes)."""
    areas = average_precisions(truth, probabilities)
    columns = zip(classes, truth.T, reaches(probabilities, thresholds).T, areas, thresholds, strict=True)
    scores = []
    for name, true, predicted, area, threshold in columns:
        correct, images, found = (int(each.sum()) for each in (true & predicted, true, predicted))
        parts = ratio(correct, found), ratio(correct, images), ratio(2 * correct, images + found)
        scores.append(LabelScore(name, images, float(area), float(threshold), *parts))
    return scores


def average_precisions(truth: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """(N,classes) each -> (classes,) float64: scikit-learn's average precision, without interpolation; nan for a label
    that no image has or whose probabilities are not all numbers.
    """
    from sklearn.metrics import average_precision_score

    precisions = np.full(truth.shape[1], np.nan)
    for c in np.flatnonzero(truth.any(axis=0) & ~np.isnan(probabilities).any(axis=0)):
        precisions[c] = average_precision_score(truth[:, c], probabilities[:, c])
    return precisions


def average_scores(
    scores: list[LabelScore], truth: np.ndarray, predicted: np.ndarray, losses: np.ndarray
) -> dict[str, float]:
    """The metrics of `MultiLabelEvaluation` from truth and predicted (N,classes) bool and losses (N,)."""
    from sklearn.metrics import f1_score

    present = [score for score in scores if score.images]
    return {
        "map": float(np.mean([score.average_precision for score in present])),
        "f1": float(np.mean([score.f1 for score in present])),
        "f1_micro": float(f1_score(truth.ravel(), predicted.ravel(), zero_division=0)),
        "exact_match": float((truth == predicted).all(axis=1).mean()),
        "loss": float(losses.astype(np.float64).mean()),
    }


def best_thresholds(truth: np.ndarray, probabilities: np.ndarray) -> list[float]:
    """(N,classes) each -> the threshold with the highest F1 per label; among equals the one closest to 0.5.

    Thresholds lie midway between adjacent probabilities. A label that no image has gets 0.5. Per-label tuning on
    validation data is the SCut strategy of Yang, "A study of thresholding strategies for text categorization" (2001).
    """
    return [_best_threshold(*columns) for columns in zip(truth.T, probabilities.astype(np.float64).T, strict=True)]


def _best_threshold(truth: np.ndarray, probabilities: np.ndarray) -> float:
    """truth (N,) bool, probabilities (N,) float64 -> the threshold with the highest F1; 0.5 without a true label"""
    from sklearn.metrics import precision_recall_curve

    if not truth.any():
        return 0.5
    precision, recall, values = precision_recall_curve(truth, probabilities)  # one value per probability, ascending
    f1 = (2 * precision * recall / np.maximum(precision + recall, 1e-12))[: len(values)]  # the last point has no value
    cuts = (np.concatenate([[0.0], values[:-1]]) + values) / 2
    best = np.flatnonzero(np.isclose(f1, f1.max(), rtol=1e-9))
    return float(cuts[best[np.argmin(np.abs(cuts[best] - 0.5))]])
