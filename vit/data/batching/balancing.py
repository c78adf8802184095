"""Class-balanced sampling: every class equally often in an epoch."""

import numpy as np

from vit.counters import permutation

REPEAT = 1 << 32  # the k-th repetition of a sample has the counter epoch + k * REPEAT: another augmentation


def balance_classes(labels: np.ndarray, seed: int, epoch: int) -> np.ndarray:
    """labels (N,) → (N,2) of (counter, index), every class equally often; no image is repeated before its whole class
    is used.

    Multi-label (N,classes): every label equally often; images without labels count as one more class.
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
    """(class, indices of its images) of every class that occurs; in multi-label sets class -1 is images without labels.
    """
    if labels.ndim == 1:
        return [(int(c), np.flatnonzero(labels == c)) for c in np.unique(labels)]
    groups = [(c, np.flatnonzero(column)) for c, column in enumerate(labels.T)]
    return [group for group in [*groups, (-1, np.flatnonzero(~labels.any(axis=1)))] if len(group[1])]


def _count_repeats(keys: np.ndarray, epoch: int) -> np.ndarray:
    """Adds REPEAT to a key's counter for each earlier draw of its image, which may be drawn once for each of its
    labels.
    """
    order = np.argsort(keys[:, 1], kind="stable")
    index = keys[order, 1]
    first = np.searchsorted(index, index)  # position of the image's first draw
    keys[order, 0] = epoch + REPEAT * (np.arange(len(keys)) - first)
    return keys
