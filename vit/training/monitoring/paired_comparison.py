"""Whether a model is better than another by more than chance: a paired test of their scores on the same samples."""

from typing import NamedTuple

import torch
from torch import Tensor

MARGIN = 1.0  # standard errors


class SampleScores(NamedTuple):
    """One score per sample: index (N,) int64, ascending and unique; score (N,) float."""

    index: Tensor
    score: Tensor


def no_scores(metric: str) -> None:
    """The default `sample_scores` of `Checkpoints`: None, for metrics without a score per sample."""


def is_clearly_better(scores: SampleScores, others: SampleScores, mode: str, margin: float = MARGIN) -> bool:
    """Whether the mean score is better by more than `margin` standard errors of the paired difference.

    This is the one standard error rule of Breiman et al. (1984) in its paired form. If both models are equally good,
    each difference has either sign with the same probability, so that the sum of the differences has mean 0, and its
    standard deviation is the root of the sum of their squares. For scores of 0 and 1 it is McNemar's test: with b
    samples that only the first model classifies correctly and c that only the second one does, b - c > margin *
    sqrt(b + c). Samples with a score of only one of the models are ignored.
    """
    shared = torch.isin(scores.index, others.index), torch.isin(others.index, scores.index)
    difference = scores.score[shared[0]].double() - others.score[shared[1]].double()  # (N,)
    if mode == "min":
        difference = -difference
    return bool(difference.sum() > margin * difference.square().sum().sqrt())
