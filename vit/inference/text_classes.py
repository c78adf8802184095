"""Class names for texts and pairs of texts, from a saved model."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from vit.bundle import Bundle
from vit.data import TextInputs
from vit.data.formats.lines import BadText, Line
from vit.inference.images import Prediction, autocast, best_device, check_batch_size, checked_top_k
from vit.inference.named_texts import all_good, named_texts, text_of

Text = str | Line | tuple[str, ...]  # one text, or the two of a pair


class TextPredictor:
    """A text classifier with its class names and its tokenizer: `predictor.predict(["a text"])`."""

    def __init__(self, bundle: Bundle, device: str | torch.device | None = None, precision: str = "32-true") -> None:
        self.bundle, self.precision = bundle, precision
        self.device = best_device(device)
        self.model = bundle.model.eval().to(self.device)
        self.classes, self.tokenizer = bundle.classes, bundle.tokenizer("source")
        self.columns = bundle.extra.get("columns", 1)  # 2: it reads pairs
        self.cuts = bundle.extra.get("cuts", False)  # of a text that is too long the beginning is read, as in training

    def predict(self, texts: Iterable[Text], top_k: int = 1, batch_size: int = 64) -> list[Prediction]:
        """Name texts, or pairs of them given as tuples, in order.

        Raises:
            BadText: a text is empty or longer than the model reads, or no pair where it reads pairs; says which.
        """
        return all_good(self.stream(texts, top_k, batch_size))

    def stream(self, texts: Iterable[Text], top_k: int = 1, batch_size: int = 64) -> Iterator[Prediction | BadText]:
        """One answer per text, in order, as soon as its batch is done: its names, or why there are none.

        In a `Line` of a file the texts of a pair have a tab between them.
        """
        top_k = checked_top_k(top_k, len(self.classes))
        check_batch_size(batch_size)
        named, done, cut = iter(named_texts(texts)), 0, []
        while batch := list(islice(named, batch_size)):
            names, items = zip(*batch, strict=True)
            read, good, logits = self.answered(items, names, cut)
            best = logits.softmax(-1).topk(top_k)
            found = iter(zip(best.values.tolist(), best.indices.tolist(), strict=True))
            for row, text in enumerate(read):
                yield self.prediction(text, *next(found)) if row in good else text
            done += len(batch)
        if cut:
            warnings.warn(f"{len(cut)} of {done} texts are longer than the {self.model.config.max_len} tokens that the "
                          f"model reads, and were cut, such as {cut[0]}", stacklevel=2)

    def prediction(self, texts: tuple[str, ...], probabilities: list[float], places: list[int]) -> Prediction:
        return Prediction("\t".join(texts), tuple(self.classes[i] for i in places), tuple(probabilities))

    def logits(self, texts: Sequence[tuple[str, ...]], names: Sequence[str]) -> Tensor:
        """Texts (B,), each one or a pair -> float32 logits (B,classes); `names` are for messages.

        Raises:
            BadText: as `predict`.
        """
        read, _, logits = self.answered(texts, names, [])
        all_good(read)
        return logits

    def answered(
        self, items: Sequence[Text], names: Sequence[str], cut: list[str]
    ) -> tuple[list[tuple[str, ...] | BadText], list[int], Tensor]:
        """Texts (B,) or why they cannot be read, the rows of the G good ones, float32 logits (G,classes) of these.

        `cut` gains the names of those that were cut.
        """
        read = [self.tried(item, name) for item, name in zip(items, names, strict=True)]
        rows = [row for row, text in enumerate(read) if not isinstance(text, BadText)]
        if not rows:
            return read, [], torch.zeros(0, len(self.classes))
        most = self.model.config.max_len
        inputs = TextInputs(self.tokenizer, list(zip(*(read[row] for row in rows), strict=True)), most)
        long = {row: length for row, length in zip(rows, inputs.whole.tolist(), strict=True) if length > most}
        for row, length in long.items():
            if self.cuts:
                cut.append(names[row])
            else:
                read[row] = BadText(names[row], f"has {length} tokens, but the model reads at most {most}; shorten it")
        good = [row for row in rows if not isinstance(read[row], BadText)]
        return read, good, self.forward(inputs, np.flatnonzero(np.isin(rows, good)))

    def tried(self, item: Text, name: str) -> tuple[str, ...] | BadText:
        """The texts of an item, as many as the model reads, all with something in them."""
        try:
            whole = tuple(text_of(item, name).split("\t")) if isinstance(item, Line) else item
            texts = tuple(text_of(text, name) for text in (whole if isinstance(whole, tuple | list) else (whole,)))
        except BadText as error:
            return error
        if len(texts) != self.columns:
            wanted = "two texts, with a tab between them" if self.columns == 2 else "one text"
            return BadText(name, f"has {len(texts)} texts, but the model reads {wanted}")
        if not all(text.strip() for text in texts):
            return BadText(name, "is empty" if self.columns == 1 else "one of its texts is empty")
        return texts

    @torch.inference_mode()
    def forward(self, inputs: TextInputs, rows: np.ndarray) -> Tensor:
        """rows (G,) of the inputs -> float32 logits (G,classes)"""
        if not len(rows):
            return torch.zeros(0, len(self.classes))
        batch = {key: value.to(self.device) for key, value in inputs.batch(rows).items()}
        with autocast(self.device, self.precision):
            return self.model(batch["source"], batch["source_mask"], batch["segment"]).float()
