"""Answers from a model that gives an image several labels, or none."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from vit.bundle import Bundle
from vit.data import BadImage
from vit.data.images.files import LeftOut
from vit.inference.images import Images, Prediction, Predictor


@dataclass(frozen=True)
class LabelSet(Prediction):
    """The labels of one image with their probabilities, most probable first; there may be none."""

    @property
    def label(self) -> str:
        """The names with | between them."""
        return "|".join(self.names)

    @property
    def probability(self) -> float:
        """Of the most probable name; 0 where there is none."""
        return self.probabilities[0] if self.probabilities else 0.0


class LabelSetPredictor(Predictor):
    """A model with a threshold per label: it gives the labels whose probability reaches theirs."""

    answer = LabelSet

    def __init__(self, bundle: Bundle, device: str | torch.device | None = None, precision: str = "32-true") -> None:
        super().__init__(bundle, device, precision)
        self.thresholds = torch.tensor(bundle.thresholds, dtype=torch.float64)

    def stream(
        self, images: Images, top_k: int | None = None, batch_size: int = 64, left_out: list[LeftOut] | None = None
    ) -> Iterator[LabelSet | BadImage]:
        """One answer per image, in order: the labels that reach their thresholds, or with `top_k` the best so many."""
        return super().stream(images, top_k, batch_size, left_out)

    def _answer(self, logits: Tensor, top_k: int | None) -> Iterator[tuple[tuple[str, ...], tuple[float, ...]]]:
        probabilities = logits.sigmoid().cpu()  # (B,classes)
        given = probabilities.double() >= self.thresholds
        for row, mine in zip(probabilities, given, strict=True):
            best = row.argsort(descending=True, stable=True)
            chosen = best[mine[best]] if top_k is None else best[:top_k]
            yield tuple(self.classes[i] for i in chosen.tolist()), tuple(row[chosen].tolist())
