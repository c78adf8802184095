"""A source of pairs: texts or images, each with its target text."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from vit.data.errors import DataError
from vit.data.identity import fingerprint
from vit.data.sample_names import ConcatSequence, SelectedStrings
from vit.data.splits.names import SPLIT_NAMES, split_of
from vit.data.splits.split import (
    FINGERPRINTS,
    Raw,
    ReadConcat,
    ReadRows,
    concat_groups,
    image_fingerprints,
    keys,
    location_of,
    read_sample,
)
from vit.data.splits.splitting import assign_splits, validation_fraction
from vit.data.threads import StageProgress, reported
from vit.messages import check_choice, number_of

log = logging.getLogger("vit")


@dataclass(frozen=True)
class PairSplit:
    """Pairs of one split: `targets`, `names`, and either `sources` (texts) or `read(i)` (an image as encoded bytes or a
    pixel array (H,W[,C])).

    Pairs of one group in `groups` (N,) have the same source, such as an image with several captions: training uses each
    pair as a sample, evaluation generates one text per group, whose references are all targets of the group.

    Raises:
        ValueError: the parts differ in length, or not exactly one of `sources` and `read` is set.
    """

    targets: Sequence[str]
    names: Sequence[str]
    sources: Sequence[str] | None = None
    read: Callable[[int], Raw] | None = None
    groups: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if (self.sources is None) == (self.read is None):
            raise ValueError("a PairSplit needs either sources (texts) or read (images)")
        counts = {len(part) for part in (self.targets, self.names, self.sources, self.groups)
                  if part is not None}
        if len(counts) != 1:
            raise ValueError(f"targets, names, sources and groups must have the same length, but have {sorted(counts)}")

    def __len__(self) -> int:
        return len(self.targets)

    def __repr__(self) -> str:
        return f"PairSplit(samples={len(self)})"

    def location(self, i: int) -> Raw | Path:
        """The file of image i, from which a header can be read alone; otherwise the result of `read`."""
        return location_of(self.read, i)

    def image(self, i: int) -> Raw:
        """The encoded image or pixels of pair i; raises BadImage with the name if the file cannot be read."""
        return read_sample(self, i)

    def take(self, rows: np.ndarray) -> "PairSplit":
        """The pairs at `rows`, in that order."""
        return PairSplit(
            SelectedStrings(self.targets, rows),
            SelectedStrings(self.names, rows),
            None if self.sources is None else SelectedStrings(self.sources, rows),
            None if self.read is None else ReadRows(self.read, rows),
            None if self.groups is None else SelectedStrings(self.groups, rows),
        )

    def by_source(self) -> list[list[int]]:
        """The rows of each group, in the order of the first ones; without groups each row alone."""
        if self.groups is None:
            return [[row] for row in range(len(self))]
        rows: dict[str, list[int]] = {}
        for row, group in enumerate(self.groups):
            rows.setdefault(group, []).append(row)
        return list(rows.values())

    def fingerprints(self, progress: StageProgress | None = None) -> list[str]:
        """A hash of the source of each pair."""
        if self.sources is None:
            return image_fingerprints(self, progress)
        return list(reported(map(fingerprint, self.sources), FINGERPRINTS, len(self), progress))

    @staticmethod
    def concat(splits: Sequence["PairSplit"]) -> "PairSplit":
        """The concatenation of several splits."""
        targets, names = ConcatSequence([s.targets for s in splits]), ConcatSequence([s.names for s in splits])
        groups = concat_groups([s.groups for s in splits])
        if splits[0].sources is not None:
            return PairSplit(targets, names, ConcatSequence([s.sources for s in splits]), groups=groups)
        ends = np.cumsum([len(split) for split in splits])
        return PairSplit(targets, names, read=ReadConcat([split.read for split in splits], ends), groups=groups)


@dataclass(frozen=True)
class PairSource:
    """The available splits out of "train", "val" and "test", and the samples left out as (name, reason).

    Data for evaluation alone needs no training pairs; training checks that there are some.

    Raises:
        DataError: there are no pairs, or the split train is empty.
        ValueError: only some of the splits have images.
    """

    name: str
    splits: dict[str, PairSplit]
    left_out: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not any(map(len, self.splits.values())):
            raise DataError(f"{self.name}: there are 0 pairs; splits found: {', '.join(self.splits) or 'none'}")
        if "train" in self.splits:
            self.check_train()
        if len({split.read is None for split in self.splits.values()}) > 1:
            raise ValueError(f"{self.name}: all splits must have images, or none")

    @property
    def images(self) -> bool:
        """Whether the sources are images."""
        return next(iter(self.splits.values())).read is not None

    @property
    def unit(self) -> str:
        """What a source is."""
        return "image" if self.images else "source"

    def check_train(self) -> None:
        """Raises DataError if there are no training pairs."""
        if not len(self.splits.get("train", ())):
            raise DataError(f"{self.name}: there are 0 training pairs; splits found: {', '.join(self.splits)}")

    def split_lists(self) -> dict[str, list[tuple[str, str]]]:
        """(name, target) of every pair by split, as a run records them."""
        return {
            key: [(split.names[i], split.targets[i]) for i in range(len(split))] for key, split in self.splits.items()
        }


def add_missing_splits(splits: dict[str, PairSplit], fractions: Sequence[float], seed: int) -> dict[str, PairSplit]:
    """Splits "train" into three by `fractions` if it is alone; if only "val" is missing, it is split off train.

    Pairs with the same source stay together, so that no source of the test split is in train with another target.
    """
    if set(splits) != {"train"}:
        share = validation_fraction(fractions)
        if "val" in splits or "train" not in splits or share == 0:
            return splits
        fractions = (1 - share, share, 0.0)
    train = splits["train"]
    parts = assign_splits(keys(train), np.zeros(len(train), np.int64), fractions, seed)  # not stratified
    return {key: train.take(rows) for key, rows in parts.items() if len(rows)} | {
        key: split for key, split in splits.items() if key != "train"
    }


def log_several_targets(source: PairSource) -> PairSource:
    """Logs how many sources have several targets, if there are some; returns the source of data."""
    counts = [len(rows) for split in source.splits.values() for rows in split.by_source()]
    if max(counts, default=1) > 1:
        log.info("%s: %s of %s, up to %d each: all texts of one %s are in the same split unless the data states other "
                 "splits; one text is generated for each %s of val and test and compared with all of its texts",
                 source.name, number_of(sum(counts), "text"), number_of(len(counts), source.unit), max(counts),
                 source.unit, source.unit)
    return source


def rows_by_split(
    values: Sequence[str],
    names: Sequence[str],
    on_unknown: str = "error",
    left_out: list[tuple[str, str]] | None = None,
    need_train: bool = True,
    column: object = None,
) -> dict[str, np.ndarray]:
    """Rows of each split by the values of a column, which may be aliases such as "dev".

    Args:
        on_unknown: rows of other splits are an "error", or left out ("skip") and added to `left_out`.
        need_train: whether there must be rows of the split train.
        column: the column of the values, see `split_of`.

    Raises:
        DataError: a value is unknown, or no row is of the split train.
        ValueError: `on_unknown` is unknown.
    """
    check_choice("on_unknown_split", on_unknown, ("error", "skip"))
    values = [value.strip().lower() for value in values]
    splits = np.array([split_of(value, column) or "" for value in values])
    wrong = np.flatnonzero(splits == "").tolist()
    if wrong and on_unknown == "error":
        listed = ", ".join(name for names in SPLIT_NAMES.values() for name in names)
        raise DataError(f"{names[wrong[0]]}: split {values[wrong[0]]!r} is not one of {listed}; {len(wrong)} "
                        f"of {number_of(len(values), 'line')} have such splits")
    if left_out is not None:
        left_out += [(names[i], f"is of the split {values[i]!r}") for i in wrong]
    parts = {key: np.flatnonzero(splits == key) for key in SPLIT_NAMES if (splits == key).any()}
    if "train" not in parts and need_train:
        raise DataError(
            f"{names[0]}: none of the {number_of(len(values), 'line')} is in the split train; splits found: "
            f"{', '.join(parts)}"
        )
    return parts
