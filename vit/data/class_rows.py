"""The rows of each class, and random ones of them, for all classes together: one search or one call per class would
take minutes for 20,000 classes.
"""

from collections.abc import Sequence

import numpy as np
import torch

from vit.counters import hash_counters


def rows_by_class(labels: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """labels (N,) → the classes that occur (C,), sorted, and the rows of each, ascending."""
    order = np.argsort(labels, kind="stable")
    classes, starts = np.unique(labels[order], return_index=True)
    return classes, np.split(order, starts[1:]) if len(classes) else []


def draw_from_each(
    groups: Sequence[np.ndarray], seeds: np.ndarray, counters: np.ndarray, counts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The first `counts` rows of each group g in the order of `permutation(seeds[g], counters[g], len(groups[g]))`: the
    group of each drawn row, ascending, and the row. Seeds, counters and counts are (G,) int64.
    """
    sizes = np.array([len(rows) for rows in groups], dtype=np.int64)
    group = np.repeat(np.arange(len(groups)), sizes)
    position = np.arange(len(group)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # within its group
    hashes = hash_counters(*map(torch.from_numpy, (seeds[group], counters[group], position))).numpy()
    rows = np.concatenate([np.zeros(0, np.int64), *groups])[np.lexsort((hashes, group))]
    drawn = position < counts[group]
    return group[drawn], rows[drawn]
