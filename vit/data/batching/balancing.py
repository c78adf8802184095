"""Class-balanced sampling: every class equally often in an epoch.

Weights of the classes in the loss are `vit.data.Source.class_weights`.
"""

import numpy as np

from vit.counters import permutation
from vit.data.splits.splitting import draw_from_each, rows_by_class

REPEAT = 1 << 32  # the k-th repetition of a sample has the counter epoch + k * REPEAT: another augmentation


def balance_classes(labels: np.ndarray, seed: int, epoch: int, draws: int | None = None) -> np.ndarray:
    """labels (N,) → (draws,2) of (counter, index), by default N, every class equally often. An image is repeated only
    after all images of its class have been drawn.

    With several labels per image, labels (N,classes), every label is drawn equally often; images without labels count
    as one more class.
    """
    classes, members = _groups(labels)
    sizes = np.array([len(rows) for rows in members])
    draws = len(labels) if draws is None else draws
    quotas = np.full(len(classes), draws // len(classes))
    enlarged = permutation(seed, epoch, len(classes)).numpy()[: draws - quotas.sum()]
    quotas[enlarged] += 1  # the remainder of the division, one sample per class
    rounds = -(-quotas // sizes)  # how often each class is used, the last time perhaps in part
    group = np.repeat(np.arange(len(classes)), rounds)  # index of the class in each round
    repetition = np.arange(len(group)) - np.repeat(np.cumsum(rounds) - rounds, rounds)  # from 0 in each class
    counters = epoch + REPEAT * repetition
    drawn, rows = draw_from_each([members[g] for g in group], seed + classes[group], counters,
                                 quotas[group] - repetition * sizes[group])
    keys = np.stack([counters[drawn], rows], axis=1)
    return keys if labels.ndim == 1 else _count_repeats(keys, epoch)


def _groups(labels: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """The classes that occur, and the indices of their images; with several labels per image, class -1 contains the
    images without labels.
    """
    if labels.ndim == 1:
        return rows_by_class(labels)
    images, owners = np.nonzero(labels)
    classes, entries = rows_by_class(owners)
    unlabelled = np.flatnonzero(~labels.any(axis=1))
    members = [images[rows] for rows in entries]
    return (np.append(classes, -1), [*members, unlabelled]) if len(unlabelled) else (classes, members)


def _count_repeats(keys: np.ndarray, epoch: int) -> np.ndarray:
    """Adds REPEAT to the counter of a key for each earlier draw of its image. An image with several labels may be drawn
    once for each of them.
    """
    order = np.argsort(keys[:, 1], kind="stable")
    index = keys[order, 1]
    first = np.searchsorted(index, index)  # position of the image's first draw
    keys[order, 0] = epoch + REPEAT * (np.arange(len(keys)) - first)
    return keys
