"""Texts from a saved model: lines are translated, images are read, through the paths that training used."""

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.bundle import Bundle
from vit.data import BadImage
from vit.data.formats.lines import BadText, Line
from vit.data.text.tokenizers import EOS, PAD
from vit.generation import Generation, Hypothesis, generate
from vit.inference.images import Images, autocast, best_device, check_batch_size, named_images
from vit.inference.named_texts import Bad, all_good, named_texts, text_of

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
        self.cuts = bundle.extra.get("cuts", False)  # of a text that is too long the beginning is read, as in training
        self.longest = bundle.extra.get("max_source_len", self.model.config.max_len)  # tokens of what is read
        self.tokenizer = bundle.tokenizer("target")
        self.settings = Generation(**{"beam": 5, "max_len": self.model.config.max_len,
                                      **bundle.extra.get("generation", {})})

    @property
    def reads_images(self) -> bool:
        return self.model.config.source == "image"

    def predict(
        self, sources: Iterable[str] | Images, settings: Generation | None = None, batch_size: int = 32
    ) -> list[Written]:
        """Texts for texts, or for images (all that `Predictor.predict` takes), in order.

        Raises:
            BadText, BadImage: a source that the model cannot read; the text names it and the reason.
        """
        return all_good(self.stream(sources, settings, batch_size))

    def stream(
        self, sources: Iterable[str] | Images, settings: Generation | None = None, batch_size: int = 32
    ) -> Iterator[Written | Bad]:
        """One answer per source, in order: what is written, or why there is nothing.

        It comes as soon as a window of batches is done, in which sources of like length are written together. A line
        without text is answered by one, so that lines stay beside their answers.
        """
        check_batch_size(batch_size)
        named = iter(named_images(sources) if self.reads_images else named_texts(sources))
        size, done, cut = WINDOW * batch_size if batch_size > 1 else 1, 0, []
        while window := list(islice(named, size)):
            answers = self.tried(window, cut)
            rows = [row for row, answer in enumerate(answers) if isinstance(answer, Tensor)]
            for places, source, mask in self.together([answers[row] for row in rows], batch_size):
                chosen = [rows[place] for place in places]
                written = self.generate(source, mask, settings, [done + row for row in chosen])
                for row, hypotheses in zip(chosen, written, strict=True):
                    answers[row] = self.written(shown(*window[row]), hypotheses)
            yield from answers
            done += len(window)
        if cut:
            warnings.warn(f"{len(cut)} of {done} texts are longer than the {self.longest} tokens that the model reads, "
                          f"and were cut, such as {cut[0]}", stacklevel=2)

    def tried(self, window: Sequence[tuple[str, object]], cut: list[str]) -> list[Tensor | Written | Bad]:
        """Of (name, source) what the model reads, or the answer where it need not; `cut` gains names of cut texts."""
        found = []
        for name, item in window:
            try:
                source = item if self.reads_images else text_of(item, name)
                blank = isinstance(source, str) and not source.strip()
                found.append(Written(source, ("",), (0.0,)) if blank else self.ready(source, name, cut))
            except (BadImage, BadText) as error:
                found.append(error)
        return found

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

    def together(self, ready: Sequence[Tensor], batch_size: int) -> Iterator[tuple[list[int], Tensor, Tensor]]:
        """Sources of like length together: their places, source ids (B,S) or images (B,C,H,W), mask (B,S)."""
        order = sorted(range(len(ready)), key=lambda row: ready[row].shape[-1])
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            source, mask = self.collated([ready[row] for row in rows])
            yield rows, source.to(self.device), mask.to(self.device)

    def written(self, source: str, hypotheses: list[Hypothesis]) -> Written:
        texts = tuple(self.tokenizer.decode(hypothesis.ids) for hypothesis in hypotheses)
        scores = tuple(hypothesis.score for hypothesis in hypotheses)
        return Written(source, texts, scores)

    def ready(self, item: object, name: str, cut: list[str] | None = None) -> Tensor:
        """One source as the model's ids (S,) or pixels (C,H,W); `cut` gains its name where it is cut."""
        if self.reads_images:
            return self.preprocessing.image(item, name)
        ids = [*self.bundle.tokenizer("source").encode(item), EOS]
        if len(ids) <= self.longest:
            return torch.tensor(ids)
        if not self.cuts:
            raise BadText(name, f"has {len(ids)} tokens, but the model reads at most {self.longest}; split it up: "
                                f"{item[:60]}…")
        if cut is not None:
            cut.append(name)
        return torch.tensor([*ids[: self.longest - 1], EOS])

    def collated(self, sources: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Ids (B,S), or normalized images (B,C,H,W), and their mask (B,S)."""
        if self.reads_images:
            images, mask = self.preprocessing.batch(sources)
            return self.preprocessing.normalize(images), mask
        lengths = torch.tensor([len(ids) for ids in sources])
        ids = torch.nn.utils.rnn.pad_sequence(sources, batch_first=True, padding_value=PAD)
        return ids, torch.arange(ids.shape[1]) < lengths[:, None]


def shown(name: str, item: object) -> str:
    """What an answer says it was made of: the text, or an image's name."""
    return text_of(item, name) if isinstance(item, str | Line) else name
