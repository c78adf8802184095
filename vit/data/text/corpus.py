"""A corpus: documents of sentences in order."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from vit.data.errors import DataError
from vit.data.identity import fingerprint
from vit.data.sample_names import ConcatSequence, SelectedStrings
from vit.data.splits.split import FINGERPRINTS
from vit.data.splits.splitting import assign_splits
from vit.data.threads import StageProgress, reported

MIN_DOCUMENTS = 30  # a corpus with fewer documents is split by blocks of sentences
ENDS_BLOCK = "0"  # last digit of the fingerprint of a block's last sentence: 16 sentences on average


@dataclass(frozen=True)
class CorpusSplit:
    """Sentences in order, their `names`, and `document` (N,), the number of the document of each."""

    texts: Sequence[str]
    names: Sequence[str]
    document: np.ndarray

    def __len__(self) -> int:
        return len(self.texts)

    def __repr__(self) -> str:
        return f"CorpusSplit(samples={len(self)})"

    def take(self, rows: np.ndarray) -> "CorpusSplit":
        """The sentences at `rows`, in that order."""
        return CorpusSplit(SelectedStrings(self.texts, rows), SelectedStrings(self.names, rows), self.document[rows])

    def followed_sentences(self) -> np.ndarray:
        """Indices of the sentences that are followed by another one of the same document."""
        return np.flatnonzero(self.document[:-1] == self.document[1:])

    def documents(self) -> "Documents":
        return Documents(self, np.flatnonzero(np.diff(self.document, prepend=-1)))


@dataclass(frozen=True)
class Documents:
    """The documents of a split, which begin at the sentences `starts`, as the units that are assigned to splits.

    A document has the name of its first sentence; its label is its number of sentences.
    """

    split: CorpusSplit
    starts: np.ndarray

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def names(self) -> Sequence[str]:
        return SelectedStrings(self.split.names, self.starts)

    @property
    def ends(self) -> np.ndarray:
        return np.append(self.starts[1:], len(self.split))

    def fingerprints(self, progress: StageProgress | None = None) -> list[str]:
        """A hash of each document's text."""
        spans = zip(self.starts.tolist(), self.ends.tolist(), strict=True)
        found = (fingerprint("\n".join(self.split.texts[i] for i in range(*span))) for span in spans)
        return list(reported(found, FINGERPRINTS, len(self), progress))

    def take(self, rows: np.ndarray) -> "Documents":
        """The documents at `rows`, in that order."""
        lengths = (self.ends - self.starts)[rows]
        sentences = [np.arange(self.starts[row], self.ends[row]) for row in rows]
        selected = self.split.take(np.concatenate([np.zeros(0, np.int64), *sentences]))
        return replace(selected, document=np.repeat(np.arange(len(rows)), lengths)).documents()

    @staticmethod
    def concat(parts: Sequence["Documents"]) -> "Documents":
        """The concatenation of the documents of several splits."""
        texts, names = (ConcatSequence([getattr(part.split, key) for part in parts]) for key in ("texts", "names"))
        lengths = np.concatenate([part.ends - part.starts for part in parts])
        return CorpusSplit(texts, names, np.repeat(np.arange(len(lengths)), lengths)).documents()


def split_by_document(whole: CorpusSplit, fractions: Sequence[float], seed: int) -> dict[str, CorpusSplit]:
    """Train, val and test of whole documents, assigned by the hash of their texts; empty splits are omitted.

    Fewer than 30 documents are divided into blocks of sentences. The end of a block depends on its last sentence only,
    so that adding or removing a sentence changes at most the adjacent blocks.
    """
    documents = whole.documents()
    documents = documents if len(documents) >= MIN_DOCUMENTS else _blocks(whole).documents()
    parts = assign_splits(documents.fingerprints(), np.zeros(len(documents), np.int64), fractions, seed)
    return {key: documents.take(rows).split for key, rows in parts.items() if len(rows)}


def _blocks(whole: CorpusSplit) -> CorpusSplit:
    """The corpus divided into blocks of two or more sentences, each as a document."""
    block, length = np.zeros(len(whole), np.int64), 0
    for i in range(1, len(whole)):
        length += 1
        new = whole.document[i] != whole.document[i - 1]
        new |= length > 1 and fingerprint(whole.texts[i - 1]).endswith(ENDS_BLOCK)
        block[i], length = block[i - 1] + new, 0 if new else length
    return replace(whole, document=block)


@dataclass(frozen=True)
class CorpusSource:
    """The available splits out of "train", "val" and "test", and the samples left out as (name, reason).

    Raises:
        DataError: a split has no pair of consecutive sentences.
    """

    name: str
    splits: dict[str, CorpusSplit]
    left_out: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for key, split in self.splits.items():
            if len(split.followed_sentences()) == 0:
                raise DataError(
                    f"{self.name}: none of the {len(split)} sentences of {key} is followed by another one in its "
                    "document; write one sentence per line, and an empty line only between documents"
                )

    def split_lists(self) -> dict[str, list[tuple[str, str]]]:
        """(name, number of sentences) of every document by split."""
        documents = {key: split.documents() for key, split in self.splits.items()}
        lengths = {key: (each.ends - each.starts).tolist() for key, each in documents.items()}
        return {key: list(zip(each.names, map(str, lengths[key]), strict=True)) for key, each in documents.items()}
