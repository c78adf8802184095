"""A source of running text: sentences in their order, in documents."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from vit.data.errors import DataError
from vit.data.identity import fingerprint
from vit.data.sample_names import Chain, NameRows
from vit.data.splitting import assign

FEW = 30  # documents; of fewer, blocks of sentences are split instead
ENDS_BLOCK = "0"  # the last digit of the fingerprint of a block's last sentence: blocks of 16 sentences on average


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

    def documents(self) -> "Documents":
        return Documents(self, np.flatnonzero(np.diff(self.document, prepend=-1)))


@dataclass(frozen=True)
class Documents:
    """The documents of a split, each beginning at one of `starts`, as the samples that are split by fractions.

    A document is named after its first sentence; its label is its number of sentences.
    """

    split: CorpusSplit
    starts: np.ndarray

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def names(self) -> Sequence[str]:
        return NameRows(self.split.names, self.starts)

    @property
    def ends(self) -> np.ndarray:
        return np.append(self.starts[1:], len(self.split))

    def fingerprints(self) -> list[str]:
        """A hash of each document's text."""
        spans = zip(self.starts.tolist(), self.ends.tolist(), strict=True)
        return [fingerprint("\n".join(self.split.texts[i] for i in range(*span))) for span in spans]

    def take(self, rows: np.ndarray) -> "Documents":
        """The documents at `rows`, in that order."""
        lengths = (self.ends - self.starts)[rows]
        sentences = [np.arange(self.starts[row], self.ends[row]) for row in rows]
        selected = self.split.take(np.concatenate([np.zeros(0, np.int64), *sentences]))
        return replace(selected, document=np.repeat(np.arange(len(rows)), lengths)).documents()

    @staticmethod
    def joined(parts: Sequence["Documents"]) -> "Documents":
        """The documents of several splits one after the other."""
        texts, names = (Chain([getattr(part.split, key) for part in parts]) for key in ("texts", "names"))
        lengths = np.concatenate([part.ends - part.starts for part in parts])
        return CorpusSplit(texts, names, np.repeat(np.arange(len(lengths)), lengths)).documents()


def by_document(whole: CorpusSplit, fractions: Sequence[float], seed: int) -> dict[str, CorpusSplit]:
    """Train, val and test of whole documents, by the hash of each text; empty parts are omitted.

    Fewer than 30 documents are divided into blocks of sentences. The end of a block depends on its last sentence only,
    so that a sentence that is added or removed changes at most the adjacent blocks.
    """
    documents = whole.documents()
    documents = documents if len(documents) >= FEW else _blocks(whole).documents()
    parts = assign(documents.fingerprints(), np.zeros(len(documents), np.int64), fractions, seed)
    return {key: documents.take(rows).split for key, rows in parts.items() if len(rows)}


def _blocks(whole: CorpusSplit) -> CorpusSplit:
    """The same sentences with every block, of two or more, as a document of its own."""
    block, length = np.zeros(len(whole), np.int64), 0
    for i in range(1, len(whole)):
        length += 1
        new = whole.document[i] != whole.document[i - 1]
        new |= length > 1 and fingerprint(whole.texts[i - 1]).endswith(ENDS_BLOCK)
        block[i], length = block[i - 1] + new, 0 if new else length
    return replace(whole, document=block)


@dataclass(frozen=True)
class CorpusSource:
    """The available splits out of "train", "val" and "test", and the samples left out as (name, reason)."""

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

    def split_lists(self) -> dict[str, list[tuple[str, str]]]:
        """Per split the (name, number of sentences) of every document."""
        documents = {key: split.documents() for key, split in self.splits.items()}
        lengths = {key: (each.ends - each.starts).tolist() for key, each in documents.items()}
        return {key: list(zip(each.names, map(str, lengths[key]), strict=True)) for key, each in documents.items()}
