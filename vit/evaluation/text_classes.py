"""A text classifier measured on labelled texts."""

import numpy as np
import torch

from vit.data import TextSplit
from vit.evaluation.classes import KEPT, Evaluation, check_labels, gathered, scored
from vit.evaluation.progress import Progress
from vit.inference import TextPredictor


def evaluate_texts(
    predictor: TextPredictor, split: TextSplit, batch_size: int = 64, progress: Progress | None = None
) -> Evaluation:
    """Run the model over a whole split in order, in batches of `batch_size`.

    Raises:
        DataError: the split is empty, or a label has no class.
        ValueError: a text is longer than the model reads; names it.
    """
    check_labels(split, predictor.classes)
    parts = []
    for start in range(0, len(split), batch_size):
        rows = np.arange(start, min(start + batch_size, len(split)))
        texts = [tuple(column[int(row)] for column in split.texts) for row in rows]
        logits = predictor.logits(texts, [split.names[int(row)] for row in rows])
        labels = torch.from_numpy(split.labels[rows])
        parts.append(scored(logits, labels, torch.from_numpy(rows), min(KEPT, len(predictor.classes))))
        if progress:
            progress(len(rows))
    return gathered(predictor.classes, parts, [])
