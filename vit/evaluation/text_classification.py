"""Evaluation of a text classifier on a labelled split."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

from vit.data import TextSplit
from vit.evaluation.classification import TOP_K, Evaluation, check_labels, collect
from vit.evaluation.columns import Columns
from vit.evaluation.progress import Progress
from vit.evaluation.sample_scores import score_batch
from vit.inference import TextPredictor
from vit.inference.image_inputs import check_batch_size
from vit.inference.text_classification import text_contents


def evaluate_texts(
    predictor: TextPredictor, split: TextSplit, batch_size: int = 64, progress: Progress | None = None
) -> Evaluation:
    """Classify a whole split in order, in batches of `batch_size`.

    Raises:
        BadText: a text is empty or longer than the model's limit.
        DataError: the split is empty, or a label has no class.
        ValueError: `batch_size` is below 1.
    """
    check_labels(split, predictor.classes)
    columns, calibration = Columns(len(split)), predictor.bundle.calibration
    for logits, labels, rows in run_over_texts(predictor, split, batch_size):
        contents = partial(text_contents, texts_of(split, rows), range(len(rows)))
        columns.append(score_batch(logits, labels, rows, contents, min(TOP_K, len(predictor.classes)), calibration))
        if progress:
            progress(len(rows))
    return collect(predictor.classes, columns.filled(), [], calibration)


def run_over_texts(
    predictor: TextPredictor, split: TextSplit, batch_size: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Logits (B,classes), labels (B,) and rows (B,) of each batch of a split, in order.

    Raises:
        BadText, ValueError: as `evaluate_texts`.
    """
    check_batch_size(batch_size)
    for start in range(0, len(split), batch_size):
        rows = np.arange(start, min(start + batch_size, len(split)))
        logits = predictor.logits(texts_of(split, rows), [split.names[int(row)] for row in rows])
        yield logits, torch.from_numpy(split.labels[rows]), torch.from_numpy(rows)


def texts_of(split: TextSplit, rows: np.ndarray | torch.Tensor) -> list[tuple[str, ...]]:
    """The texts or pairs of a split at rows (B,)."""
    return [tuple(column[row] for column in split.texts) for row in rows.tolist()]
