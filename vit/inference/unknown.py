"""Scores that are high for inputs unlike those of training, such as images of a class that the model does not have."""

import weakref
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
    """features (B,D) -> (B,) in [0,2]: 1 - the cosine between the features and the nearest class mean, both relative to
    the mean of all features.

    It recognizes classes that were left out of training better than the softmax maximum and the energy, for digits as
    well as for photos (benchmarks/unknown_classes.py). Unlike a Mahalanobis distance it needs no covariance matrix in
    config.json.
    """
    centre, directions = class_directions(record)
    return 1 - (F.normalize(features.double() - centre, dim=-1) @ directions.T).amax(-1)


_directions: dict[int, tuple[Tensor, Tensor]] = {}  # by the id of a record that exists


def class_directions(record: UnknownScore) -> tuple[Tensor, Tensor]:
    """The centre (D,) and the class means of length 1 (classes,D). They are cached as long as the record exists, since
    the conversion of 768,000 numbers for 1,000 classes takes longer than the forward pass of an image.
    """
    key = id(record)
    if key not in _directions:
        centre, means = (torch.tensor(each, dtype=torch.float64) for each in (record.centre, record.means))
        _directions[key] = centre, F.normalize(means, dim=-1)
        weakref.finalize(record, _directions.pop, key)
    return _directions[key]


SCORES: dict[str, Score] = {"cosine": cosine, "energy": energy}


def unknown_scores(logits: Tensor, features: Tensor | None, record: UnknownScore) -> Tensor:
    """The scores (B,) of a batch, higher for inputs that are less like those of training.

    Raises:
        ValueError: the bundle names a score of a newer version, or a score of features that the model does not have.
    """
    if record.name not in SCORES:
        raise ValueError(f"the bundle's unknown score is {record.name!r}, and this version has {', '.join(SCORES)}; "
                         "update vit")
    if record.means and (features is None or features.shape[-1] != len(record.centre)):
        found = "no features" if features is None else f"features of {features.shape[-1]} numbers"
        raise ValueError(f"the bundle's unknown score needs features of {len(record.centre)} numbers, and the model "
                         f"has {found}; run vit calibrate again")
    return SCORES[record.name](logits, features, record)
