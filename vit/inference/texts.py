"""Texts from a saved model: lines are translated, images are read, through the paths that training used."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.bundle import Bundle
from vit.data.text import EOS, PAD
from vit.generation import Generation, Hypothesis, generate
from vit.inference.images import autocast, best_device

WINDOW = 16  # batches that are put in order of length together


@dataclass(frozen=True)
class Written:
    """The best text for one source, and all that were asked for, best first, with their scores."""

    source: str
    texts: tuple[str, ...]
    scores: tuple[float, ...]

    @property
    def text(self) -> str:
        return self.texts[0]

    @property
    def score(self) -> float:
        return self.scores[0]

    @property
    def certainty(self) -> float:
        """exp(score): with the usual length penalty of 1 the geometric mean of the tokens' probabilities."""
        return math.exp(self.score)


class Writer:
    """A sequence-to-sequence model with its tokenizers: `writer.predict(["A dog runs."])`.

    Args:
        others: bundles of the same tokenizers whose probabilities are averaged with this one's (an ensemble).
    """

    def __init__(
        self,
        bundle: Bundle,
        device: str | torch.device | None = None,
        precision: str = "32-true",
        others: Sequence[Bundle] = (),
    ) -> None:
        self.bundle, self.precision = bundle, precision
        self.device = best_device(device)
        for other in others:
            if "target" not in other.tokenizers:
                raise ValueError(f"{other.path} writes no texts; an ensemble is of models that do")
            if other.tokenizers["target"].to_dict() != bundle.tokenizers["target"].to_dict():
                raise ValueError(f"{other.path} writes other tokens than {bundle.path}; "
                                 "an ensemble needs one tokenizer")
        self.models = [each.model.eval().to(self.device) for each in (bundle, *others)]
        self.model = self.models[0]
        self.preprocessing = bundle.preprocessing
        self.cuts = False  # a line that is too long is an error; True: its beginning is read
        self.tokenizer = bundle.tokenizers["target"]
        self.settings = Generation(**{"beam": 5, "max_len": self.model.config.max_len - 1,
                                      **bundle.extra.get("generation", {})})

    @property
    def reads_images(self) -> bool:
        return self.model.config.source == "image"

    def predict(self, sources: Iterable, settings: Generation | None = None, batch_size: int = 32) -> list[Written]:
        """Texts for lines, or for images (paths, PIL images, arrays, bytes), in order.

        Raises:
            ValueError, BadImage: a source that the model cannot take; the text names it.
        """
        return list(self.stream(sources, settings, batch_size))

    def stream(self, sources: Iterable, settings: Generation | None = None, batch_size: int = 32) -> Iterator[Written]:
        """As `predict`, in order, as soon as a window of batches is done; sources of like length are written together.

        A line without text is answered by one, so that lines stay beside their answers.
        """
        items, done = iter(sources), 0
        while window := list(islice(items, WINDOW * batch_size)):
            found = {row: Written(item, ("",), (0.0,)) for row, item in enumerate(window) if is_blank(item)}
            full = [row for row in range(len(window)) if row not in found]
            items_left, numbers = [window[row] for row in full], [done + row for row in full]
            for places, source, mask in self.batches(items_left, batch_size, numbers):
                written = self.generate(source, mask, settings, [numbers[place] for place in places])
                for place, hypotheses in zip(places, written, strict=True):
                    found[full[place]] = self.written(window[full[place]], hypotheses)
            yield from (found[row] for row in range(len(window)))
            done += len(window)

    @torch.inference_mode()
    def generate(
        self, source: Tensor, mask: Tensor, settings: Generation | None = None, rows: Sequence[int] | None = None
    ) -> list[list[Hypothesis]]:
        """A batch as `batches` gives it -> for every row its hypotheses, best first; draws follow from `rows`."""
        with autocast(self.device, self.precision):
            return generate(self.models, source, mask, settings or self.settings, rows)

    @torch.inference_mode()
    def told(self, source: Tensor, mask: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """target (B,T) -> each token's loss and whether it is the likeliest, told from those before it: (B,T-1) both.
        """
        with autocast(self.device, self.precision):
            logits = self.model(source, target[:, :-1], mask).float()  # (B,T-1,V)
        labels = target[:, 1:]
        return F.cross_entropy(logits.transpose(1, 2), labels, reduction="none"), logits.argmax(-1) == labels

    def batches(
        self, items: Sequence, batch_size: int, numbers: Sequence[int] | None = None
    ) -> Iterator[tuple[list[int], Tensor, Tensor]]:
        """Items of like length together: their places, source ids (B,S) or images (B,C,H,W), mask (B,S).

        Args:
            numbers: where the items stand in what they were taken from, for messages.
        """
        ready = [self.ready(item, row + 1) for item, row in zip(items, numbers or range(len(items)), strict=True)]
        order = sorted(range(len(ready)), key=lambda row: ready[row].shape[-1])
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            source, mask = self.collated([ready[row] for row in rows])
            yield rows, source.to(self.device), mask.to(self.device)

    def written(self, item: object, hypotheses: list[Hypothesis]) -> Written:
        known = isinstance(item, str) or hasattr(item, "__fspath__")
        texts = tuple(self.tokenizer.decode(hypothesis.ids) for hypothesis in hypotheses)
        scores = tuple(hypothesis.score for hypothesis in hypotheses)
        return Written(str(item) if known else getattr(item, "filename", ""), texts, scores)

    def ready(self, item: object, number: int) -> Tensor:
        """One source as the model's ids (S,) or pixels (C,H,W); `number` names a line that has no name."""
        if self.reads_images:
            return self.preprocessing.image(item, str(item) if isinstance(item, str) else "")
        ids = [*self.bundle.tokenizers["source"].encode(item), EOS]
        most = self.model.config.max_len
        if len(ids) > most and self.cuts:
            return torch.tensor([*ids[: most - 1], EOS])
        if len(ids) > most:
            raise ValueError(f"line {number} has {len(ids)} tokens, but the model reads at most {most}; split it up: "
                             f"{item[:60]}…")
        return torch.tensor(ids)

    def collated(self, sources: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Ids (B,S), or normalized images (B,C,H,W), and their mask (B,S)."""
        if self.reads_images:
            images, mask = self.preprocessing.batch(sources)
            return self.preprocessing.normalize(images), mask
        lengths = torch.tensor([len(ids) for ids in sources])
        ids = torch.nn.utils.rnn.pad_sequence(sources, batch_first=True, padding_value=PAD)
        return ids, torch.arange(ids.shape[1]) < lengths[:, None]


def is_blank(item: object) -> bool:
    return isinstance(item, str) and not item.strip()
