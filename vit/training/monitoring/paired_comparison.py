"""Whether a model is better than another by more than chance, measured on the same samples."""

from typing import NamedTuple

import torch
from torch import Tensor

MARGIN = 1.0  # standard errors


class SampleScores(NamedTuple):
    """One score per sample: index (N,) int64, ascending and unique; score (N,) float."""

    index: Tensor
    score: Tensor


def no_scores(metric: str) -> None:
    """For a metric without scores of single samples."""


def is_clearly_better(scores: SampleScores, others: SampleScores, mode: str, margin: float = MARGIN) -> bool:
    """Whether the mean score is better by more than `margin` standard errors of the paired difference.

    Where both models are equally good, each difference is as likely to have the other sign: their sum has mean 0 and
    the standard deviation of the square root of the sum of their squares. Of scores that are 0 or 1 this is McNemar's
    test: b samples that only the one has right against c that only the other has, b - c > margin * sqrt(b + c). The
    one standard error rule of Breiman et al. (1984) in its paired form. Samples that only one of both has are ignored.
    """
    shared = torch.isin(scores.index, others.index), torch.isin(others.index, scores.index)
    difference = scores.score[shared[0]].double() - others.score[shared[1]].double()  # (N,)
    if mode == "min":
        difference = -difference
    return bool(difference.sum() > margin * difference.square().sum().sqrt())
