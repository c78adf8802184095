"""Scores that are high for inputs unlike those of training, such as images of a class that the model does not have."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from vit.bundle import UnknownScore

Score = Callable[[Tensor, Tensor | None, UnknownScore], Tensor]


def energy(logits: Tensor, features: Tensor | None, record: UnknownScore) -> Tensor:
    """logits (B,classes) -> (B,): the energy, -logsumexp of the logits (Liu et al., arXiv 2010.03759)."""
    return -logits.double().logsumexp(-1)


def cosine(logits: Tensor, features: Tensor | None, record: UnknownScore) -> Tensor:
    """features (B,D) -> (B,) in [0,2]: 1 - cosine to the nearest class mean, all relative to the mean of all features.

    On classes left out of training it is above the softmax maximum and the energy for digits as well as for photos
    (benchmarks/unknown_classes.py); unlike a Mahalanobis distance it needs no covariance matrix in config.json.
    """
    centre, means = (torch.tensor(each, dtype=torch.float64) for each in (record.centre, record.means))
    return 1 - (F.normalize(features.double() - centre, dim=-1) @ F.normalize(means, dim=-1).T).amax(-1)


SCORES: dict[str, Score] = {"cosine": cosine, "energy": energy}


def unknown_scores(logits: Tensor, features: Tensor | None, record: UnknownScore) -> Tensor:
    """The scores (B,) of a batch, higher for stranger inputs.

    Raises:
        ValueError: the bundle names a score of a newer version, or one of features that the model does not give.
    """
    if record.name not in SCORES:
        raise ValueError(f"the bundle's unknown score is {record.name!r}, and this version has {', '.join(SCORES)}; "
                         "update vit")
    if record.means and (features is None or features.shape[-1] != len(record.centre)):
        found = "no features" if features is None else f"features of {features.shape[-1]} numbers"
        raise ValueError(f"the bundle's unknown score needs features of {len(record.centre)} numbers, and the model "
                         f"has {found}; run vit calibrate again")
    return SCORES[record.name](logits, features, record)
