"""Stratified, seeded splits: which samples are held out of a set that comes without its own validation or test part."""

import math
from collections.abc import Sequence

import numpy as np

from vit.data.counters import permutation


def split_three(labels: np.ndarray, fractions: Sequence[float], seed: int) -> dict[str, np.ndarray]:
    """Indices of train, val and test; every class keeps its share in each part as nearly as whole images allow."""
    if len(fractions) != 3 or min(fractions) < 0 or abs(sum(fractions) - 1) > 1e-6:
        raise ValueError(
            f"fractions {tuple(fractions)} must be three numbers >= 0 that add up to 1, like (0.8, 0.1, 0.1)"
        )
    val_count, test_count = (
        math.ceil(round(len(labels) * f, 6)) for f in fractions[1:]
    )  # rounded up, as scikit-learn does
    rest, test = hold_out(labels, test_count, seed)
    train, val = hold_out(labels[rest], val_count, seed + 1)
    return {"train": rest[train], "val": rest[val], "test": test}


def hold_out(labels: np.ndarray, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(kept, held out) indices, sorted; `count` images are held out, stratified, and no class loses its last image.

    labels (N,), or (N,classes) bool where an image may have several.
    """
    if labels.ndim == 2:
        held = _held_sets(labels, count, seed)
        return np.flatnonzero(~held), np.flatnonzero(held)
    members = [np.flatnonzero(labels == c) for c in np.unique(labels)]
    quotas = _quotas(np.array([len(m) for m in members]), count)
    chosen = [m[permutation(seed, c, len(m)).numpy()[:q]] for c, (m, q) in enumerate(zip(members, quotas, strict=True))]
    held = np.sort(np.concatenate(chosen)) if chosen else np.zeros(0, np.int64)
    return np.setdiff1d(np.arange(len(labels)), held), held


def _quotas(counts: np.ndarray, total: int) -> np.ndarray:
    """Shares of `total` in proportion to `counts` (largest remainder), each below its count."""
    exact = counts * total / max(counts.sum(), 1)
    quotas = np.minimum(np.floor(exact).astype(np.int64), counts - 1)
    order = np.argsort(-(exact - np.floor(exact)), kind="stable")
    while quotas.sum() < total and (quotas < counts - 1).any():
        for c in order:
            if quotas.sum() < total and quotas[c] < counts[c] - 1:
                quotas[c] += 1
    return quotas


def _held_sets(labels: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Which images are held out, (N,) bool, so that each of several labels keeps its share as nearly as can be.

    Iterative stratification (Sechidis et al. 2011): the rarest label that is left is dealt out first, each of its
    images to the side that still wants more of that label; images without a label fill up what is left.
    """
    order = permutation(seed, 0, len(labels)).numpy()
    left = labels.sum(axis=0)  # (classes,) images of each label that are not dealt out yet
    share = count / max(len(labels), 1)
    wanted = np.stack([left * (1 - share), left * share])  # (2,classes) what kept and held still want
    room, place = np.array([len(labels) - count, count]), np.full(len(labels), -1)
    kept = np.zeros(labels.shape[1], bool)
    while left.any():
        rare = int(np.argmin(np.where(left > 0, left, len(labels) + 1)))
        for i in order[(place[order] < 0) & labels[order, rare]]:
            mine = labels[i]
            side = int(wanted[1, rare] > wanted[0, rare])
            side = side if room[side] > 0 else 1 - side
            if (mine & ~kept & (left == 1)).any():
                side = 0  # the last image that can teach a label
            place[i] = side
            kept |= mine & (side == 0)
            wanted[side, mine] -= 1
            room[side] -= 1
            left = left - mine
    rest = order[place[order] < 0]
    place[rest[: max(room[1], 0)]] = 1
    return place == 1
