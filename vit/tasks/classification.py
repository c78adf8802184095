"""Image classification."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torchmetrics import MetricCollection

from vit.data import Augment, Mixup, Preprocessing
from vit.tasks.base import Optimization, ScoreTable, Task, WeightedMean, counters
from vit.tasks.distillation import Distillation
from vit.training import Progressive

TABLE_METRICS = ("val/loss", "val/accuracy")  # metrics with a score per sample
PADDING = -1  # label of rows that pad the last evaluation batch of a rank; ignored by all metrics


class Classification(Task):
    """Trains a `model(images) -> logits` on the image batches of `vit.data`."""

    table_metrics: ClassVar[tuple[str, ...]] = TABLE_METRICS

    def __init__(
        self,
        model: nn.Module,
        preprocessing: Preprocessing,
        num_classes: int,
        loss: nn.Module,
        optimization: Optimization,
        augment: Augment | None = None,
        mixup: Mixup | None = None,
        seed: int = 0,
        config: dict | None = None,
        distillation: Distillation | None = None,
        progressive: Progressive | None = None,
    ):
        super().__init__(model, optimization, seed, config)
        self.distillation, self.progressive = distillation, progressive
        self.preprocessing, self.loss = preprocessing, loss
        self.augment, self.mixup = augment, mixup
        self.val_scores = self.scores(num_classes)
        self.val_table = ScoreTable(self.table_metrics)

    @property
    def metric_names(self) -> list[str]:
        return ["val/loss", *self.val_scores.keys(), "train/loss"]

    def scores(self, num_classes: int) -> MetricCollection:
        """Validation metrics besides the loss."""
        return accuracies(num_classes)

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """The batch.

        Raises:
            TypeError: it is not one of `vit.data`, which has the number of samples of its step, or their weights.
        """
        if not isinstance(batch, dict) or not {"samples", "weight"} & batch.keys():
            content = f" of {', '.join(map(str, batch))}" if isinstance(batch, dict) else ""
            raise TypeError(f"{type(self).__name__} needs batches of vit.data.TrainBatches and, for validation, of "
                            f"EvalBatches, but got a {type(batch).__name__}{content}; load an ImageDataset with them, "
                            "or train the model with a LightningModule of your own")
        return batch

    def forward(self, images: Tensor) -> Tensor:
        """uint8 (B,C,H,W) -> logits (B,classes)"""
        return self.model(self.preprocessing.normalize(images))

    def training_loss(self, batch: dict[str, Tensor], step: int, micro: int) -> Tensor:
        """images (B,C,H,W), labels (B,) or (B,classes) -> a scalar; augmentation and mixup run on the device"""
        images, targets = batch["image"], batch["label"]  # uint8 (B,C,H,W), int64 (B,)
        if self.augment is not None:
            images = self.augment(images, *counters(batch))
        images = self.preprocessing.normalize(images)  # float (B,C,H,W)
        if self.progressive is not None:
            stage = self.progressive.stage(step, self.total_steps)
            images = stage.scale(images)  # (B,C,height,width)
            if stage.patch_drop is not None:
                self.model.encoder.patch_dropout.rate = stage.patch_drop
        if self.mixup is not None:
            images, targets = self.mixup(images, targets, self.seed, step, micro, self.global_rank)  # (B,classes)
        self.inputs = images if isinstance(images, Tensor) else images.patches
        outputs = self.model(images)
        if self.distillation is None:
            each = self.loss(outputs, targets)  # (B,)
        else:
            each = self.distillation(outputs, images, lambda logits: self.loss(logits, targets))
        return each.sum() / batch["samples"]

    def on_train_epoch_end(self) -> None:
        super().on_train_epoch_end()
        if self.progressive is not None:
            stage = self.progressive.stage(self.global_step - 1, self.total_steps)  # stage of the last step
            self.log_dict({name: float(value) for name, value in stage.values().items()})

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        logits = self(batch["image"])
        update_metrics(self, logits, batch)


def accuracies(num_classes: int) -> MetricCollection:
    """`val/accuracy`, and `val/top5` above five classes."""
    metrics = {"val/accuracy": Accuracy()}
    if num_classes > 5:
        metrics["val/top5"] = Accuracy(k=5)
    return MetricCollection(metrics, compute_groups=False)  # which would merge those that are equal in the first batch


class Accuracy(WeightedMean):
    """The fraction of samples whose label is among the `k` highest logits; rows with the label `PADDING` do not count.

    That of torchmetrics waits for the device twice per batch to leave such rows out (1.9).
    """

    def __init__(self, k: int = 1) -> None:
        super().__init__()
        self.k = k

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """logits (B,classes), labels (B,)"""
        best = logits.argmax(1, keepdim=True) if self.k == 1 else logits.topk(self.k, dim=1).indices  # (B,k)
        super().update((best == labels[:, None]).any(dim=1).float(), (labels != PADDING).float())


def update_metrics(task: Task, logits: Tensor, batch: dict[str, Tensor]) -> None:
    """Update validation loss, accuracies and the table of samples: logits (B,classes); label, index and weight (B,) of
    the batch, weight 0 for padding rows.
    """
    weight = batch["weight"]
    labels = torch.where(weight > 0, batch["label"], PADDING)
    each = nn.functional.cross_entropy(logits.float(), labels.clamp(min=0), reduction="none")
    task.val_loss.update(each, weight)
    task.val_scores.update(logits, labels)
    task.val_table.update(batch["index"], weight, each, logits.argmax(1) == labels)
    task.log("val/loss", task.val_loss)
    task.log_dict(task.val_scores, prog_bar=True)
