"""A source of running text: sentences in their order, in documents."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from vit.data.source import DataError, NameRows


@dataclass(frozen=True)
class CorpusSplit:
    """Sentences in order, a name for each, and `document` (N,): which document each belongs to."""

    texts: Sequence[str]
    names: Sequence[str]
    document: np.ndarray

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, rows: np.ndarray) -> "CorpusSplit":
        """The sentences at `rows`, in that order."""
        return CorpusSplit(NameRows(self.texts, rows), NameRows(self.names, rows), self.document[rows])

    def firsts(self) -> np.ndarray:
        """Sentences that another one of the same document follows."""
        return np.flatnonzero(self.document[:-1] == self.document[1:])


@dataclass(frozen=True)
class CorpusSource:
    """The splits "train", "val", "test" as there are, and what was left out: (name, reason)."""

    name: str
    splits: dict[str, CorpusSplit]
    left_out: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for key, split in self.splits.items():
            if len(split.firsts()) == 0:
                raise DataError(
                    f"{self.name}: no sentence of {key} ({len(split)} lines) has one that follows it in its document; "
                    "write one sentence per line, and an empty line only between documents"
                )
