"""Losses, predictions and prediction sets of the samples of a classifier, batch by batch."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vit.bundle import Calibration
from vit.bundle.calibration import calibrated_probabilities, required_samples
from vit.inference.calibrated import SET_METHOD
from vit.inference.conformal import content_draws, prediction_sets

SET_LEVEL = 0.9  # level of the prediction sets in the metrics
Contents = Callable[[], Iterator[bytes]]  # the bytes of each input of a batch, which determine its prediction set


class Scores(NamedTuple):
    """Results of the samples of a batch (B,...) or, as arrays, of a split (N,...).

    Args:
        rows, labels: indices of the samples in the split, and their labels.
        losses, highest: losses and highest probabilities before calibration.
        calibrated_losses: losses after calibration; the same as `losses` for a model without a calibration.
        set_sizes, covered: sizes of the prediction sets, and whether the sets contain the labels.
        predictions, probabilities: (B,K), the most probable classes with their probabilities after calibration.
    """

    rows: Tensor
    labels: Tensor
    losses: Tensor
    highest: Tensor
    calibrated_losses: Tensor
    set_sizes: Tensor
    covered: Tensor
    predictions: Tensor
    probabilities: Tensor


def score_batch(
    logits: Tensor, labels: Tensor, rows: Tensor, contents: Contents, top_k: int,
    calibration: Calibration | None = None,
) -> Scores:
    """logits (B,classes), labels and rows (B,) -> the results of a batch, with `top_k` predictions per sample"""
    truth = labels.to(logits.device)
    losses = calibrated_losses = nn.functional.cross_entropy(logits, truth, reduction="none")
    highest = logits.softmax(-1).amax(-1)
    if calibration is not None:
        scaled = logits / calibration.temperature
        calibrated_losses = nn.functional.cross_entropy(scaled, truth, reduction="none")
    calibrated = calibrated_probabilities(logits, calibration)
    set_sizes, covered = sets_at_level(calibrated, labels, contents, calibration)
    probabilities, predictions = calibrated.topk(top_k)
    return Scores(rows, labels, losses, highest, calibrated_losses, set_sizes, covered, predictions, probabilities)


def sets_at_level(
    probabilities: Tensor, labels: Tensor, contents: Contents, calibration: Calibration | None
) -> tuple[Tensor, Tensor]:
    """probabilities (B,classes), labels (B,) -> the sizes (B,) of the prediction sets at `SET_LEVEL`, and whether the
    sets contain the labels (B,). The sets are the same as in `predict`. Sizes are -1 if the calibration does not cover
    this level.
    """
    sets = {} if calibration is None else calibration.sets
    if SET_METHOD not in sets or sets[SET_METHOD].count < required_samples(SET_LEVEL):
        return torch.full_like(labels, -1), torch.zeros_like(labels, dtype=torch.bool)
    probabilities = probabilities.cpu()
    limit = sets[SET_METHOD].at(SET_LEVEL)
    sizes, order = prediction_sets(probabilities, content_draws(contents()), limit, SET_METHOD)
    ranks = (order == labels[:, None]).to(torch.uint8).argmax(-1)  # 0 for the most probable class
    return sizes, ranks < sizes
