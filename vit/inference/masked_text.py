"""Prediction of masked words by a pre-trained masked language model (BERT, arXiv 1810.04805)."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from vit.bundle import Bundle
from vit.data.formats.lines import BadText
from vit.data.text.token_ids import Tokens
from vit.data.text.tokenizers import BOS, EOS, MASK, SPECIALS
from vit.inference.image_inputs import check_batch_size
from vit.inference.images import autocast, best_device, check_precision, clamp_top_k
from vit.inference.text_inputs import named_texts, raise_first_error, text_of, warn_about_unknown
from vit.messages import agree, number_of

MASKS = ("[MASK]", SPECIALS[MASK])  # how a text names the mask token
PATTERN = re.compile("|".join(map(re.escape, MASKS)))
CONTINUES = "##"  # prefix of a token that continues the previous word, as in BERT's vocabulary


@dataclass(frozen=True)
class MaskedWord:
    """The most probable words of one mask of a text, most probable first.

    Args:
        source: the text with its masks.
        mask: number of the mask in the text, from 1.
        names: words; one that starts with ## continues the word before the mask.
        next: probability that the second text of a pair follows the first one; None for a single text.
    """

    source: str
    mask: int
    names: tuple[str, ...]
    probabilities: tuple[float, ...]
    next: float | None = None

    @property
    def word(self) -> str:
        return self.names[0]

    @property
    def probability(self) -> float:
        return self.probabilities[0]


@dataclass(frozen=True)
class FilledText:
    """A text with a `MaskedWord` for each mask, and `text`, in which each mask is its most probable word."""

    source: str
    masks: tuple[MaskedWord, ...]
    text: str


@dataclass(frozen=True)
class MaskedInput:
    """A tokenized text or pair.

    Args:
        ids: token ids, including special tokens.
        second: index of the first token of the second text; the number of ids for a single text.
    """

    source: str
    ids: list[int]
    second: int

    @property
    def positions(self) -> list[int]:
        """Indices of the masks."""
        return [i for i, token in enumerate(self.ids) if token == MASK]


class MaskedTextPredictor:
    """A masked language model with its tokenizer: `predictor.predict("ann has [MASK] coins")`."""

    def __init__(self, bundle: Bundle, device: str | torch.device | None = None, precision: str = "32-true") -> None:
        check_precision(precision)
        self.bundle, self.precision = bundle, precision
        self.device = best_device(device)
        self.model = bundle.model.eval().to(self.device)
        self.tokenizer = bundle.tokenizer("source")

    def predict(self, texts: Iterable[str], top_k: int = 5, batch_size: int = 64) -> list[FilledText]:
        """The words of each mask, [MASK] or <mask>, of texts or pairs separated by a tab, in order.

        Each mask is one token of the tokenizer: a word, a part of one, or a character.

        Raises:
            BadText: a text has no mask, or is longer than the model's limit; the message has its name.
            TypeError: an item is not a text.
            ValueError: `top_k` or `batch_size` is below 1.
        """
        return raise_first_error(self.stream(texts, top_k, batch_size))

    def stream(self, texts: Iterable[str], top_k: int = 5, batch_size: int = 64) -> Iterator[FilledText | BadText]:
        """One item per text, in order: its words, or the BadText that names the reason why there are none.

        Raises:
            TypeError: an item is not a text.
            ValueError: as `predict`.
        """
        check_batch_size(batch_size)
        top_k = clamp_top_k(top_k, self.tokenizer.vocab_size - len(SPECIALS))
        named, done, unknown = iter(named_texts(texts)), 0, []
        while batch := list(islice(named, batch_size)):
            inputs = [self._encode_or_error(item, name) for name, item in batch]
            valid = [each for each in inputs if isinstance(each, MaskedInput)]
            filled = iter(self._fill(valid, top_k) if valid else ())
            done += len(batch)
            unknown += [(name, found) for (name, _), each in zip(batch, inputs, strict=True)
                        if isinstance(each, MaskedInput) and (found := self._lacking(each.source))]
            yield from (next(filled) if isinstance(each, MaskedInput) else each for each in inputs)
        warn_about_unknown(unknown, done)

    def encode(self, text: str, name: str = "the text") -> MaskedInput:
        """A text, or two separated by a tab, with any number of masks.

        Raises:
            BadText: the text is empty, has more than one tab, or is longer than the model's limit.
        """
        parts = text.split("\t")
        if len(parts) > 2 or not all(part.strip() for part in parts):
            empty = sum(not part.strip() for part in parts)
            raise BadText(name, f"has {number_of(len(parts), 'text')}, of which {empty} {agree(empty, 'is', 'are')} "
                                "empty; pass one text, or two separated by a tab")
        ids, second = [BOS], 0
        for part in parts:
            second = len(ids)
            ids += [*self._ids(part), EOS]
        limit = self.model.config.max_len
        if len(ids) > limit:
            raise BadText(name, f"has {number_of(len(ids), 'token')}, but the model reads at most {limit}; shorten it")
        return MaskedInput(text, ids, second if len(parts) == 2 else len(ids))

    def batch(self, inputs: list[MaskedInput]) -> tuple[Tensor, Tensor, Tensor]:
        """B texts -> source, mask, segment (B,N) on the device"""
        lengths = [len(each.ids) for each in inputs]
        ids = np.concatenate([each.ids for each in inputs])
        source, mask = Tokens(ids, np.cumsum([0, *lengths])).padded(np.arange(len(inputs)))
        starts = torch.tensor([[each.second] for each in inputs])
        segment = ((torch.arange(source.shape[1]) >= starts) & mask).long()
        return source.to(self.device), mask.to(self.device), segment.to(self.device)

    def _ids(self, text: str) -> list[int]:
        """The ids of a text with masks. If tokens contain the space before a word, so does the token of a mask."""
        ids, pieces = [], PATTERN.split(text)
        for number, piece in enumerate(pieces):
            if number:
                ids.append(MASK)
            space_in_mask = number < len(pieces) - 1 and self._tokens_have_spaces
            ids += self.tokenizer.encode(piece.removesuffix(" ") if space_in_mask else piece)
        return ids

    def _lacking(self, text: str) -> str:
        """The first character that the tokenizer lacks, outside of masks and of the tab of a pair; empty if none."""
        return self.tokenizer.lacking(PATTERN.sub("", text).replace("\t", ""))

    @property
    def _tokens_have_spaces(self) -> bool:
        """Whether the token of a word contains the space before the word."""
        return self.tokenizer.kind == "bpe"

    def _encode_or_error(self, item: object, name: str) -> MaskedInput | BadText:
        """The tokens of an item with at least one mask, or the error."""
        try:
            encoded = self.encode(text_of(item, name), name)
        except BadText as error:
            return error
        if not encoded.positions:
            return BadText(name, f"has no mask; write {MASKS[0]} for each word to predict")
        return encoded

    @torch.inference_mode()
    def _fill(self, inputs: list[MaskedInput], top_k: int) -> list[FilledText]:
        """Predict the `top_k` best words of all masks of a batch."""
        source, mask, segment = self.batch(inputs)
        positions = (source == MASK).flatten().nonzero()[:, 0]  # (M,)
        with autocast(self.device, self.precision):
            tokens, pairs = self.model(source, mask, segment, positions)
        probabilities = tokens.float().softmax(-1)
        probabilities[:, : len(SPECIALS)] = 0.0  # never a target in training
        probabilities[:, self.tokenizer.vocab_size :] = 0.0
        best = probabilities.topk(top_k)
        rows = iter(zip(best.values.tolist(), best.indices.tolist(), strict=True))
        follows = pairs.float().softmax(-1)[:, 0].tolist()
        return [self._filled_text(each, [next(rows) for _ in each.positions], probability)
                for each, probability in zip(inputs, follows, strict=True)]

    def _filled_text(
        self, encoded: MaskedInput, rows: list[tuple[list[float], list[int]]], follows: float
    ) -> FilledText:
        """The text with the best word of each mask.

        Args:
            rows: probabilities and ids of the best tokens of each mask.
            follows: probability that the second text follows the first one.
        """
        pieces, masks, text = PATTERN.split(encoded.source), [], ""
        next_text = follows if encoded.second < len(encoded.ids) else None
        for number, (values, ids) in enumerate(rows, 1):
            before, tokens = text + pieces[number - 1], self.tokenizer.tokens(ids)
            names = tuple(self._name(token, before) for token in tokens)
            masks.append(MaskedWord(encoded.source, number, names, tuple(values), next_text))
            text = (before.removesuffix(" ") if self._tokens_have_spaces else before) + tokens[0]
        return FilledText(encoded.source, tuple(masks), text + pieces[-1])

    def _name(self, token: str, before: str) -> str:
        """A token for display after the text `before`."""
        if not self._tokens_have_spaces or not before.strip() or before.endswith("\t"):
            return token
        return token.strip() if token.startswith(" ") or not token.isalnum() else CONTINUES + token
