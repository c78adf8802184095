"""Classification of texts and of pairs of texts."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from vit.tasks.base import Task
from vit.tasks.classification import accuracies, count


class TextClassification(Task):
    """Trains a `model(ids, mask, segment) -> logits` on the text batches of `vit.data`."""

    unit = "sentences"

    def __init__(
        self,
        model: nn.Module,
        num_classes: int,
        loss: nn.Module,
        optimizer: Callable[[nn.Module], torch.optim.Optimizer],
        schedule: Callable[[torch.optim.Optimizer, int], torch.optim.lr_scheduler.LRScheduler],
        clip: float | None = None,
        seed: int = 0,
        config: dict | None = None,
    ):
        super().__init__(model, optimizer, schedule, clip, seed, config)
        self.loss = loss
        self.val_scores = accuracies(num_classes)

    @property
    def metric_names(self) -> list[str]:
        return ["val/loss", *self.val_scores.keys(), "train/loss"]

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """-> logits (B,classes)"""
        return self.model(batch["source"], batch["source_mask"], batch["segment"])

    def training_loss(self, batch: dict[str, Tensor], step: int, micro: int) -> Tensor:
        return self.loss(self(batch), batch["label"])

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        count(self, self(batch), batch["label"], batch["weight"])
