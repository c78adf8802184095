"""A model measured on a labelled split: one function for a run's test and for `vit evaluate`, so that they agree."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

import numpy as np
import torch
from torch import Tensor, nn

from vit.data import BadImage, DataError, ImageDataset, Preprocessing, Source, Split
from vit.evaluation.progress import Progress
from vit.inference import best_device, decode_ahead, forward

KEPT = 5  # answers kept per sample
Part = tuple[Tensor, ...]  # what is kept of a batch


@dataclass(frozen=True)
class ClassScore:
    """One class's numbers; `accuracy` is the share of its images that were named right (its recall)."""

    name: str
    images: int
    accuracy: float
    precision: float
    f1: float


@dataclass(frozen=True)
class Evaluation:
    """Numbers and single answers. K is 5, or the number of classes where that is smaller.

    `metrics`: accuracy, loss, and top5 above 5 classes. `confusion` (classes, classes): rows are true. `rows` (N,): the
    samples' places in the split, fewer than it has where unreadable ones were left out. `labels`, `losses` (N,).
    `answers`, `probabilities` (N,K): best first.
    """

    classes: list[str]
    metrics: dict[str, float]
    confusion: np.ndarray
    rows: np.ndarray
    labels: np.ndarray
    losses: np.ndarray
    answers: np.ndarray
    probabilities: np.ndarray
    unreadable: list[BadImage] = field(default_factory=list)

    def class_scores(self) -> list[ClassScore]:
        """Per class; a number whose denominator is 0 is 0."""
        right = np.diag(self.confusion)
        true, said = self.confusion.sum(axis=1), self.confusion.sum(axis=0)
        columns = true, right / np.maximum(true, 1), right / np.maximum(said, 1), 2 * right / np.maximum(true + said, 1)
        return [ClassScore(name, int(images), float(accuracy), float(precision), float(f1))
                for name, images, accuracy, precision, f1 in zip(self.classes, *columns, strict=True)]


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
) -> Evaluation:
    """Run the model over a whole split in order, in batches of `batch_size`: that and the precision fix the numbers.

    Args:
        on_bad_sample: "error" stops at the first unreadable image, "skip" leaves such images out and lists them.
        progress: called with the number of samples of every finished batch.

    Raises:
        BadImage: an image cannot be read.
        DataError: the split is empty, or a label has no class.
    """
    check_labels(split, classes)
    score = partial(scored, kept=min(KEPT, len(classes)))
    return gathered(
        classes, *over_split(model, preprocessing, split, score, batch_size, precision, on_bad_sample, device, progress)
    )


def over_split(
    model: nn.Module,
    preprocessing: Preprocessing,
    split: Split,
    score: Callable[[Tensor, Tensor, Tensor], Part],
    batch_size: int,
    precision: str,
    on_bad_sample: str,
    device: str | torch.device | None,
    progress: Progress | None,
) -> tuple[list[Part], list[BadImage]]:
    """What `score(logits, labels, rows)` says of every batch, in order, and the images that could not be read."""
    dataset = ImageDataset(split, preprocessing, cache=False, on_bad_sample=on_bad_sample)
    model = model.to(best_device(device))
    was_training = model.training
    model.eval()
    parts, unreadable = [], []
    try:
        samples = readable(dataset, batch_size, unreadable)
        while batch := list(islice(samples, batch_size)):
            images, labels, rows = (torch.cat([sample[key] for sample in batch]) for key in ("image", "label", "index"))
            parts.append(score(forward(model, preprocessing, images, precision), labels, rows))
            if progress:
                progress(len(batch))
    finally:
        model.train(was_training)
    if not parts:
        raise unreadable[0]
    return parts, unreadable


def matched_split(source: Source, classes: list[str], split: str = "test") -> Split:
    """A split of a source with its labels numbered as the model numbers them: classes are matched by name.

    Raises:
        DataError: there is no such split, or it has a class that the model does not know.
    """
    if split not in source.splits:
        raise DataError(f"{source.name} has no {split} split; it has {', '.join(source.splits)}")
    chosen = source.splits[split]
    if source.classes == classes:
        return chosen
    present = [source.classes[i] for i in np.flatnonzero(source.counts(split))]
    unknown = [name for name in present if name not in classes]
    if unknown:
        known = ", ".join(classes[:10]) + (", …" if len(classes) > 10 else "")
        raise DataError(f"{source.name}: the model does not know class {unknown[0]!r} ({len(unknown)} of "
                        f"{len(present)} classes are unknown to it); it knows {known}")
    if source.multi_label:
        columns = [source.classes.index(name) if name in source.classes else -1 for name in classes]
        empty = np.zeros((len(chosen), 1), bool)  # where a label of the model is none of the source
        return replace(chosen, labels=np.hstack([chosen.labels, empty])[:, columns])
    numbers = np.array([classes.index(name) if name in classes else -1 for name in source.classes], dtype=np.int64)
    return replace(chosen, labels=numbers[chosen.labels])


def check_labels(split: Split, classes: list[str]) -> None:
    if len(split) == 0:
        raise DataError("the split has 0 images; choose another split")
    if split.labels.ndim == 2:
        raise DataError("its images may have several labels each, but the model gives one; name other data")
    wrong = np.flatnonzero((split.labels < 0) | (split.labels >= len(classes)))
    if len(wrong):
        raise DataError(f"{split.names[int(wrong[0])]}: label {split.labels[wrong[0]]} is out of range, "
                        f"the model has {len(classes)} classes (0..{len(classes) - 1})")


def readable(dataset: ImageDataset, batch_size: int, unreadable: list[BadImage]) -> Iterator[dict]:
    """The samples, each as a batch of one; unreadable ones raise or are listed, and never make a batch smaller."""
    for samples in decode_ahead(range(len(dataset)), dataset.__getitem__, batch_size):
        for sample in samples:
            bad = [BadImage(*entry) for entry in sample.get("bad", ())]
            if bad and dataset.on_bad_sample == "error":
                raise bad[0]
            unreadable += bad
            if not bad:
                yield sample


def scored(logits: Tensor, labels: Tensor, rows: Tensor, kept: int) -> Part:
    """logits (B,classes) -> rows (B,), labels (B,), losses (B,), answers (B,K), probabilities (B,K), on the CPU"""
    losses = nn.functional.cross_entropy(logits, labels.to(logits.device), reduction="none")
    probabilities, answers = logits.softmax(-1).topk(kept)
    return rows, labels, losses.cpu(), answers.cpu(), probabilities.cpu()


def gathered(classes: list[str], parts: list[Part], unreadable: list[BadImage]) -> Evaluation:
    """The evaluation that batches of `scored` make together."""
    return _summed(classes, *(torch.cat(column).numpy() for column in zip(*parts, strict=True)), unreadable)


def _summed(classes: list[str], rows: np.ndarray, labels: np.ndarray, losses: np.ndarray, answers: np.ndarray,
            probabilities: np.ndarray, unreadable: list[BadImage]) -> Evaluation:
    hits = answers == labels[:, None]  # (N,K)
    metrics = {"accuracy": float(hits[:, 0].mean()), "loss": float(losses.astype(np.float64).mean())}
    if len(classes) > 5:
        metrics["top5"] = float(hits.any(axis=1).mean())
    cells = np.bincount(labels * len(classes) + answers[:, 0], minlength=len(classes) ** 2)
    confusion = cells.reshape(len(classes), len(classes))
    return Evaluation(classes, metrics, confusion, rows, labels, losses, answers, probabilities, unreadable)
