"""Evaluation of an image classifier on a labelled split; the test after training and `vit evaluate` both use it."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from vit.bundle import Calibration
from vit.data import BadImage, DataError, ImageDataset, Preprocessing, Source, Split
from vit.data.errors import SplitError
from vit.evaluation.calibration.reliability import calibration_error
from vit.evaluation.columns import Columns
from vit.evaluation.progress import Progress
from vit.evaluation.sample_scores import Contents, Scores, score_batch
from vit.inference import best_device, decode_ahead, forward
from vit.inference.calibrated import image_contents
from vit.inference.image_inputs import check_batch_size
from vit.low_precision import DTYPES
from vit.messages import agree, check_several, number_of
from vit.models.inference_copy import inference_copy
from vit.nn.init import evaluating

if TYPE_CHECKING:
    from scipy.sparse import csr_array

log = logging.getLogger(__name__)

TOP_K = 5  # predictions stored per sample
MATRIX = 1000  # maximum number of classes for a full confusion matrix; above it, only the counts above 0 are listed


@dataclass(frozen=True)
class ClassScore:
    """Metrics of one class; None where the denominator is 0.

    Attributes:
        accuracy: the fraction of its samples that are classified correctly (recall); None without samples.
        precision: None if the class is never predicted.
        f1: None if the class has no samples and is never predicted.
    """

    name: str
    images: int
    accuracy: float | None
    precision: float | None
    f1: float | None


@dataclass(frozen=True)
class Evaluation:
    """Metrics and per-sample results. K is 5, or the number of classes if that is smaller.

    Attributes:
        metrics: accuracy, loss, ece (expected calibration error), and top5 above 5 classes; for a calibrated model also
            calibrated_loss, calibrated_ece, and set_coverage and set_size of its prediction sets at
            `sample_scores.SET_LEVEL`.
        confusion_counts: (classes,classes), sparse; a row is a true class.
        rows: (N,), indices of the samples in the split, without unreadable samples.
        labels, losses: (N,).
        predictions, probabilities: (N,K), the most probable class first.
        uncalibrated: (N,), the highest probability of each sample before calibration.
        calibrated: whether `losses` and `probabilities` are those after calibration.
    """

    classes: list[str]
    metrics: dict[str, float]
    confusion_counts: "csr_array"
    rows: np.ndarray
    labels: np.ndarray
    losses: np.ndarray
    predictions: np.ndarray
    probabilities: np.ndarray
    unreadable: list[BadImage] = field(default_factory=list)
    uncalibrated: np.ndarray | None = None
    calibrated: bool = False

    @property
    def confusion(self) -> np.ndarray:
        """The confusion matrix (classes,classes), with 8 bytes per cell: 3.2 GB for 20,000 classes."""
        return self.confusion_counts.toarray()

    def class_scores(self) -> list[ClassScore]:
        """Metrics per class."""
        confusions = self.confusion_counts
        counts = (confusions.diagonal(), confusions.sum(axis=1), confusions.sum(axis=0))
        rows = zip(self.classes, *(each.tolist() for each in counts), strict=True)
        return [ClassScore(name, true, ratio(correct, true), ratio(correct, predicted),
                           ratio(2 * correct, true + predicted)) for name, correct, true, predicted in rows]

    def to_dict(self, split: str, unit: str = "images") -> dict:
        """All metrics as values for JSON. Above `MATRIX` classes the confusion matrix is None, and `confusion_cells`
        has its counts above 0 as (true class, predicted class, count).
        """
        metrics = {f"{split}/{name}": value for name, value in self.metrics.items()}
        scores = [asdict(score) for score in self.class_scores()]
        unreadable = {"unreadable": [str(error) for error in self.unreadable]} if unit == "images" else {}
        return {**metrics, unit: len(self.rows), "classes": scores, **self._confusion_values(), **unreadable}

    def _confusion_values(self) -> dict:
        if len(self.classes) <= MATRIX:
            return {"confusion": self.confusion.tolist()}
        cells = self.confusion_counts.tocoo()
        columns = (each.tolist() for each in (cells.row, cells.col, cells.data))
        return {"confusion": None, "confusion_cells": [list(cell) for cell in zip(*columns, strict=True)]}


def count_confusions(labels: np.ndarray, predictions: np.ndarray, classes: int) -> "csr_array":
    """Labels and predicted classes (N,) -> the counts (classes,classes), sparse; a row is a true class."""
    from scipy.sparse import coo_array

    ones = np.ones(len(labels), np.int64)
    return coo_array((ones, (labels, predictions)), shape=(classes, classes)).tocsr()


def ratio(part: int, whole: int) -> float | None:
    """part / whole; None where `whole` is 0"""
    return part / whole if whole else None


def evaluate(
    model: nn.Module,
    preprocessing: Preprocessing,
    split: Split,
    classes: list[str],
    batch_size: int = 64,
    precision: str = "32-true",
    on_bad_sample: str = "error",
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    calibration: Calibration | None = None,
) -> Evaluation:
    """Classify a whole split in order. Batch size and precision are part of the result: they affect rounding.

    Args:
        on_bad_sample: "error" stops at the first unreadable image, "skip" lists such images in `.unreadable`.
        calibration: calibration of the bundle; it adds metrics, and calibrates the probabilities of the samples.

    Raises:
        BadImage: an image cannot be read and `on_bad_sample` is "error", or no image can be read.
        DataError: the split is empty, or a label has no class.
        ValueError: an unknown `precision`.
    """
    check_labels(split, classes)
    score = partial(score_batch, top_k=min(TOP_K, len(classes)), calibration=calibration)
    options = RunOptions(batch_size, precision, on_bad_sample, device, progress)
    return collect(classes, *run_over_split(model, preprocessing, split, score, options), calibration)


class RunOptions(NamedTuple):
    """The arguments of `evaluate` that only affect how a split is processed."""

    batch_size: int
    precision: str
    on_bad_sample: str
    device: str | torch.device | None
    progress: Progress | None


def run_over_split(
    model: nn.Module,
    preprocessing: Preprocessing,
    split: Split,
    score: Callable[[Tensor, Tensor, Tensor, Contents], Sequence[Tensor]],
    options: RunOptions,
) -> tuple[list[Tensor], list[BadImage]]:
    """The results (B,...) of `score(logits, labels, rows, contents)` for all images in order (N,...), and the
    unreadable images.

    Raises:
        BadImage: as `evaluate`.
    """
    dataset = ImageDataset(split, preprocessing, cache=False, on_bad_sample=options.on_bad_sample)
    model = model.to(best_device(options.device))
    columns, unreadable = Columns(len(dataset)), []
    with evaluating(model):
        network = inference_copy(model, DTYPES.get(options.precision))
        for images, labels, rows in readable_batches(dataset, options.batch_size, unreadable):
            logits = forward(network, preprocessing, images, options.precision)
            columns.append(score(logits, labels, rows, partial(image_contents, images)))
            if options.progress:
                options.progress(len(images))
    if not columns.count:
        raise unreadable[0]
    return columns.filled(), unreadable


def matched_split(source: Source, classes: list[str], split: str = "test") -> Split:
    """A split of a source, its labels renumbered to the model's classes, which are matched by name.

    Raises:
        DataError: the source has no such split, or the split has a class that the model does not have.
    """
    check_several("classes", classes)
    if split not in source.splits:
        raise SplitError(f"split={split}: {source.name} has no such split; it has {', '.join(source.splits)}")
    chosen = source.splits[split]
    if source.classes == classes:
        return chosen
    present = [source.classes[i] for i in np.flatnonzero(source.counts(split))]
    outputs = {name: index for index, name in enumerate(classes)}
    unknown = [name for name in present if name not in outputs]
    if unknown:
        listed = ", ".join(classes[:10]) + (", …" if len(classes) > 10 else "")
        raise DataError(f"{source.name}: the model has no class {unknown[0]!r} ({len(unknown)} of {len(present)} "
                        f"classes of the data are missing in the model); its classes are {listed}; choose data with "
                        f"these classes, or train a model for those of {source.name}")
    if source.multi_label:
        stated = {name: column for column, name in enumerate(source.classes)}
        columns = [stated.get(name, -1) for name in classes]
        empty = np.zeros((len(chosen), 1), bool)  # column -1: the label does not occur in the source
        return replace(chosen, labels=np.hstack([chosen.labels, empty])[:, columns])
    numbers = np.array([outputs.get(name, -1) for name in source.classes], dtype=np.int64)
    return replace(chosen, labels=numbers[chosen.labels])


def check_labels(split: Split, classes: list[str]) -> None:
    """Check that a split has samples and one valid label each.

    Raises:
        DataError: the split is empty, multi-label, or a label is out of range.
    """
    check_several("classes", classes)
    unit = getattr(split, "unit", "image")
    if len(split) == 0:
        raise DataError(f"the split has 0 {unit}s; choose another split")
    if split.labels.ndim == 2:
        raise DataError(f"the data is multi-label, but the model predicts one class per {unit}; choose other data")
    wrong = np.flatnonzero((split.labels < 0) | (split.labels >= len(classes)))
    if len(wrong):
        raise DataError(f"{split.names[int(wrong[0])]}: label {split.labels[wrong[0]]} is out of range, "
                        f"the model has {number_of(len(classes), 'class')} (0..{len(classes) - 1})")


def readable_batches(
    dataset: ImageDataset, batch_size: int, unreadable: list[BadImage]
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """images uint8 (B,C,H,W), labels and rows (B,) of the readable samples, as `readable_samples`.

    If the pixels are in one array and need no preprocessing, a whole batch is read at once, which is many times faster.

    Raises:
        BadImage: as `readable_samples`.
    """
    check_batch_size(batch_size)
    if dataset.is_final_array:
        for start in range(0, len(dataset), batch_size):
            rows = range(start, min(start + batch_size, len(dataset)))
            batch = dataset.__getitems__([(0, row) for row in rows])
            yield batch["image"], batch["label"], batch["index"]
        return
    samples = readable_samples(dataset, batch_size, unreadable)
    while batch := list(islice(samples, batch_size)):
        labels, rows = (torch.cat([sample[key] for sample in batch]) for key in ("label", "index"))
        yield dataset.preprocessing.batch([sample["image"][0] for sample in batch]), labels, rows


def readable_samples(dataset: ImageDataset, batch_size: int, unreadable: list[BadImage]) -> Iterator[dict]:
    """The readable samples, each as a batch of one; skipped images are added to `unreadable`.

    Raises:
        BadImage: an image cannot be read, and the data set's `on_bad_sample` is "error".
    """
    for samples in decode_ahead(range(len(dataset)), dataset.__getitem__, batch_size):
        for sample in samples:
            bad = [BadImage(*entry) for entry in sample.get("bad", ())]
            if bad and dataset.on_bad_sample == "error":
                raise bad[0]
            unreadable += bad
            if not bad:
                yield sample


def collect(
    classes: list[str], columns: list[Tensor], unreadable: list[BadImage], calibration: Calibration | None = None
) -> Evaluation:
    """The evaluation from the columns of `Scores` of all samples."""
    scores = Scores(*(column.numpy() for column in columns))
    warn_of_nan(scores.highest)
    hits = scores.predictions == scores.labels[:, None]  # (N,K)
    metrics = {"accuracy": float(hits[:, 0].mean()), "loss": float(scores.losses.astype(np.float64).mean())}
    if len(classes) > 5:
        metrics["top5"] = float(hits.any(axis=1).mean())
    metrics["ece"] = calibration_error(scores.highest.astype(np.float64), hits[:, 0])
    if calibration is not None:
        metrics["calibrated_loss"] = float(scores.calibrated_losses.astype(np.float64).mean())
        metrics["calibrated_ece"] = calibration_error(scores.probabilities[:, 0].astype(np.float64), hits[:, 0])
    if (scores.set_sizes >= 0).all():
        metrics |= {"set_coverage": float(scores.covered.mean()), "set_size": float(scores.set_sizes.mean())}
    confusion = count_confusions(scores.labels, scores.predictions[:, 0], len(classes))
    return Evaluation(classes, metrics, confusion, scores.rows, scores.labels, scores.calibrated_losses,
                      scores.predictions, scores.probabilities, unreadable, scores.highest, calibration is not None)


def warn_of_nan(probabilities: np.ndarray) -> None:
    """Log how many samples have probabilities (N,) or (N,classes) that are NaN: their predicted classes are arbitrary,
    but accuracies count them.
    """
    wrong = np.isnan(probabilities.reshape(len(probabilities), -1)).any(axis=1)
    if count := int(wrong.sum()):
        log.warning("the outputs of the model are NaN for %d of %s: %s arbitrary, and accuracies that count %s mean "
                    "nothing; check the weights, or evaluate in precision 32-true if they overflow in a lower one",
                    count, number_of(len(wrong), "sample"), agree(count, "its prediction is", "their predictions are"),
                    agree(count, "it", "them"))
