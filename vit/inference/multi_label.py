"""Predictions of a multi-label classifier: zero, one or several labels per image."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from vit.bundle import Bundle
from vit.bundle.label_calibration import label_probabilities
from vit.data import BadImage
from vit.data.images.files import LeftOut
from vit.inference.calibrated import Calibrator
from vit.inference.image_inputs import Images
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

    def __init__(
        self,
        bundle: Bundle,
        device: str | torch.device | None = None,
        precision: str = "32-true",
        fast: bool = False,
    ) -> None:
        super().__init__(bundle, device, precision, fast)
        self.thresholds = torch.tensor(bundle.thresholds, dtype=torch.float64)

    def stream(
        self, images: Images, top_k: int | None = None, batch_size: int = 64, left_out: list[LeftOut] | None = None, *,
        set: float | None = None, abstain: float | None = None, tta: int = 1,
    ) -> Iterator[MultiLabelPrediction | BadImage]:
        """One prediction per image, in order: the labels that reach their thresholds, or the `top_k` most probable.

        Raises:
            ValueError: `top_k` or `batch_size` is below 1, `tta` is neither 1 nor 2, or `set` or `abstain` is given,
                which need one label per image.
        """
        return super().stream(images, top_k, batch_size, left_out, set=set, abstain=abstain, tta=tta)

    def _best(
        self, logits: Tensor, top_k: int | None, calibrator: Calibrator
    ) -> Iterator[tuple[tuple[str, ...], tuple[float, ...]]]:
        probabilities = label_probabilities(logits, self.bundle.calibration).cpu()  # (B,classes)
        reached = probabilities.double() >= self.thresholds
        for row, above in zip(probabilities, reached, strict=True):
            order = row.argsort(descending=True, stable=True)
            chosen = order[above[order]] if top_k is None else order[:top_k]
            yield tuple(self.classes[i] for i in chosen.tolist()), tuple(row[chosen].tolist())
