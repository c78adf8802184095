"""Logits and features of a labelled split, from which a classifier is calibrated."""

from typing import NamedTuple

import numpy as np
from torch import Tensor, nn

from vit.bundle.label_calibration import label_probabilities
from vit.data import Preprocessing, Split, TextSplit
from vit.data.identity import hash_positions
from vit.evaluation.calibration.fitting import Outputs
from vit.evaluation.classification import RunOptions, check_labels, run_over_split
from vit.evaluation.columns import Columns
from vit.evaluation.multi_label import check_multi_label
from vit.evaluation.progress import Progress
from vit.evaluation.sample_scores import Contents
from vit.evaluation.text_classification import run_over_texts, texts_of
from vit.inference import TextPredictor
from vit.inference.calibrated import captured_features
from vit.inference.conformal import content_draws
from vit.inference.text_classification import text_contents

SAMPLES, SAMPLES_PER_CLASS = 2000, 20  # training samples for the class means: the larger of both numbers
LOGITS = 1 << 29  # logits of validation samples: 2 GB, those of 500,000 samples of 1,000 classes


def image_outputs(
    model: nn.Module, preprocessing: Preprocessing, split: Split, classes: list[str], options: RunOptions,
    with_logits: bool = True,
) -> Outputs:
    """The outputs for all images of a split, in order.

    Raises:
        BadImage, DataError: as `vit.evaluation.evaluate`.
    """
    check_labels(split, classes)
    with captured_features(model) as captured:
        def score(logits: Tensor, labels: Tensor, rows: Tensor, contents: Contents) -> tuple[Tensor, ...]:
            features = [captured.pop()] if captured else []
            return logits if with_logits else logits[:, :0], labels, content_draws(contents()), *features

        columns, _ = run_over_split(model, preprocessing, split, score, options)
    return Outputs(*columns)


class LabelOutputs(NamedTuple):
    """The outputs of a multi-label classifier: `logits`, `truth` bool and `probabilities` (N,classes)."""

    logits: Tensor
    truth: Tensor
    probabilities: Tensor


def label_outputs(
    model: nn.Module, preprocessing: Preprocessing, split: Split, classes: list[str], options: RunOptions
) -> LabelOutputs:
    """The outputs for all images of a split with several labels each, in order; the probabilities are not calibrated.

    Raises:
        BadImage, DataError: as `vit.evaluation.evaluate_multi_label`.
    """
    check_multi_label(split, classes)

    def score(logits: Tensor, labels: Tensor, rows: Tensor, contents: Contents) -> tuple[Tensor, ...]:
        return logits, labels, label_probabilities(logits, None)

    (logits, truth, probabilities), _ = run_over_split(model, preprocessing, split, score, options)
    return LabelOutputs(logits, truth.bool(), probabilities)


def text_outputs(
    predictor: TextPredictor, split: TextSplit, batch_size: int = 64, with_logits: bool = True,
    progress: Progress | None = None,
) -> Outputs:
    """The outputs for all texts of a split, in order.

    Raises:
        BadText, DataError: as `evaluate_texts`.
    """
    check_labels(split, predictor.classes)
    columns = Columns(len(split))
    with captured_features(predictor.model) as captured:
        for logits, labels, rows in run_over_texts(predictor, split, batch_size):
            draws = content_draws(text_contents(texts_of(split, rows), range(len(rows))))
            features = [captured.pop()] if captured else []
            columns.append((logits if with_logits else logits[:, :0], labels, draws, *features))
            if progress:
                progress(len(rows))
    return Outputs(*columns.filled())


def sample_for_means(split: Split | TextSplit, classes: int, most: int | None = None) -> Split | TextSplit:
    """The training samples from which class means are computed; at most `most` of them."""
    count = max(SAMPLES, SAMPLES_PER_CLASS * classes)
    return hashed_subset(split, count if most is None else min(count, most))


def sample_for_logits(split: Split | TextSplit, classes: int) -> Split | TextSplit:
    """The validation samples on which a model is calibrated: all whose logits are `LOGITS` numbers at most."""
    return hashed_subset(split, max(1, LOGITS // max(1, classes)))


def hashed_subset(split: Split | TextSplit, count: int) -> Split | TextSplit:
    """At most `count` samples: a fixed subset by a hash of their names, in order."""
    if len(split) <= count:
        return split
    return split.take(np.sort(np.argsort(hash_positions(split.names, 0), kind="stable")[:count]))
