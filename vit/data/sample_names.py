"""Compact sequences of strings for names and texts, whose memory worker processes share."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


class PackedStrings(Sequence[str]):
    """Many strings in two arrays: worker processes share their memory, while reference counts of Python strings would
    cause copies.
    """

    def __init__(self, names: Sequence[str]):
        encoded = [n.encode("utf-8", "surrogateescape") for n in names]
        self._blob = np.frombuffer(b"".join(encoded), np.uint8)
        self._ends = np.cumsum([len(e) for e in encoded], dtype=np.int64)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, i: int) -> str:
        i = range(len(self))[i]
        start = self._ends[i - 1] if i else 0
        return self._blob[start : self._ends[i]].tobytes().decode("utf-8", "surrogateescape")


@dataclass(eq=False)
class RowNames(Sequence[str]):
    """Names of samples that have no file of their own: "train.parquet row 17", "train.en line 17"."""

    prefix: str
    rows: np.ndarray
    unit: str = "row"

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> str:
        return f"{self.prefix} {self.unit} {self.rows[i]}"


class ConcatSequence(Sequence):
    """The concatenation of several sequences, without a copy."""

    def __init__(self, parts: Sequence[Sequence]):
        self.parts, self.ends = parts, np.cumsum([len(part) for part in parts])

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, i: int):
        part, row = locate(self.ends, range(len(self))[i])
        return self.parts[part][row]


@dataclass(eq=False)
class SelectedStrings(Sequence[str]):
    """The selected rows of another sequence of strings, without a copy."""

    names: Sequence[str]
    rows: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> str:
        return self.names[int(self.rows[i])]


def locate(ends: np.ndarray, i: int) -> tuple[int, int]:
    """(part, index in it) of item i of a concatenation of parts with cumulative `ends`."""
    part = int(np.searchsorted(ends, i, side="right"))
    return part, int(i - (ends[part - 1] if part else 0))


def has_names(names: Sequence[str]) -> bool:
    """Whether names identify samples, as file names do, unlike positions such as "x.csv line 17"."""
    if isinstance(names, ConcatSequence):
        return all(map(has_names, names.parts))
    return has_names(names.names) if isinstance(names, SelectedStrings) else not isinstance(names, RowNames)
