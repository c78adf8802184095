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
    """(kept, held out) indices, sorted; `count` images are held out, stratified, and no class loses its last image."""
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
