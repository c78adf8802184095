"""Predictions of a multi-label classifier: zero, one or several labels per image."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from vit.bundle.label_calibration import label_probabilities
from vit.inference.calibrated import Calibrator
from vit.inference.images import Prediction, Predictor


@dataclass(frozen=True)
class MultiLabelPrediction(Prediction):
    """The labels of one image and their probabilities, most probable first; may be empty."""

    @property
    def label(self) -> str:
        """The names joined by |."""
        return "|".join(self.names)

    @property
    def probability(self) -> float:
        """Probability of the most probable label; 0 without labels."""
        return self.probabilities[0] if self.probabilities else 0.0


class MultiLabelPredictor(Predictor):
    """A model with a threshold per label: predicts each label whose probability reaches its threshold."""

    prediction_type = MultiLabelPrediction

    @property
    def thresholds(self) -> Tensor:
        """The probability of each class from which its label is assigned, float64 (classes,)."""
        return torch.tensor(self.bundle.thresholds, dtype=torch.float64)

    def _best(
        self, logits: Tensor, top_k: int | None, calibrator: Calibrator
    ) -> Iterator[tuple[tuple[str, ...], tuple[float, ...]]]:
        """Names and probabilities of the labels of each image, the most probable first.

        These are the labels that reach their thresholds, or the `top_k` most probable ones.
        """
        probabilities = label_probabilities(logits, self.bundle.calibration).cpu()  # (B,classes)
        reached = probabilities.double() >= self.thresholds
        for row, above in zip(probabilities, reached, strict=True):
            if top_k is not None:
                above = row >= row.topk(top_k).values[-1]  # more than top_k labels if there are ties
            chosen = above.nonzero()[:, 0]  # sorting few is faster than all
            chosen = chosen[row[chosen].argsort(descending=True, stable=True)][:top_k]
            yield tuple(self.classes[i] for i in chosen.tolist()), tuple(row[chosen].tolist())
