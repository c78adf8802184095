"""Multi-label image classification."""

import warnings

import torch
from torch import Tensor, nn
from torchmetrics import MetricCollection
from torchmetrics.classification import MultilabelAveragePrecision, MultilabelF1Score
from torchmetrics.utilities.data import dim_zero_cat

from vit.tasks.classification import PADDING, Classification


class MultiLabel(Classification):
    """Trains a `model(images) -> logits` with independent binary labels; the loss must be binary too.

    Validation metrics are `val/map`, the mean average precision over labels, which needs no threshold and selects the
    best epoch, and `val/f1`, the mean F1 at threshold 0.5. Both are means over the labels that occur, as in the test.
    The thresholds of the saved model are chosen after training.
    """

    table_metrics = ("val/loss",)

    def scores(self, num_classes: int) -> MetricCollection:
        return MetricCollection({"val/map": MeanAveragePrecision(num_classes), "val/f1": MeanF1(num_classes)})

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        logits, targets, real = self(batch["image"]).float(), batch["label"], batch["weight"]
        each = nn.functional.binary_cross_entropy_with_logits(logits, targets.float(), reduction="none").mean(dim=1)
        self.val_loss.update(each, real)
        self.val_table.update(batch["index"], real, each)
        self.val_scores.update(logits.sigmoid(), torch.where(real[:, None] > 0, targets.long(), PADDING))
        self.log("val/loss", self.val_loss)
        self.log_dict(self.val_scores, prog_bar=True)


class MeanAveragePrecision(MultilabelAveragePrecision):
    """Mean average precision over the labels that occur; torchmetrics counts labels without samples as 0 (1.9)."""

    def __init__(self, num_labels: int):
        super().__init__(num_labels, average="none", ignore_index=PADDING, validate_args=False)

    def compute(self) -> Tensor:
        """The mean over the labels that occur, a scalar."""
        present = (dim_zero_cat(self.target) > 0).any(dim=0)  # (N,classes) -> (classes,)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="No positive samples.*")
            return super().compute()[present].mean()


class MeanF1(MultilabelF1Score):
    """Mean F1 at threshold 0.5 over the labels that occur; torchmetrics counts labels without samples as 0 (1.9)."""

    def __init__(self, num_labels: int):
        super().__init__(num_labels, average="none", ignore_index=PADDING, validate_args=False)

    def update(self, probabilities: Tensor, targets: Tensor) -> None:
        """(N,classes) each; a label is predicted from 0.5 on, as in the test, and torchmetrics needs more than 0.5."""
        super().update((probabilities >= 0.5).long(), targets)

    def compute(self) -> Tensor:
        """The mean over the labels that occur, a scalar."""
        return super().compute()[self.tp + self.fn > 0].mean()
