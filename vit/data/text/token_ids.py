"""Tokenized texts in two flat arrays, which worker processes share, and batches padded to the longest text."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from vit.data.errors import DataError
from vit.data.text.tokenizers import BOS, EOS, PAD, Tokenizer
from vit.data.threads import StageProgress
from vit.messages import check_choice, check_several, number_of

ON_LONG = ("error", "skip", "cut")
_CHUNK = 10_000  # texts that are tokenized at once
_STAGE = "tokenization"


@dataclass(frozen=True)
class Tokens:
    """The ids of row i are ids[offsets[i] : offsets[i + 1]]; ids int32, offsets (N+1,) int64."""

    ids: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> np.ndarray:
        return self.ids[self.offsets[i] : self.offsets[i + 1]]

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    def lengths_of(self, rows: np.ndarray) -> np.ndarray:
        """rows (B,) → their numbers of ids (B,), without reading the other rows."""
        return self.offsets[rows + 1] - self.offsets[rows]

    def take(self, rows: np.ndarray) -> "Tokens":
        """The ids of `rows`, in that order."""
        return self.first(rows, self.lengths_of(rows))

    def cut(self, max_len: int) -> "Tokens":
        """The rows with at most `max_len` ids, of which the last one remains: eos."""
        short = self.first(np.arange(len(self)), np.minimum(self.lengths, max_len))
        short.ids[short.offsets[1:] - 1] = self.ids[self.offsets[1:] - 1]
        return short

    def first(self, rows: np.ndarray, lengths: np.ndarray) -> "Tokens":
        """The first `lengths` (B,) ids of each of the rows (B,)."""
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        ids = np.empty(offsets[-1], self.ids.dtype)
        for start in range(0, len(rows), _CHUNK):  # the indices take several times the memory of the ids
            part = slice(start, start + _CHUNK)
            shift = np.repeat(self.offsets[rows[part]] - offsets[:-1][part], lengths[part])
            target = np.arange(offsets[start], offsets[start] + len(shift))
            ids[target] = self.ids[target + shift]
        return Tokens(ids, offsets)

    def padded(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """rows (B,) → ids (B,N) int64 with padding, and mask (B,N), False at padding."""
        lengths = self.lengths_of(rows)
        position = np.arange(lengths.max(initial=0))
        mask = position < lengths[:, None]
        ids = np.full(mask.shape, PAD, dtype=np.int64)
        ids[mask] = self.ids[(self.offsets[rows][:, None] + position)[mask]]
        return torch.from_numpy(ids), torch.from_numpy(mask)


def tokenize(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    prefix: Sequence[int] = (),
    suffix: Sequence[int] = (EOS,),
    max_len: int | None = None,
    progress: StageProgress | None = None,
) -> Tokens:
    """The ids of all texts between `prefix` and `suffix`; texts are cut so that each row has at most `max_len` ids."""
    check_several("texts", texts)
    parts, lengths = [np.zeros(0, np.int32)], [0]
    for start in range(0, len(texts), _CHUNK):
        end = min(start + _CHUNK, len(texts))
        encoded = tokenizer.encode_batch([texts[i] for i in range(start, end)])
        if max_len is not None:
            encoded = [ids[: max(0, max_len - len(prefix) - len(suffix))] for ids in encoded]
        parts.append(np.fromiter(chain.from_iterable(chain(prefix, ids, suffix) for ids in encoded), np.int32))
        lengths += [len(prefix) + len(ids) + len(suffix) for ids in encoded]
        if progress:
            progress(_STAGE, end, len(texts))
    return Tokens(np.concatenate(parts), np.cumsum(lengths, dtype=np.int64))


def source_tokens(
    tokenizer: Tokenizer, texts: Sequence[str], max_len: int | None = None, progress: StageProgress | None = None
) -> Tokens:
    """Encoder inputs: the text and eos, so that empty texts have a token; `max_len` includes eos."""
    return tokenize(tokenizer, texts, max_len=max_len, progress=progress)


def target_tokens(
    tokenizer: Tokenizer, texts: Sequence[str], max_len: int | None = None, progress: StageProgress | None = None
) -> Tokens:
    """Decoder targets: bos, the text and eos; `max_len` counts the tokens to predict, the text and eos."""
    return tokenize(tokenizer, texts, (BOS,), max_len=None if max_len is None else max_len + 1, progress=progress)


def find_too_long(
    lengths: np.ndarray, max_len: int | None, names: Sequence[str], on_long: str, key: str
) -> dict[int, str]:
    """Row → reason of every row longer than `max_len`, the value of the option `data.{key}`.

    Raises:
        DataError: there are such rows, with `on_long="error"`, or all rows are too long, with "skip".
        ValueError: `on_long` is unknown, or `max_len` is below 2.
    """
    check_choice("on_long", on_long, ON_LONG)
    if max_len is None:
        return {}
    if max_len < 2:
        raise ValueError(f"data.{key}={max_len} must be at least 2, because eos counts as a token")
    long = np.flatnonzero(lengths > max_len).tolist()
    if long and on_long == "error":
        raise DataError(
            f"{names[long[0]]}: {number_of(lengths[long[0]], 'token')} are more than data.{key}={max_len}; {len(long)} "
            f"of {number_of(len(lengths), 'text')} are longer (up to {lengths.max()}): raise data.{key}, or set "
            "data.on_long=skip or data.on_long=cut"
        )
    if on_long == "skip" and 0 < len(long) == len(lengths):
        raise DataError(f"{names[0]}: all {number_of(len(lengths), 'text')} have more than "
                        f"data.{key}={max_len} tokens, at least {lengths.min()}: raise data.{key}, or set "
                        "data.on_long=cut")
    return {i: f"{number_of(lengths[i], 'token')} are more than data.{key}={max_len}" for i in long}
