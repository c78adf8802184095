"""Class-balanced sampling: every class equally often in an epoch."""

import numpy as np

from vit.counters import permutation

REPEAT = 1 << 32  # a sample drawn again within one epoch gets the counter epoch + REPEAT * times: another augmentation


def balanced(labels: np.ndarray, seed: int, epoch: int) -> np.ndarray:
    """(N,2) of (counter, index): every class equally often; within a class no image repeats before all were used.

    For labels (N,classes), several per image: every label equally often, and images without any as one more label.
    """
    groups = _groups(labels)
    quotas = np.full(len(groups), len(labels) // len(groups))
    lucky = permutation(seed, epoch, len(groups)).numpy()[: len(labels) - quotas.sum()]
    quotas[lucky] += 1
    keys = []
    for (c, members), quota in zip(groups, quotas, strict=True):
        for again in range(-(-quota // len(members))):
            counter = epoch + REPEAT * again
            chosen = members[permutation(seed + int(c), counter, len(members)).numpy()[: quota - again * len(members)]]
            keys.append(np.stack([np.full(len(chosen), counter), chosen], axis=1))
    found = np.concatenate(keys)
    return found if labels.ndim == 1 else _count_repeats(found, epoch)


def _groups(labels: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """(class, indices of its images) of every class that occurs; for several labels per image -1 stands for none."""
    if labels.ndim == 1:
        return [(int(c), np.flatnonzero(labels == c)) for c in np.unique(labels)]
    groups = [(c, np.flatnonzero(column)) for c, column in enumerate(labels.T)]
    return [group for group in [*groups, (-1, np.flatnonzero(~labels.any(axis=1)))] if len(group[1])]


def _count_repeats(keys: np.ndarray, epoch: int) -> np.ndarray:
    """Adds to each key's counter how often its image came before: it may be drawn once for each of its labels."""
    order = np.argsort(keys[:, 1], kind="stable")
    index = keys[order, 1]
    first = np.searchsorted(index, index)  # position of the image's first draw
    keys[order, 0] = epoch + REPEAT * (np.arange(len(keys)) - first)
    return keys
