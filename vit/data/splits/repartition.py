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
    """The values of `data` that determine new splits.

    Args:
        fold: `data.fold`, k/n.
        group: `data.group`, a column or a regular expression.
        undivided: whether the data has not been divided by `fractions` yet. Otherwise its validation samples were held
            out of the training samples, and are chosen again.
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
    """The source with fold k of n as the test split, and val held out of the other folds."""
    k, n = fold
    pool, _ = _pool(source, {})
    whole = pool.splits["train"]
    sample_keys = list(keys(whole)) if partition.group is None else group_keys(pool, partition.group)["train"]
    folds = assign_folds(sample_keys, whole.labels, n, partition.seed, source.classes)
    held_out, rest = np.flatnonzero(folds == k - 1), np.flatnonzero(folds != k - 1)
    share = _val_share(source, partition)
    # another seed: with the same one, the threshold of val would coincide with the end of the last fold
    remaining = _divided(replace(pool, splits={"train": whole.take(rest)}), [sample_keys[i] for i in rest],
                         (1 - share, share, 0.0), partition.seed + 1)
    return replace(remaining, splits={**remaining.splits, "test": whole.take(held_out)})


def _pool(source: Source, groups: dict[str, list[str]]) -> tuple[Source, list[str]]:
    """The source with train and val joined as its train split, and the groups of the joined samples."""
    parts = [key for key in POOL if key in source.splits]
    splits = [source.splits[key] for key in parts]
    whole = splits[0] if len(splits) == 1 else type(splits[0]).concat(splits)
    return replace(source, splits={"train": whole}), [key for part in parts for key in groups.get(part, ())]


def _val_share(source: Source, partition: Partition) -> float:
    """The fraction of the training samples that is held out for validation."""
    if "val" in source.splits:
        count = len(source.splits["val"])
        return count / (count + len(source.splits["train"]))
    return validation_fraction(partition.fractions)


def _divided(source: Source, sample_keys: list[str], fractions: tuple[float, float, float], seed: int) -> Source:
    """The source with its train split divided by `fractions`; samples with the same key stay together."""
    whole = source.splits["train"]
    parts = assign_splits(sample_keys, whole.labels, fractions, seed)
    return replace(source, splits={part: whole.take(rows) for part, rows in parts.items() if len(rows)})
