"""A split of labelled texts or pairs of texts as batches of ids for an encoder."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from vit.data.identity import fingerprint
from vit.data.images.dataset import Batch
from vit.data.sample_keys import sample_keys
from vit.data.sample_names import ConcatSequence, SelectedStrings
from vit.data.splits.split import FINGERPRINTS, concat_groups
from vit.data.text.token_ids import Tokens, find_too_long, tokenize
from vit.data.text.tokenizers import BOS, EOS, Tokenizer
from vit.data.threads import StageProgress, reported
from vit.messages import number_of


@dataclass(frozen=True)
class TextSplit:
    """The samples of one split.

    Args:
        labels: (N,) int64.
        texts: one column of N texts, or two for pairs.
        groups: the group of each sample, if the data has groups.
    """

    labels: np.ndarray
    names: Sequence[str]
    texts: tuple[Sequence[str], ...]
    groups: Sequence[str] | None = None

    unit = "text"  # singular name of a sample in messages

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"TextSplit(samples={len(self)})"

    def take(self, rows: np.ndarray) -> "TextSplit":
        """The samples at `rows`, in that order."""
        texts = tuple(SelectedStrings(column, rows) for column in self.texts)
        groups = None if self.groups is None else SelectedStrings(self.groups, rows)
        return TextSplit(self.labels[rows], SelectedStrings(self.names, rows), texts, groups)

    def fingerprints(self, progress: StageProgress | None = None) -> list[str]:
        """A hash of each sample's texts."""
        found = (fingerprint("\t".join(texts)) for texts in zip(*self.texts, strict=True))
        return list(reported(found, FINGERPRINTS, len(self), progress))

    @staticmethod
    def concat(splits: Sequence["TextSplit"]) -> "TextSplit":
        """The concatenation of several splits."""
        texts = tuple(ConcatSequence(columns) for columns in zip(*(split.texts for split in splits), strict=True))
        labels = np.concatenate([split.labels for split in splits])
        groups = concat_groups([split.groups for split in splits])
        return TextSplit(labels, ConcatSequence([split.names for split in splits]), texts, groups)


class TextInputs:
    """Encoder inputs of one or two columns of texts: [bos] a [eos], or [bos] a [eos] b [eos].

    Inputs are truncated to `max_len` tokens in total; the longer of two texts is cut first. `whole` (N,) are the
    lengths before truncation.

    Raises:
        ValueError: there are not one or two columns of the same length, or `max_len` is too small.
    """

    def __init__(
        self, tokenizer: Tokenizer, columns: Sequence[Sequence[str]], max_len: int | None = None,
        progress: StageProgress | None = None,
    ):
        self._join(_tokenized(tokenizer, columns, progress), max_len)

    @classmethod
    def of_tokens(cls, plain: list[Tokens], max_len: int | None = None) -> "TextInputs":
        """The inputs of columns that are tokenized, without special tokens."""
        inputs = cls.__new__(cls)
        inputs._join(plain, max_len)
        return inputs

    def _join(self, plain: list[Tokens], max_len: int | None) -> None:
        lengths = np.stack([tokens.lengths for tokens in plain])  # (columns,N)
        specials = 1 + len(plain)
        self.whole = lengths.sum(0) + specials
        if max_len is not None:
            lengths = truncated_lengths(lengths, max_len - specials)
        self.tokens = _join_columns(plain, lengths)
        self.second_start = lengths[0] + 2  # (N,) position of the first token of the second text

    def batch(self, rows: np.ndarray) -> dict[str, Tensor]:
        """rows (B,) → source (B,N), segment (B,N), which is 1 for the second text, and source_mask (B,N)."""
        source, mask = self.tokens.padded(rows)
        second = torch.arange(source.shape[1]) >= torch.from_numpy(self.second_start[rows])[:, None]
        return {"source": source, "segment": (second & mask).long(), "source_mask": mask}


class TextDataset(Dataset):
    """The samples of a split as batches of token ids.

    Args:
        max_len: maximum number of tokens of a sample, special ones included.
        on_long: longer samples are an "error", are left out ("skip") or truncated ("cut"). Those left out are listed in
            `left_out`, and the `index` of a batch refers to the remaining samples, `split`; truncated ones are listed
            in `cut`.
        progress: called while the texts are tokenized.

    Raises:
        DataError: a sample is too long, with `on_long="error"`.
        ValueError: `on_long` is unknown, or `max_len` is too small.
    """

    unit, on_bad_sample, cached = "texts", "error", True

    def __init__(
        self, split: TextSplit, tokenizer: Tokenizer, max_len: int | None = None, on_long: str = "error",
        progress: StageProgress | None = None,
    ):
        plain = _tokenized(tokenizer, split.texts, progress)
        whole = np.sum([tokens.lengths for tokens in plain], axis=0) + 1 + len(plain)
        long = find_too_long(whole, max_len, split.names, on_long, "max_len")
        listed = [(split.names[i], reason) for i, reason in long.items()]
        self.left_out, self.cut = (listed, []) if on_long == "skip" else ([], listed)
        if long and on_long == "skip":
            rows = np.setdiff1d(np.arange(len(split)), list(long))
            split, plain = split.take(rows), [tokens.take(rows) for tokens in plain]
        self.inputs = TextInputs.of_tokens(plain, max_len if long else None)
        self.split, self.labels = split, torch.from_numpy(np.ascontiguousarray(split.labels))

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, index: int) -> Batch:
        """One sample of epoch 0 as a batch of one."""
        return self.__getitems__(np.array([(0, index)]))

    def __getitems__(self, keys: np.ndarray) -> Batch:
        """source (B,N), segment (B,N), source_mask (B,N), label (B,), index (B,), epoch (B,)"""
        keys = sample_keys(keys)
        epoch, index = torch.from_numpy(keys).unbind(1)
        return self.inputs.batch(keys[:, 1]) | {"label": self.labels[index], "index": index, "epoch": epoch}


def _tokenized(
    tokenizer: Tokenizer, columns: Sequence[Sequence[str]], progress: StageProgress | None
) -> list[Tokens]:
    """The tokens of one or two columns, without special ones; raises ValueError for others."""
    if len(columns) not in (1, 2) or len({len(column) for column in columns}) != 1:
        raise ValueError(f"expected one or two columns of texts of equal length, got {[len(c) for c in columns]}")
    return [tokenize(tokenizer, column, suffix=(), progress=progress) for column in columns]


def truncated_lengths(lengths: np.ndarray, max_sum: int) -> np.ndarray:
    """lengths (columns,N) of one or two texts → their truncated lengths, with a sum of at most `max_sum`.

    Raises:
        ValueError: `max_sum` is less than one token per text.
    """
    if max_sum < len(lengths):
        raise ValueError(f"max_len leaves {number_of(max_sum, 'token')} for {number_of(len(lengths), 'text')}, after "
                         "the special ones; raise it")
    if len(lengths) == 1:
        return np.minimum(lengths, max_sum)
    first = np.minimum(lengths[0], np.maximum(max_sum - lengths[1], (max_sum + 1) // 2))
    return np.stack([first, np.minimum(lengths[1], max_sum - first)])


def _join_columns(plain: list[Tokens], lengths: np.ndarray) -> Tokens:
    """The first `lengths` (columns,N) tokens of each text, joined with special tokens to one input per sample."""
    offsets = np.concatenate([[0], np.cumsum(lengths.sum(0) + 1 + len(plain), dtype=np.int64)])
    ids = np.full(offsets[-1], EOS, np.int32)
    ids[offsets[:-1]] = BOS
    start = offsets[:-1] + 1
    for tokens, length in zip(plain, lengths, strict=True):
        edges = np.zeros(len(ids), np.int8)
        edges[start] += 1
        edges[start + length] -= 1
        ids[np.cumsum(edges, dtype=np.int8).view(bool)] = tokens.first(np.arange(len(length)), length).ids
        start += length + 1
    return Tokens(ids, offsets)
