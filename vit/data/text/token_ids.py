"""Many texts as ids in two flat arrays, which worker processes share, and batches of them padded to the longest."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from vit.data.errors import DataError
from vit.data.text.tokenizers import BOS, EOS, PAD, Tokenizer

ON_LONG = ("error", "skip", "cut")
_CHUNK = 10_000  # lines that are tokenized at once


@dataclass(frozen=True)
class Tokens:
    """Row i is ids[offsets[i] : offsets[i + 1]]; ids (all,) int32, offsets (N+1,) int64."""

    ids: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> np.ndarray:
        return self.ids[self.offsets[i] : self.offsets[i + 1]]

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    def padded(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """rows (B,) → ids (B,N) int64 padded with pad, and mask (B,N), True at tokens that are not padding."""
        lengths = self.offsets[rows + 1] - self.offsets[rows]
        position = np.arange(lengths.max(initial=0))
        mask = position < lengths[:, None]
        ids = np.full(mask.shape, PAD, dtype=np.int64)
        ids[mask] = self.ids[(self.offsets[rows][:, None] + position)[mask]]
        return torch.from_numpy(ids), torch.from_numpy(mask)


def tokenized(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    before: Sequence[int] = (),
    after: Sequence[int] = (EOS,),
    most: int | None = None,
) -> Tokens:
    """All texts as ids between the given special tokens; rows are cut to `most` ids, `after` included."""
    parts, lengths = [np.zeros(0, np.int32)], [0]
    for start in range(0, len(texts), _CHUNK):
        found = tokenizer.encode_batch([texts[i] for i in range(start, min(start + _CHUNK, len(texts)))])
        if most is not None:
            found = [ids[: max(0, most - len(before) - len(after))] for ids in found]
        parts.append(np.fromiter(chain.from_iterable(chain(before, ids, after) for ids in found), np.int32))
        lengths += [len(before) + len(ids) + len(after) for ids in found]
    return Tokens(np.concatenate(parts), np.cumsum(lengths, dtype=np.int64))


def source_tokens(tokenizer: Tokenizer, texts: Sequence[str], max_len: int | None = None) -> Tokens:
    """Encoder input: a text, then eos, so that an empty text is a token too. `max_len` counts the eos."""
    return tokenized(tokenizer, texts, after=(EOS,), most=max_len)


def target_tokens(tokenizer: Tokenizer, texts: Sequence[str], max_len: int | None = None) -> Tokens:
    """Decoder target: bos, the text, eos. `max_len` counts the tokens to predict: the text and eos."""
    return tokenized(tokenizer, texts, before=(BOS,), after=(EOS,), most=None if max_len is None else max_len + 1)


def too_long(lengths: np.ndarray, most: int | None, names: Sequence[str], on_long: str, key: str) -> dict[int, str]:
    """Row → reason of every row longer than `most`; with on_long=error these are an error."""
    if on_long not in ON_LONG:
        raise ValueError(f"on_long={on_long!r} is not one of {', '.join(ON_LONG)}")
    if most is None:
        return {}
    if most < 2:
        raise ValueError(f"{key}={most} must be 2 or more: the end of a text is a token too")
    long = np.flatnonzero(lengths > most).tolist()
    if long and on_long == "error":
        raise DataError(
            f"{names[long[0]]}: {lengths[long[0]]} tokens are more than {key}={most}; {len(long)} of {len(lengths)} "
            f"texts are longer (up to {lengths.max()}): raise {key}, or take on_long=skip or on_long=cut"
        )
    return {i: f"{lengths[i]} tokens are more than {key}={most}" for i in long}
