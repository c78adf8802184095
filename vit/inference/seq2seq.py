"""Text generation with a saved sequence-to-sequence model: translation of texts and image-to-text.

Tokenization, preprocessing and decoding are the same as in the evaluation during training.
"""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, zip_longest

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.bundle import Bundle
from vit.data import BadImage
from vit.data.errors import printable
from vit.data.formats.lines import BadText, Line
from vit.data.text.tokenizers import BOS, EOS, PAD
from vit.generation import Generation, Hypothesis, SearchTree, Utf8, generate, score_targets
from vit.generation.generate import max_tokens
from vit.inference.fast_generation import FastGeneration
from vit.inference.generated_text import GeneratedText, RecordedSearch, ScoredText, cut_texts_message
from vit.inference.image_inputs import Images, check_batch_size, named_images
from vit.inference.images import autocast, best_device, check_precision
from vit.inference.seq2seq_ensemble import check_ensemble
from vit.inference.text_inputs import BadInput, named_texts, raise_first_error, text_of, warn_about_unknown
from vit.messages import ArgumentError, agree, number_of

WINDOW = 16  # batches whose sources are sorted by length together


class Seq2SeqPredictor:
    """A sequence-to-sequence model with its tokenizers: `predictor.predict(["A dog runs."])`.

    Args:
        others: bundles with the same tokenizers and preprocessing; token probabilities are averaged over all models (an
            ensemble). The length of a source is limited by the model with the lowest limit.
        fast: use the compiled decoding step if the first batch is faster with it and has the same texts. `fast_mode` is
            the choice with its measurements; None without `fast`.

    Raises:
        ValueError: one of `others` does not generate text, or has another tokenizer or preprocessing; `fast` with
            another precision than the default.
    """

    def __init__(
        self,
        bundle: Bundle,
        device: str | torch.device | None = None,
        precision: str = "32-true",
        others: Sequence[Bundle] = (),
        fast: bool = False,
    ) -> None:
        if fast and precision != "32-true":
            raise ArgumentError(f"fast=True generates texts in float32; leave out fast=True or precision={precision}")
        check_precision(precision)
        self.bundle, self.precision = bundle, precision
        self.device = best_device(device)
        for other in others:
            check_ensemble(bundle, other)
        self.bundles = (bundle, *others)
        self.models = [each.model.eval().to(self.device) for each in self.bundles]
        self.model = self.models[0]
        self.fast_mode = FastGeneration(self.models) if fast else None
        self.preprocessing = bundle.preprocessing
        if others and self.is_image_to_text:
            narrowest = min(each.preprocessing.max_width for each in self.bundles)
            self.preprocessing = self.preprocessing.replace(max_width=narrowest)
        self.truncate = bundle.extra.get("cuts", False)  # texts over the limit: truncate as in training, or reject
        self.strip = bundle.extra.get("strip", False)  # white space around texts; older bundles do not record it
        self.max_source_len = min(each.extra.get("max_source_len", each.model.config.max_len)
                                  for each in self.bundles)  # tokens
        self.tokenizer = bundle.tokenizer("target")
        self.utf8 = Utf8(self.tokenizer.pieces, EOS)
        self.settings = Generation.from_dict({"beam": 5, "max_len": self.model.config.max_len,
                                              **bundle.extra.get("generation", {})})

    @property
    def is_image_to_text(self) -> bool:
        """Whether the source is an image; otherwise it is a text."""
        return self.model.config.source == "image"

    def predict(
        self, sources: Iterable[str] | Images, settings: Generation | None = None, batch_size: int = 32
    ) -> list[GeneratedText]:
        """Generate a text for each text, or for each image (all that `Predictor.predict` accepts), in order.

        Raises:
            BadText, BadImage: a source cannot be read; the message has its name and the reason.
            TypeError: a source is neither a text nor an image.
            ValueError: `batch_size` is below 1.
        """
        return raise_first_error(self.stream(sources, settings, batch_size))

    def stream(
        self, sources: Iterable[str] | Images, settings: Generation | None = None, batch_size: int = 32
    ) -> Iterator[GeneratedText | BadInput]:
        """One item per source, in order: the generated text, or the error that names the reason why there is none.

        Items are returned after each window of batches, in which sources are sorted by length. An empty line yields an
        empty text, so that outputs stay aligned with the lines of a file.

        Raises:
            TypeError: a source is neither a text nor an image.
            ValueError: `batch_size` is below 1.
        """
        check_batch_size(batch_size)
        named = self._named(sources)
        size, done, truncated, squeezed = WINDOW * batch_size if batch_size > 1 else 1, 0, [], []
        unknown: list[tuple[str, str]] = []
        cut: list[str] = []
        while window := list(islice(named, size)):
            items = [self._encode_or_error(name, source, truncated, squeezed) for name, source in window]
            unknown += self._unknown(window, items)
            encoded = {row: item for row, item in enumerate(items) if isinstance(item, Tensor)}
            for rows, source, mask in self.batches_by_length(encoded, batch_size):
                generated = self.generate(source, mask, settings, [done + row for row in rows])
                for row, hypotheses in zip(rows, generated, strict=True):
                    name, item = window[row]
                    label = text_of(item, name) if isinstance(item, str | Line) else name
                    items[row] = self.decode(label, hypotheses)
            cut += [name for (name, _), item in zip(window, items, strict=True)
                    if isinstance(item, GeneratedText) and item.is_cut]
            yield from items
            done += len(window)
        self._warn_about_size(truncated, squeezed, done)
        if cut:
            warnings.warn(cut_texts_message(cut, done, self.longest_text(settings)), stacklevel=2)
        warn_about_unknown(unknown, done)

    def score(
        self, sources: Iterable[str] | Images, references: Iterable[str], settings: Generation | None = None,
        batch_size: int = 32,
    ) -> list[ScoredText]:
        """The probability of a given text for each source (forced decoding), in order.

        The scores are those that a search would have given, without the score of CTC.

        Raises:
            BadText, BadImage: a source or a reference cannot be read or is too long; the message has its name.
            TypeError: a source is neither a text nor an image, or a reference is no text.
            ValueError: the numbers of sources and references differ, or `batch_size` is below 1.
        """
        return raise_first_error(self.stream_scores(sources, references, settings, batch_size))

    def stream_scores(
        self, sources: Iterable[str] | Images, references: Iterable[str], settings: Generation | None = None,
        batch_size: int = 32,
    ) -> Iterator[ScoredText | BadInput]:
        """One item per source, in order: the scored reference, or the error that names the reason why there is none.

        Raises:
            TypeError, ValueError: as `score`.
        """
        check_batch_size(batch_size)
        settings = settings or self.settings
        pairs = zip_longest(self._named(sources), named_texts(references), fillvalue=None)
        done, truncated, squeezed, unknown = 0, [], [], []
        while window := list(islice(pairs, WINDOW * batch_size)):
            if None in window[-1]:
                raise_unequal(window, done)
            named, texts = [source for source, _ in window], [reference for _, (_, reference) in window]
            items = [self._encode_or_error(name, source, truncated, squeezed) for name, source in named]
            unknown += self._unknown(named, items)
            targets = self._targets(named, texts, items, done, unknown)
            encoded = {row: item for row, item in enumerate(items) if isinstance(item, Tensor)}
            for rows, source, mask in self.batches_by_length(encoded, batch_size):
                target = torch.nn.utils.rnn.pad_sequence([targets[row] for row in rows], True, PAD).to(self.device)
                with autocast(self.device, self.precision):
                    log_probs = score_targets(self.models, source, mask, target, PAD, settings.tta)  # (B,T-1)
                for row, values in zip(rows, log_probs.tolist(), strict=True):
                    items[row] = self._scored(named[row], texts[row], targets[row], values, settings)
            yield from items
            done += len(window)
        self._warn_about_size(truncated, squeezed, done)
        warn_about_unknown(unknown, done)

    def _targets(
        self, named: list[tuple[str, object]], texts: list[str | Line], items: list, done: int,
        unknown: list[tuple[str, str]],
    ) -> dict[int, Tensor]:
        """row -> ids (T,) of its reference. An item whose source is empty, or whose reference is not scored, becomes
        the error. `done`: number of earlier references; `unknown` as for `_target`.
        """
        targets = {}
        for row, ((name, _), text) in enumerate(zip(named, texts, strict=True)):
            label = text.name if isinstance(text, Line) else f"reference {done + row + 1}"
            try:
                if isinstance(items[row], GeneratedText):
                    raise BadText(name, "is empty, so that no text can be scored for it")
                targets[row] = self._target(text_of(text, label), label, unknown)
            except BadText as error:
                items[row] = items[row] if isinstance(items[row], BadInput) else error
        return targets

    def _scored(
        self, named: tuple[str, object], text: str | Line, target: Tensor, log_probs: list[float], settings: Generation
    ) -> ScoredText:
        """The scored reference of a source: ids (T,) with BOS and EOS, and log-probabilities of at least T-1 tokens."""
        name, source = named
        ids = target[1:].tolist()
        log_probs = log_probs[: len(ids)]
        return ScoredText(name if self.is_image_to_text else text_of(source, name), text_of(text, name),
                          settings.score(sum(log_probs), len(ids)), tuple(self.tokenizer.tokens(ids)), tuple(log_probs))

    def _target(self, text: str, name: str, unknown: list[tuple[str, str]]) -> Tensor:
        """The ids (T,) of a reference from BOS to EOS. `unknown` is extended by (name, character) if the tokenizer
        lacks one.

        Raises:
            BadText: the model cannot generate a text of this length.
        """
        text = text.strip() if self.strip else text
        ids, longest = self.tokenizer.encode(text), max_tokens(self.models, 1, self.model.config.max_len)
        if len(ids) + 1 > longest:
            raise BadText(name, f"has {number_of(len(ids) + 1, 'token')}, but the model generates at most {longest}; "
                                f"shorten it: {printable(text[:60])}…")
        if lacking := self.tokenizer.lacking(text):
            unknown.append((name, lacking))
        return torch.tensor([BOS, *ids, EOS])

    def _named(self, sources: Iterable[str] | Images) -> Iterator[tuple[str, object]]:
        """(name, source) of each source."""
        return iter(named_images(sources) if self.is_image_to_text else named_texts(sources))

    def _warn_about_size(self, truncated: Sequence[str], squeezed: Sequence[str], done: int) -> None:
        """Warns about the texts that were truncated and the images that were squeezed, out of `done` sources."""
        if truncated:
            warnings.warn(f"{len(truncated)} of {number_of(done, 'text')} {agree(len(truncated), 'is', 'are')} longer "
                          f"than the model's limit of {self.max_source_len} tokens and "
                          f"{agree(len(truncated), 'was', 'were')} truncated, such as {truncated[0]}", stacklevel=3)
        if squeezed:
            warnings.warn(f"{len(squeezed)} of {number_of(done, 'image')} {agree(len(squeezed), 'is', 'are')} wider "
                          f"than the model's limit of {self.preprocessing.max_width} pixels and "
                          f"{agree(len(squeezed), 'was', 'were')} squeezed, such as {squeezed[0]}",
                          stacklevel=3)

    def _unknown(self, window: Sequence[tuple[str, object]], items: Sequence[object]) -> list[tuple[str, str]]:
        """(name, character) of each text that was encoded with the unknown token."""
        if self.is_image_to_text:
            return []
        lacking = self.bundle.tokenizer("source").lacking
        encoded = [(name, text_of(source, name)) for (name, source), item in zip(window, items, strict=True)
                   if isinstance(item, Tensor)]
        return [(name, found) for name, text in encoded if (found := lacking(text.strip() if self.strip else text))]

    def _encode_or_error(
        self, name: str, item: object, truncated: list[str], squeezed: list[str]
    ) -> Tensor | GeneratedText | BadInput:
        """The encoded source; an empty text for an empty line; the error of a source that cannot be read.

        `truncated` and `squeezed` are extended by the names of texts that are truncated and images that are squeezed.
        """
        try:
            source = item if self.is_image_to_text else text_of(item, name)
            if is_empty(source):
                return GeneratedText(source, ("",), (0.0,), (True,))
            encoded = self.encode(source, name, truncated)
            if self.is_image_to_text and encoded.shape[2] == self.preprocessing.max_width:
                reason = self.preprocessing.squeezed(*self.preprocessing.pixels.decode(item, name).size)
                squeezed += [f"{name}: {reason}"] if reason else []
            return encoded
        except (BadImage, BadText) as error:
            return error

    def encode(self, item: object, name: str, truncated: list[str] | None = None) -> Tensor:
        """One source as token ids (S,) or pixels (C,H,W).

        `truncated` is extended by the name of a text that is truncated to `max_source_len` tokens.

        Raises:
            BadImage: the image cannot be read.
            BadText: the text is longer than `max_source_len` tokens, and `truncate` is off.
        """
        if self.is_image_to_text:
            return self.preprocessing.image(item, name)
        text = item.strip() if self.strip else item
        ids = [*self.bundle.tokenizer("source").encode(text), EOS]
        if len(ids) <= self.max_source_len:
            return torch.tensor(ids)
        if not self.truncate:
            raise BadText(name, f"has {number_of(len(ids), 'token')}, but the model reads at most "
                                f"{self.max_source_len}; split it up: {printable(text[:60])}…")
        if truncated is not None:
            truncated.append(name)
        return torch.tensor([*ids[: self.max_source_len - 1], EOS])

    def batches_by_length(
        self, sources: Mapping[int, Tensor], batch_size: int
    ) -> Iterator[tuple[list[int], Tensor, Tensor]]:
        """Batches of encoded sources of similar length: their rows, which are the keys of `sources`, source (B,S) or
        (B,C,H,W), mask (B,S).
        """
        order = sorted(sources, key=lambda row: sources[row].shape[-1])
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            source, mask = self.collate([sources[row] for row in rows])
            yield rows, source.to(self.device), mask.to(self.device)

    def collate(self, sources: list[Tensor]) -> tuple[Tensor, Tensor]:
        """B encoded sources -> padded ids (B,S) or normalized images (B,C,H,W), and the mask (B,S)."""
        if self.is_image_to_text:
            images, mask = self.preprocessing.batch(sources)
            return self.preprocessing.normalize(images), mask
        lengths = torch.tensor([len(ids) for ids in sources])
        ids = torch.nn.utils.rnn.pad_sequence(sources, batch_first=True, padding_value=PAD)
        return ids, torch.arange(ids.shape[1]) < lengths[:, None]

    def changed_settings(self, prefix: str | Sequence[int] | None = None, **changes: object) -> Generation:
        """The saved settings with changes, which are fields of `Generation`; None leaves a field as it is.

        Args:
            prefix: a text, or ids, that every generated text starts with.

        Raises:
            ValueError: a value is out of range, values do not fit together, or the tokenizer lacks a character of the
                prefix.
        """
        changes = {key: value for key, value in changes.items() if value is not None}
        if prefix is not None:
            changes["prefix"] = self._prefix_ids(prefix) if isinstance(prefix, str) else tuple(prefix)
        if changes.get("sample"):  # instead of a search
            changes = {"beam": 1, "ctc": 0.0, **changes}
        return replace(self.settings, **changes)

    def _prefix_ids(self, prefix: str) -> tuple[int, ...]:
        if lacking := self.tokenizer.lacking(prefix):
            raise ArgumentError(f"prefix={prefix!r} has {lacking!r}, which the tokenizer of the model lacks; leave it "
                                "out")
        if self.tokenizer.kind == "bpe" and prefix != (shorter := prefix.rstrip()):
            warnings.warn(f"prefix={prefix!r} ends with white space, which byte pairs join with the following word, so "
                          f"that few training texts continue after its last token; use prefix={shorter!r}",
                          stacklevel=3)
        return tuple(self.tokenizer.encode(prefix))

    def check_settings(self, settings: Generation) -> None:
        """Check settings that not every model supports.

        Raises:
            ValueError: CTC scores of a model that was trained without a CTC loss, or of texts; TTA of texts.
        """
        if not self.is_image_to_text and (settings.ctc or settings.tta > 1):
            key = "ctc" if settings.ctc else "tta"
            raise ArgumentError(f"{key}={getattr(settings, key)} is for models of images, but {self.bundle.path} reads "
                                f"texts; use {key}={0 if settings.ctc else 1}")
        for bundle in self.bundles if settings.ctc else ():
            if bundle.extra.get("ctc_loss") == 0:  # missing in bundles of earlier versions
                raise ArgumentError(f"ctc={settings.ctc} needs a model trained with a CTC loss, but {bundle.path} was "
                                    "trained with recipe.loss.ctc=0; use ctc=0")

    @torch.inference_mode()
    def generate(
        self, source: Tensor, mask: Tensor, settings: Generation | None = None, rows: Sequence[int] | None = None,
        record: list[SearchTree] | None = None,
    ) -> list[list[Hypothesis]]:
        """source (B,S) or (B,C,H,W), mask (B,S) -> B lists of hypotheses, best first; `rows` seed the sampling.

        `record` is extended by the tree of each search.
        """
        settings = settings or self.settings
        self.check_settings(settings)
        with autocast(self.device, self.precision):
            if self.fast_mode is None or record is not None:
                return generate(self.models, source, mask, settings, rows, self.utf8, record)
            return self.fast_mode.generate(lambda models: generate(models, source, mask, settings, rows, self.utf8))

    def search(self, source: object, settings: Generation | None = None, name: str = "the source") -> RecordedSearch:
        """The generated texts of one source with the tree of the greedy or beam search.

        As in `stream`, an empty text yields an empty text; the tree then has only its root.

        Args:
            name: name of an image in memory, for errors.

        Raises:
            BadText, BadImage: the source cannot be read.
            TypeError: the source is not a text, of a model that reads texts.
            ValueError: the settings sample instead of searching.
        """
        record: list[SearchTree] = []
        source = source if self.is_image_to_text else text_of(source, name)
        if is_empty(source):
            settings = settings or self.settings
            self.check_settings(settings)
            return RecordedSearch(GeneratedText(source, ("",), (0.0,), (True,)), SearchTree(settings), [""], [0])
        truncated: list[str] = []
        encoded = self.encode(source, name, truncated)
        if truncated:
            warnings.warn(f"{name} is longer than the model's limit of {self.max_source_len} tokens and was truncated",
                          stacklevel=2)
        warn_about_unknown(self._unknown([(name, source)], [encoded]), 1)
        source_batch, mask = (x.to(self.device) for x in self.collate([encoded]))
        hypotheses = self.generate(source_batch, mask, settings, record=record)[0]
        (tree,) = record
        tokens = ["", *self.tokenizer.tokens(node.token for node in tree.nodes[1:])]
        label = name if self.is_image_to_text else source
        return RecordedSearch(self.decode(label, hypotheses), tree, tokens, [tree.find(each) for each in hypotheses])

    def decode(self, source: str, hypotheses: list[Hypothesis]) -> GeneratedText:
        """The texts and scores of the hypotheses of one source, which has the name or text `source`."""
        # "ignore" drops only the first bytes of a character that was cut at max_len
        texts = tuple(self.tokenizer.decode(hypothesis.ids, "ignore") for hypothesis in hypotheses)
        scores = tuple(hypothesis.score for hypothesis in hypotheses)
        return GeneratedText(source, texts, scores, tuple(hypothesis.ended for hypothesis in hypotheses))

    def longest_text(self, settings: Generation | None = None) -> int:
        """Maximum number of generated tokens, eos included."""
        settings = settings or self.settings
        return max_tokens(self.models, 1 + len(settings.prefix), settings.max_len)

    @torch.inference_mode()
    def score_targets(self, source: Tensor, mask: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """target (B,T) -> (B,T-1) each: the teacher-forced loss of a token, and whether it has the highest logit."""
        with autocast(self.device, self.precision):
            logits = self.model(source, target[:, :-1], mask).float()  # (B,T-1,V)
        labels = target[:, 1:]
        return F.cross_entropy(logits.transpose(1, 2), labels, reduction="none"), logits.argmax(-1) == labels


def raise_unequal(window: Sequence[tuple], done: int) -> None:
    """Raises ValueError: a window of pairs, after `done` others, lacks sources or references at its end."""
    sources, references = (done + sum(each is not None for each in side) for side in zip(*window, strict=True))
    more, fewer = ("source", "reference") if sources > references else ("reference", "source")
    raise ArgumentError(f"there are more {more}s than {fewer}s, of which there are {min(sources, references)}; pass "
                        "one reference per source")


def is_empty(source: object) -> bool:
    """Whether a source is a text without anything but white space."""
    return isinstance(source, str) and not source.strip()
