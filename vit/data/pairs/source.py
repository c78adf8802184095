"""A source of pairs: texts or images, each with its target text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from vit.data.errors import DataError
from vit.data.identity import fingerprint
from vit.data.images.decode import BadImage
from vit.data.sample_names import Chain, NameRows
from vit.data.split import Raw, ReadJoined, ReadRows, content_of, keys
from vit.data.split_names import SPLIT_NAMES
from vit.data.splitting import assign


@dataclass(frozen=True)
class PairSplit:
    """Pairs of one split: the `targets`, a name for each pair, and what they are made of: either texts (`sources`) or
    images (`read(i)`: encoded bytes or a pixel array (H,W[,C])).
    """

    targets: Sequence[str]
    names: Sequence[str]
    sources: Sequence[str] | None = None
    read: Callable[[int], Raw] | None = None

    def __post_init__(self) -> None:
        if (self.sources is None) == (self.read is None):
            raise ValueError("a split of pairs has either texts (sources) or images (read)")
        counts = {len(part) for part in (self.targets, self.names, self.sources) if part is not None}
        if len(counts) != 1:
            raise ValueError(f"targets, names and sources must be equally many, but their numbers are {sorted(counts)}")

    def __len__(self) -> int:
        return len(self.targets)

    def location(self, i: int) -> Raw | Path:
        """The location of image i: its file, else the result of `read`; enough to read a header without the whole file.
        """
        return getattr(self.read, "location", self.read)(i)

    def image(self, i: int) -> Raw:
        """What `read` gives; raises BadImage, with the name, where a file cannot be read."""
        try:
            return self.read(i)
        except OSError as error:
            raise BadImage(self.names[i], f"cannot be read ({error.strerror or error})") from error

    def take(self, rows: np.ndarray) -> "PairSplit":
        """The pairs at `rows`, in that order."""
        return PairSplit(
            NameRows(self.targets, rows),
            NameRows(self.names, rows),
            None if self.sources is None else NameRows(self.sources, rows),
            None if self.read is None else ReadRows(self.read, rows),
        )

    def fingerprints(self) -> list[str]:
        """A hash of each pair's source, which text or image."""
        if self.sources is not None:
            return [fingerprint(source) for source in self.sources]
        return [content_of(self, i) for i in range(len(self))]

    @staticmethod
    def joined(splits: Sequence["PairSplit"]) -> "PairSplit":
        """The pairs of several splits one after the other."""
        targets, names = Chain([s.targets for s in splits]), Chain([s.names for s in splits])
        if splits[0].sources is not None:
            return PairSplit(targets, names, Chain([s.sources for s in splits]))
        return PairSplit(targets, names, read=ReadJoined([s.read for s in splits], np.cumsum([len(s) for s in splits])))


@dataclass(frozen=True)
class PairSource:
    """The available splits out of "train", "val" and "test", and the samples left out as (name, reason)."""

    name: str
    splits: dict[str, PairSplit]
    left_out: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if "train" not in self.splits or len(self.splits["train"]) == 0:
            found = ", ".join(self.splits) or "none"
            raise DataError(f"{self.name}: there are 0 training pairs; splits found: {found}")
        if len({split.read is None for split in self.splits.values()}) > 1:
            raise ValueError(f"{self.name}: either all splits have images or none")

    @property
    def images(self) -> bool:
        """Whether the sources are images."""
        return self.splits["train"].read is not None

    def split_lists(self) -> dict[str, list[tuple[str, str]]]:
        """Per split the (name, target) of every pair, which a run records."""
        return {
            key: [(split.names[i], split.targets[i]) for i in range(len(split))] for key, split in self.splits.items()
        }


def complete(splits: dict[str, PairSplit], fractions: Sequence[float], seed: int) -> dict[str, PairSplit]:
    """Splits a lone "train" into three by `fractions`; if only "val" is missing, it is split off train.

    Pairs with the same source stay together, so that no source of the test split was trained on with another target.
    """
    if set(splits) != {"train"}:
        share = fractions[1] / max(fractions[0] + fractions[1], 1e-9)
        if "val" in splits or share == 0:
            return splits
        fractions = (1 - share, share, 0.0)
    train = splits["train"]
    parts = assign(keys(train), np.zeros(len(train), np.int64), fractions, seed)  # one class: nothing to stratify by
    return {key: train.take(rows) for key, rows in parts.items() if len(rows)} | {
        key: split for key, split in splits.items() if key != "train"
    }


def split_rows(values: Sequence[str], names: Sequence[str]) -> dict[str, np.ndarray]:
    """Rows of each split by a column, whose values may be aliases such as "dev"."""
    keys = {alias: key for key, aliases in SPLIT_NAMES.items() for alias in aliases}
    values = [value.strip().lower() for value in values]
    wrong = next((i for i, value in enumerate(values) if value not in keys), None)
    if wrong is not None:
        raise DataError(f"{names[wrong]}: split {values[wrong]!r} is not one of {', '.join(keys)}")
    found = np.array([keys[value] for value in values])
    parts = {key: np.flatnonzero(found == key) for key in SPLIT_NAMES if (found == key).any()}
    if "train" not in parts:
        raise DataError(
            f"{names[0]}: neither this nor any other of {len(values)} lines is of the split train; splits found: "
            f"{', '.join(parts)}"
        )
    return parts
