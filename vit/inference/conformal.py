"""Conformal prediction sets: labels that contain the true one with a stated probability, whatever the model.

The probability is marginal: over the draw of the validation samples and of the new one, which must be exchangeable. It
is not a statement about one class or one image.
"""

import hashlib
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from vit.counters import hash_counters, to_unit_interval

RAPS_RANK, RAPS_PENALTY = 1, 0.1  # number of labels without a penalty, and the penalty of each further label
SEED = 25  # seed of the draws


def label_scores(probabilities: Tensor, draws: Tensor, method: str) -> tuple[Tensor, Tensor]:
    """probabilities (B,classes), draws (B,) in [0,1) -> scores (B,classes) in descending order of probability, and the
    class of each.

    Adaptive prediction sets (APS, Romano et al., arXiv 2006.02544): the score of a label is the probability of all more
    probable labels plus a random share of its own. RAPS (Angelopoulos et al., arXiv 2009.14193) adds a penalty to each
    label beyond the first `RAPS_RANK`, which makes large sets smaller. Scores ascend in each row.
    """
    ordered, classes = _by_rank(probabilities)
    return _scores(ordered, draws, method), classes


def _by_rank(probabilities: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities (B,classes) in descending order, and the class of each."""
    return probabilities.double().sort(dim=-1, descending=True, stable=True)


def _scores(ordered: Tensor, draws: Tensor, method: str) -> Tensor:
    """probabilities (B,classes) in descending order, draws (B,) -> scores (B,classes)"""
    scores = ordered.cumsum(-1) - ordered + draws.double()[:, None] * ordered
    if method == "raps":
        scores = scores + RAPS_PENALTY * (torch.arange(1, ordered.shape[1] + 1) - RAPS_RANK).clamp(min=0)
    return scores


def true_scores(probabilities: Tensor, draws: Tensor, labels: Tensor, methods: Sequence[str]) -> list[Tensor]:
    """The scores (B,) of the true labels (B,) for each method, from one sort, which takes most of the time."""
    ordered, classes = _by_rank(probabilities)
    truth = classes == labels[:, None]
    return [_scores(ordered, draws, method)[truth] for method in methods]


def prediction_sets(probabilities: Tensor, draws: Tensor, limit: float, method: str) -> tuple[Tensor, Tensor]:
    """The number of labels in each set, (B,): the most probable ones, whose score is at most `limit`; and all classes
    (B,classes) in descending order of probability. The sort is most of the time with thousands of classes.

    A set may be empty: empty sets make the coverage exact if a model is right more often than the level requires.
    """
    scores, classes = label_scores(probabilities, draws, method)
    return (scores <= limit).sum(-1), classes


def content_draws(contents: Iterable[bytes | memoryview]) -> Tensor:
    """The draws (B,) of B inputs, determined by their contents: the set of an image depends on the image alone, and a
    calibration does not depend on the order of its samples.
    """
    digests = (hashlib.blake2b(content, digest_size=7).digest() for content in contents)
    keys = torch.tensor([int.from_bytes(digest, "little") for digest in digests], dtype=torch.int64)
    return to_unit_interval(hash_counters(SEED, 1, keys))
