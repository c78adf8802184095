"""Masked language modelling with next-sentence prediction, as in BERT (arXiv 1810.04805), from counters."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from vit.counters import uniform
from vit.data.batching.batches import TrainBatches
from vit.data.images.dataset import Batch
from vit.data.sample_keys import sample_keys
from vit.data.text.corpus import CorpusSplit
from vit.data.text.dataset import truncated_lengths
from vit.data.text.token_ids import Tokens, tokenize
from vit.data.text.tokenizers import BOS, EOS, MASK, PAD, SPECIALS, Tokenizer
from vit.data.threads import StageProgress

IGNORE_INDEX = -100  # the target of tokens without a loss, torch's default ignore_index
_CHOICE, _REPLACEMENT, _RANDOM_TOKEN = (n << 20 for n in (1, 2, 3))  # first slots of three random numbers per token


class MaskedDataset(Dataset):
    """Pairs [bos] a [eos] b [eos] of a corpus: b is the next sentence after a or, in half of the pairs, a random one
    of all other sentences, a included.

    A `share` of the tokens that are neither special nor unknown is selected, at least one per pair if there is one;
    80 % of these are replaced by mask, 10 % by a random token, 10 % are unchanged. All is a function of (seed, epoch,
    index), so that evaluation, always epoch 0, masks the same tokens every time. Longer pairs are cut to `max_len`
    tokens; `cut` is the number of sentences that exceed it alone.

    Unlike in BERT's code a and b are single sentences, not spans that fill `max_len`, random ones may be of the same
    document, random tokens are never special ones, and special tokens do not count for the `share`.

    Raises:
        ValueError: `share` or `max_len` is out of range.
    """

    unit, on_bad_sample, cached = "sentence pairs", "error", True

    def __init__(
        self, split: CorpusSplit, tokenizer: Tokenizer, max_len: int = 128, share: float = 0.15, seed: int = 0,
        progress: StageProgress | None = None,
    ):
        if not 0 < share < 1:
            raise ValueError(f"share={share} must be above 0 and below 1")
        if max_len < 5:
            raise ValueError(f"max_len={max_len} must be at least 5: three special tokens and two of text")
        self.split, self.max_len, self.share, self.seed = split, max_len, share, seed
        self.vocab_size = tokenizer.vocab_size
        self.tokens: Tokens = tokenize(tokenizer, split.texts, suffix=(), progress=progress)
        self._known = np.concatenate([[0], np.cumsum(self.tokens.ids >= len(SPECIALS))])  # before each id; not unknown
        self.first_sentences = split.followed_sentences()
        self.cut = int((self.tokens.lengths > max_len - 3).sum())

    def __len__(self) -> int:
        return len(self.first_sentences)

    def __getitem__(self, index: int) -> Batch:
        """One pair of epoch 0 as a batch of one."""
        return self.__getitems__(np.array([(0, index)]))

    def __getitems__(self, keys: np.ndarray) -> Batch:
        """source (B,N), segment (B,N), source_mask (B,N), masked (B,N): the original id of selected tokens, otherwise
        -100; next (B,): 0 if b follows a, otherwise 1, as in BERT; index (B,), epoch (B,)
        """
        epoch, index = torch.from_numpy(sample_keys(keys)).unbind(1)
        first, second, random = self._sentences(epoch, index)
        lengths = self._fitted(first, second)  # (2,B)
        whole, segment = self._joined(first, second, lengths)
        mask = whole != PAD
        chosen = self._selected(whole, epoch, index, self._counts(first, second, lengths))
        masked = torch.where(chosen, whole, IGNORE_INDEX)
        source = torch.where(chosen, self._replaced(whole, epoch, index), whole)
        batch = {"source": source, "segment": segment, "source_mask": mask, "masked": masked}
        return batch | {"next": torch.from_numpy(random).long(), "index": index, "epoch": epoch}

    def masked_count(self, keys: np.ndarray) -> int:
        """Number of selected tokens in the pairs of these keys, without building the batch."""
        epoch, index = torch.from_numpy(sample_keys(keys)).unbind(1)
        first, second, _ = self._sentences(epoch, index)
        return int(self._counts(first, second, self._fitted(first, second)).sum())

    def _sentences(self, epoch: Tensor, index: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(B,) each: sentence a, sentence b, whether b is a random sentence."""
        first = self.first_sentences[index.numpy()]
        coin, choice = uniform(self.seed, epoch, index, torch.arange(2)[:, None]).numpy().astype(np.float64)
        others = len(self.split) - 1  # all but the next sentence
        drawn = np.minimum((choice * others).astype(np.int64), others - 1)
        drawn += drawn >= first + 1
        random = coin < 0.5
        return first, np.where(random, drawn, first + 1), random

    def _fitted(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        lengths = np.stack([self.tokens.lengths_of(first), self.tokens.lengths_of(second)])
        return truncated_lengths(lengths, self.max_len - 3)

    def _counts(self, first: np.ndarray, second: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Both sentences (B,) and their lengths (2,B) → (B,) number of selected tokens."""
        starts = self.tokens.offsets[np.stack([first, second])]
        total = (self._known[starts + lengths] - self._known[starts]).sum(0)  # unknown tokens cannot be selected
        return np.minimum(np.maximum(np.rint(total * self.share), 1), total).astype(np.int64)

    def _joined(self, first: np.ndarray, second: np.ndarray, lengths: np.ndarray) -> tuple[Tensor, Tensor]:
        ids = np.full((len(first), int(lengths.sum(0).max()) + 3), PAD, dtype=np.int64)
        segment = np.zeros_like(ids)
        for row, (a, b, left, right) in enumerate(zip(first, second, *lengths, strict=True)):
            ids[row, : left + right + 3] = [BOS, *self.tokens[a][:left], EOS, *self.tokens[b][:right], EOS]
            segment[row, left + 2 : left + right + 3] = 1
        return torch.from_numpy(ids), torch.from_numpy(segment)

    def _selected(self, ids: Tensor, epoch: Tensor, index: Tensor, counts: np.ndarray) -> Tensor:
        """bool (B,N): the `counts` tokens of each row with the smallest random numbers, without special tokens."""
        draws = self._numbers(ids, epoch, index, _CHOICE)
        draws = draws.masked_fill(ids < len(SPECIALS), 2.0)
        rank = draws.argsort(dim=1, stable=True).argsort(dim=1, stable=True)
        return rank < torch.from_numpy(counts)[:, None]

    def _replaced(self, ids: Tensor, epoch: Tensor, index: Tensor) -> Tensor:
        """(B,N) replacements of selected tokens: 80 % mask, 10 % a random token, 10 % the token itself."""
        kind = self._numbers(ids, epoch, index, _REPLACEMENT)
        drawn = self._numbers(ids, epoch, index, _RANDOM_TOKEN) * (self.vocab_size - len(SPECIALS))
        return torch.where(kind < 0.8, MASK, torch.where(kind < 0.9, drawn.long() + len(SPECIALS), ids))

    def _numbers(self, ids: Tensor, epoch: Tensor, index: Tensor, slot: int) -> Tensor:
        return uniform(self.seed, epoch[:, None], index[:, None], torch.arange(slot, slot + ids.shape[1]))


class MaskedTrainBatches(TrainBatches):
    """TrainBatches with `tokens`, the number of selected tokens of the optimizer step over all ranks and micro-batches.
    """

    def batches_of(self, epoch: int, start: int) -> Iterator[Batch]:
        steps = np.split(self.order(epoch), self.ends()[1:])
        for b, batch in enumerate(super().batches_of(epoch, start), start):
            count = self.dataset.masked_count(steps[b // self.accumulate])
            yield batch | {"tokens": torch.tensor(max(count, 1))}  # a divisor
