"""Classification of texts and of text pairs."""

from torch import Tensor, nn

from vit.tasks.base import Optimization, ScoreTable, Task
from vit.tasks.classification import TABLE_METRICS, accuracies, update_metrics


class TextClassification(Task):
    """Trains a `model(ids, mask, segment) -> logits` on the text batches of `vit.data`."""

    unit = "sentences"

    def __init__(
        self,
        model: nn.Module,
        num_classes: int,
        loss: nn.Module,
        optimization: Optimization,
        seed: int = 0,
        config: dict | None = None,
    ):
        super().__init__(model, optimization, seed, config)
        self.loss = loss
        self.val_scores = accuracies(num_classes)
        self.val_table = ScoreTable(TABLE_METRICS)

    @property
    def metric_names(self) -> list[str]:
        return ["val/loss", *self.val_scores.keys(), "train/loss"]

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """batch -> logits (B,classes)"""
        return self.model(batch["source"], batch["source_mask"], batch["segment"])

    def training_loss(self, batch: dict[str, Tensor], step: int, micro: int) -> Tensor:
        """ids (B,N), labels (B,) -> the loss per text, a scalar"""
        return self.loss(self(batch), batch["label"]).sum() / batch["samples"]

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        update_metrics(self, self(batch), batch)
