"""Classification of texts and pairs of texts with a saved model."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from vit.bundle import Bundle
from vit.data import TextInputs
from vit.data.formats.lines import BadText, Line
from vit.inference.calibrated import CalibratedOutputs, Calibrator
from vit.inference.image_inputs import check_batch_size
from vit.inference.images import Prediction, autocast, best_device, check_precision, clamp_top_k
from vit.inference.text_inputs import named_texts, raise_first_error, text_of, warn_about_unknown
from vit.messages import agree, number_of

Text = str | Line | tuple[str, ...]  # one text, or the two texts of a pair


class TextPredictor:
    """A text classifier with its class names and tokenizer: `predictor.predict(["a text"])`."""

    def __init__(self, bundle: Bundle, device: str | torch.device | None = None, precision: str = "32-true") -> None:
        check_precision(precision)
        self.bundle, self.precision = bundle, precision
        self.device = best_device(device)
        self.model = bundle.model.eval().to(self.device)
        self.classes, self.tokenizer = bundle.classes, bundle.tokenizer("source")
        self.columns = bundle.extra.get("columns", 1)  # 2: the model classifies pairs
        self.truncate = bundle.extra.get("cuts", False)  # as in training; otherwise texts over the limit are rejected

    def predict(
        self, texts: Iterable[Text], top_k: int = 1, batch_size: int = 64, *, set: float | None = None,
        abstain: float | None = None,
    ) -> list[Prediction]:
        """Classify texts, or pairs passed as tuples, in order; `set` and `abstain` as for images.

        Raises:
            BadText: a text is empty or longer than the model's limit, or the model classifies pairs and an item is no
                pair. The message has the name of the item.
            TypeError: an item is not a text.
            ValueError: `top_k` or `batch_size` is below 1, or the model is not calibrated for `set` or `abstain`.
        """
        return raise_first_error(self.stream(texts, top_k, batch_size, set=set, abstain=abstain))

    def stream(
        self, texts: Iterable[Text], top_k: int = 1, batch_size: int = 64, *, set: float | None = None,
        abstain: float | None = None,
    ) -> Iterator[Prediction | BadText]:
        """Yield a result for each text, in order, as soon as its batch is done: a Prediction, or a BadText with the
        reason why there is none.

        In a `Line` of a file, a tab separates the texts of a pair.

        Raises:
            TypeError: an item is not a text.
            ValueError: as `predict`.
        """
        if top_k is not None:
            top_k = clamp_top_k(top_k, len(self.classes))
        check_batch_size(batch_size)
        calibrator = Calibrator(self.bundle, set, abstain)
        named, done, truncated, unknown = iter(named_texts(texts)), 0, [], []
        while batch := list(islice(named, batch_size)):
            names, items = zip(*batch, strict=True)
            with calibrator.captured(self.model) as captured:
                read, valid, logits = self._classify(items, names, truncated)
            unknown += [(names[row], found) for row in valid if (found := self.tokenizer.lacking("".join(read[row])))]
            stated = calibrator.outputs(logits, captured, lambda read=read, valid=valid: text_contents(read, valid))
            best = calibrator.probabilities(logits).topk(top_k)
            rows = iter(zip(best.values.tolist(), best.indices.tolist(), stated, strict=True))
            for text in read:
                yield text if isinstance(text, BadText) else self._prediction(text, *next(rows))
            done += len(batch)
        if truncated:
            max_len = self.model.config.max_len
            warnings.warn(f"{len(truncated)} of {number_of(done, 'text')} {agree(len(truncated), 'is', 'are')} longer "
                          f"than the model's limit of {max_len} tokens and {agree(len(truncated), 'was', 'were')} "
                          f"truncated, such as {truncated[0]}", stacklevel=2)
        warn_about_unknown(unknown, done)

    def _prediction(
        self, texts: tuple[str, ...], probabilities: list[float], indices: list[int], stated: CalibratedOutputs
    ) -> Prediction:
        names = tuple(self.classes[i] for i in indices)
        return Prediction("\t".join(texts), names, tuple(probabilities), *stated)

    def logits(self, texts: Sequence[tuple[str, ...]], names: Sequence[str]) -> Tensor:
        """B texts or pairs -> float32 logits (B,classes); error messages refer to `names`.

        Raises:
            BadText: as `predict`.
        """
        read, _, logits = self._classify(texts, names, [])
        raise_first_error(read)
        return logits

    def _classify(
        self, items: Sequence[Text], names: Sequence[str], truncated: list[str]
    ) -> tuple[list[tuple[str, ...] | BadText], list[int], Tensor]:
        """B items -> their texts or errors, the rows of the G valid items, and their float32 logits (G,classes).

        `truncated` is extended by the names of truncated texts.
        """
        read, rows, inputs = self._tokenize(items, names, truncated)
        valid = [row for row in rows if not isinstance(read[row], BadText)]
        return read, valid, self._forward(inputs, np.flatnonzero(np.isin(rows, valid)))

    def batch(self, texts: tuple[str, ...], name: str) -> dict[str, Tensor]:
        """One text or pair -> source, source_mask and segment (1,N) on the device; error messages refer to `name`.

        Raises:
            BadText: as `predict`.
        """
        read, _, inputs = self._tokenize([texts], [name], [])
        raise_first_error(read)
        return self._on_device(inputs, np.arange(1))

    def _tokenize(
        self, items: Sequence[Text], names: Sequence[str], truncated: list[str]
    ) -> tuple[list[tuple[str, ...] | BadText], list[int], TextInputs]:
        """B items -> their texts or errors, the rows of the items without an error, and their encoder inputs.

        A text over the limit is truncated, or becomes an error; its encoder input is truncated in both cases.
        """
        read = [self._texts_or_error(item, name) for item, name in zip(items, names, strict=True)]
        rows = [row for row, text in enumerate(read) if not isinstance(text, BadText)]
        max_len = self.model.config.max_len
        columns = list(zip(*(read[row] for row in rows), strict=True)) or [()] * self.columns
        inputs = TextInputs(self.tokenizer, columns, max_len)
        lengths = {row: length for row, length in zip(rows, inputs.whole.tolist(), strict=True) if length > max_len}
        for row, length in lengths.items():
            if self.truncate:
                truncated.append(names[row])
            else:
                read[row] = BadText(names[row],
                                    f"has {number_of(length, 'token')}, but the model reads at most {max_len}; shorten "
                                    "it")
        return read, rows, inputs

    def _texts_or_error(self, item: Text, name: str) -> tuple[str, ...] | BadText:
        """The non-empty texts of an item, one per column of the model, or the error."""
        try:
            parts = tuple(text_of(item, name).split("\t")) if isinstance(item, Line) else item
            texts = tuple(text_of(text, name) for text in (parts if isinstance(parts, tuple | list) else (parts,)))
        except BadText as error:
            return error
        if len(texts) != self.columns:
            expected = "two texts separated by a tab" if self.columns == 2 else "one text"
            return BadText(name, f"has {number_of(len(texts), 'text')}, but the model expects {expected}")
        if not all(text.strip() for text in texts):
            return BadText(name, "is empty" if self.columns == 1 else "one of its texts is empty")
        return texts

    @torch.inference_mode()
    def _forward(self, inputs: TextInputs, rows: np.ndarray) -> Tensor:
        """rows (G,) of the inputs -> float32 logits (G,classes)"""
        if not len(rows):
            return torch.zeros(0, len(self.classes))
        batch = self._on_device(inputs, rows)
        with autocast(self.device, self.precision):
            return self.model(batch["source"], batch["source_mask"], batch["segment"]).float()

    def _on_device(self, inputs: TextInputs, rows: np.ndarray) -> dict[str, Tensor]:
        return {key: value.to(self.device) for key, value in inputs.batch(rows).items()}


def text_contents(read: Sequence[tuple[str, ...] | BadText], valid: Sequence[int]) -> Iterator[bytes]:
    """The bytes of each of the `valid` texts or pairs."""
    return ("\t".join(read[row]).encode("utf-8", "surrogateescape") for row in valid)
