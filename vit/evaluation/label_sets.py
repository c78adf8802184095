"""A model that gives several labels per image, measured: average precision, and F1 at a threshold per label."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from sklearn.metrics import average_precision_score, f1_score, precision_recall_curve, precision_recall_fscore_support
from torch import Tensor, nn

from vit.data import BadImage, DataError, Preprocessing, Split
from vit.evaluation.classes import Part, over_split
from vit.evaluation.progress import Progress


@dataclass(frozen=True)
class LabelScore:
    """One label's numbers: average precision over all thresholds, the others at its own. nan: it is on no image."""

    name: str
    images: int
    average_precision: float
    threshold: float
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class LabelSetEvaluation:
    """Numbers and single answers. `rows` (N,): the samples' places in the split; `truth` (N,classes) bool,
    `probabilities` (N,classes), `losses` (N,).

    `metrics`: map and f1 are means over the labels that occur; f1_micro counts all answers alike; exact_match is the
    share of images with all labels right; loss the binary cross entropy.
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

    @property
    def said(self) -> np.ndarray:
        """(N,classes) bool: which labels the model gives."""
        return above(self.probabilities, self.thresholds)

    def class_scores(self) -> list[LabelScore]:
        return self.scores


def above(probabilities: np.ndarray, thresholds: Sequence[float] | np.ndarray) -> np.ndarray:
    """(N,classes), (classes,) -> (N,classes) bool: a label is given from its threshold on."""
    return np.asarray(probabilities, np.float64) >= np.asarray(thresholds, np.float64)


def evaluate_label_sets(
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
) -> LabelSetEvaluation:
    """Run the model over a whole split in order, in batches of `batch_size`; arguments as those of `evaluate`.

    Raises:
        BadImage: an image cannot be read.
        DataError: the split is empty, or its labels are not those of the model.
    """
    check_label_sets(split, classes)
    parts, unreadable = over_split(
        model, preprocessing, split, answered, batch_size, precision, on_bad_sample, device, progress
    )
    rows, truth, losses, probabilities = (torch.cat(column).numpy() for column in zip(*parts, strict=True))
    scores = label_scores(classes, truth, probabilities, thresholds)
    metrics = summed(scores, truth, above(probabilities, thresholds), losses)
    thresholds = np.asarray(thresholds, np.float64)
    return LabelSetEvaluation(classes, thresholds, metrics, rows, truth, losses, probabilities, scores, unreadable)


def check_label_sets(split: Split, classes: list[str]) -> None:
    if len(split) == 0:
        raise DataError("the split has 0 images; choose another split")
    if split.labels.ndim != 2 or split.labels.shape[1] != len(classes):
        raise DataError(f"the model gives {len(classes)} labels of which an image may have several, but these images "
                        "have one each; name other data")
    if not split.labels.any():
        raise DataError(f"none of the {len(split)} images of the split has a label; nothing can be measured")


def answered(logits: Tensor, labels: Tensor, rows: Tensor) -> Part:
    """logits (B,classes) -> rows (B,), truth (B,classes), losses (B,), probabilities (B,classes), on the CPU"""
    targets = labels.to(logits.device, torch.float32)
    losses = nn.functional.binary_cross_entropy_with_logits(logits, targets, reduction="none").mean(dim=1)
    return rows, labels, losses.cpu(), logits.sigmoid().cpu()


def label_scores(
    classes: list[str], truth: np.ndarray, probabilities: np.ndarray, thresholds: Sequence[float]
) -> list[LabelScore]:
    """Per label; a precision or recall whose denominator is 0 is 0."""
    areas = average_precisions(truth, probabilities)
    columns = zip(classes, truth.T, above(probabilities, thresholds).T, areas, thresholds, strict=True)
    scores = []
    for name, true, said, area, threshold in columns:
        parts = precision_recall_fscore_support(true, said, average="binary", zero_division=0)[:3]
        scores.append(LabelScore(name, int(true.sum()), *map(float, (area, threshold, *parts))))
    return scores


def average_precisions(truth: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """(N,classes) twice -> (classes,) float64: area under the steps of precision over recall; nan without a yes."""
    found = np.full(truth.shape[1], np.nan)
    for c in np.flatnonzero(truth.any(axis=0)):
        found[c] = average_precision_score(truth[:, c], probabilities[:, c])
    return found


def summed(scores: list[LabelScore], truth: np.ndarray, said: np.ndarray, losses: np.ndarray) -> dict[str, float]:
    present = [score for score in scores if score.images]
    return {
        "map": float(np.mean([score.average_precision for score in present])),
        "f1": float(np.mean([score.f1 for score in present])),
        "f1_micro": float(f1_score(truth.ravel(), said.ravel(), zero_division=0)),
        "exact_match": float((truth == said).all(axis=1).mean()),
        "loss": float(losses.astype(np.float64).mean()),
    }


def best_thresholds(truth: np.ndarray, probabilities: np.ndarray) -> list[float]:
    """(N,classes) twice -> per label the threshold with the highest F1; of equals the one nearest to one half.

    Thresholds lie half way between neighbouring probabilities. A label that is on none of the images gets one half.
    """
    return [_best_threshold(*columns) for columns in zip(truth.T, probabilities.astype(np.float64).T, strict=True)]


def _best_threshold(truth: np.ndarray, probabilities: np.ndarray) -> float:
    if not truth.any():
        return 0.5
    precision, recall, values = precision_recall_curve(truth, probabilities)  # a value per probability, rising
    f1 = (2 * precision * recall / np.maximum(precision + recall, 1e-12))[: len(values)]  # what follows is no cut
    cuts = (np.concatenate([[0.0], values[:-1]]) + values) / 2
    best = np.flatnonzero(np.isclose(f1, f1.max(), rtol=1e-9))
    return float(cuts[best[np.argmin(np.abs(cuts[best] - 0.5))]])
