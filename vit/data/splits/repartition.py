"""New splits of a source: one of n folds as the test split, or splits that keep groups together."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from vit.data.source import Source
from vit.data.splits.folds import assign_folds, parse_fold
from vit.data.splits.groups import check_apart, group_keys
from vit.data.splits.split import keys
from vit.data.splits.splitting import assign_splits, validation_fraction

POOL = ("train", "val")  # splits that are divided into folds


class Partition(NamedTuple):
    """`data.fold`, `data.group` and how samples are divided otherwise.

    Args:
        undivided: whether a source without validation or test samples is to be split by `fractions`; otherwise its
            validation samples, which were held out of the training samples, are chosen anew.
    """

    fold: str | None
    group: str | int | None
    fractions: tuple[float, float, float]
    seed: int
    undivided: bool


def repartition(source: Source, partition: Partition) -> Source:
    """The source with new splits.

    With a fold k/n, all samples of train and val (of all data if it has no predefined splits) are divided into n folds;
    the k-th is "test", and "val" is held out of the others. A predefined test split is left out. Without a fold, splits
    that were made by `fractions` are made again from whole groups; predefined splits are only checked.

    Raises:
        DataError: as `parse_fold`, `assign_folds`, `group_keys` and `check_apart`.
    """
    fold = None if partition.fold is None else parse_fold(partition.fold)
    if fold is not None:
        return _with_fold(source, fold, partition)
    groups = group_keys(source, partition.group)
    if partition.undivided and set(source.splits) == {"train"}:
        return _divided(source, groups["train"], partition.fractions, partition.seed)
    if partition.undivided and "val" in source.splits:  # stated by the data
        check_apart(source, groups, partition.group)
        return source
    pool, pooled = _pool(source, groups)
    stated = {key: each for key, each in groups.items() if key not in POOL}
    check_apart(source, {"train": pooled, **stated}, partition.group)
    share = _val_share(source, partition)
    divided = _divided(pool, pooled, (1 - share, share, 0.0), partition.seed)
    return replace(divided, splits={**divided.splits, **{k: s for k, s in source.splits.items() if k not in POOL}})


def _with_fold(source: Source, fold: tuple[int, int], partition: Partition) -> Source:
    k, n = fold
    pool, _ = _pool(source, {})
    named = list(keys(pool.splits["train"])) if partition.group is None else group_keys(pool, partition.group)["train"]
    whole = pool.splits["train"]
    folds = assign_folds(named, whole.labels, n, partition.seed, source.classes)
    held_out, rest = np.flatnonzero(folds == k - 1), np.flatnonzero(folds != k - 1)
    share = _val_share(source, partition)
    # another seed: with the same one, the threshold of val would coincide with the end of the last fold
    remaining = _divided(replace(pool, splits={"train": whole.take(rest)}), [named[i] for i in rest],
                         (1 - share, share, 0.0), partition.seed + 1)
    return replace(remaining, splits={**remaining.splits, "test": whole.take(held_out)})


def _pool(source: Source, found: dict[str, list[str]]) -> tuple[Source, list[str]]:
    """The source with train and val as one split, and the groups of its samples."""
    parts = [key for key in POOL if key in source.splits]
    splits = [source.splits[key] for key in parts]
    whole = splits[0] if len(splits) == 1 else type(splits[0]).concat(splits)
    return replace(source, splits={"train": whole}), [key for part in parts for key in found.get(part, ())]


def _val_share(source: Source, partition: Partition) -> float:
    """The fraction of the training samples that is held out for validation."""
    if "val" in source.splits:
        count = len(source.splits["val"])
        return count / (count + len(source.splits["train"]))
    return validation_fraction(partition.fractions)


def _divided(source: Source, named: list[str], fractions: tuple[float, float, float], seed: int) -> Source:
    whole = source.splits["train"]
    parts = assign_splits(named, whole.labels, fractions, seed)
    return replace(source, splits={part: whole.take(rows) for part, rows in parts.items() if len(rows)})
