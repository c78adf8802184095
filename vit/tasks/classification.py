"""Image classification: what one training step does with a batch, what validation counts, how weights move."""

from collections.abc import Callable

import torch
from pytorch_lightning import LightningModule
from torch import Tensor, nn
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from vit.data import Augment, Mixup, Preprocessing
from vit.training import clip_gradients, seed_step, shard

PADDING = -1  # label of the rows that fill up the last evaluation batch of a rank; no metric counts them


class Classification(LightningModule):
    """Trains any `model(images) -> logits` on the batches of `vit.data`.

    The model holds the architecture alone; loss, metrics, augmentation and optimizer live here. Every random draw is a
    function of (seed, step, micro-batch, rank) or of (seed, epoch, sample), so that a resumed run repeats an
    uninterrupted one.

    Args:
        optimizer: `model -> torch optimizer`.
        schedule: `(optimizer, total steps) -> learning-rate scheduler`, stepped once per optimizer step.
        clip: the gradient's largest norm; None for no limit.
        config: what the run was made from, as plain values; it goes into checkpoints for people to read.
    """

    def __init__(
        self,
        model: nn.Module,
        preprocessing: Preprocessing,
        num_classes: int,
        loss: nn.Module,
        optimizer: Callable[[nn.Module], torch.optim.Optimizer],
        schedule: Callable[[torch.optim.Optimizer, int], torch.optim.lr_scheduler.LRScheduler],
        augment: Augment | None = None,
        mixup: Mixup | None = None,
        clip: float | None = None,
        seed: int = 0,
        config: dict | None = None,
    ):
        super().__init__()
        self.model, self.preprocessing, self.loss = model, preprocessing, loss
        self.augment, self.mixup = augment, mixup
        self.make_optimizer, self.make_schedule = optimizer, schedule
        self.clip, self.seed, self.config = clip, seed, config or {}
        self.train_loss = MeanMetric(
            nan_strategy="disable"
        )  # looking for NaN would wait for the device; FiniteLoss does
        self.val_loss = MeanMetric(nan_strategy="disable")
        accuracies = {"val/accuracy": MulticlassAccuracy(num_classes, average="micro", ignore_index=PADDING)}
        if num_classes > 5:
            accuracies["val/top5"] = MulticlassAccuracy(num_classes, top_k=5, average="micro", ignore_index=PADDING)
        self.val_accuracy = MetricCollection(accuracies)

    @property
    def metric_names(self) -> list[str]:
        """What an epoch is judged by."""
        return ["val/loss", *self.val_accuracy.keys(), "train/loss"]

    def forward(self, images: Tensor) -> Tensor:
        """uint8 (B,C,H,W) -> logits (B,classes)"""
        return self.model(self.preprocessing.normalize(images))

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        step, micro = self.global_step, batch_idx % self.trainer.accumulate_grad_batches
        seed_step(self.seed, step, micro, self.global_rank)
        images, targets = batch["image"], batch["label"]  # uint8 (B,C,H,W), int64 (B,)
        if self.augment is not None:
            images = self.augment(images, batch["index"], batch["epoch"])
        images = self.preprocessing.normalize(images)  # float (B,C,H,W)
        if self.mixup is not None:
            images, targets = self.mixup(images, targets, self.seed, step, micro, self.global_rank)  # (B,classes)
        loss = self.loss(self.model(images), targets)
        self.train_loss.update(loss.detach())
        if step % self.trainer.log_every_n_steps == 0:
            self.log("train/step_loss", loss.detach())  # of this process's part of the batch
        return loss

    def on_train_epoch_start(self) -> None:
        self.train_loss.reset()

    def on_train_epoch_end(self) -> None:
        self.log("train/loss", self.train_loss.compute())
        self.log("lr", max(group["lr"] for group in self.optimizers().param_groups))

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        logits = self(batch["image"])
        weight = batch["weight"]  # (B,) 1 for a sample, 0 for padding
        labels = torch.where(weight > 0, batch["label"], PADDING)
        each = nn.functional.cross_entropy(logits.float(), labels.clamp(min=0), reduction="none")
        self.val_loss.update(each, weight)
        self.val_accuracy.update(logits, labels)
        self.log("val/loss", self.val_loss)
        self.log_dict(self.val_accuracy, prog_bar=True)

    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None) -> None:
        if self.clip is not None:
            clip_gradients(self.model.parameters(), self.clip)

    def on_save_checkpoint(self, checkpoint: dict) -> None:
        """In every process. A run that stopped within an epoch goes on with the sum of its losses over all processes."""
        losses = torch.stack([self.train_loss.mean_value, self.train_loss.weight])  # (2,) sum, batches
        checkpoint["train_loss"] = self.trainer.strategy.reduce(losses, reduce_op="sum")
        checkpoint["config"] = self.config

    def on_load_checkpoint(self, checkpoint: dict) -> None:
        if self.global_rank == 0:
            self.train_loss.mean_value, self.train_loss.weight = checkpoint["train_loss"].to(self.device).unbind()

    def configure_model(self) -> None:
        if self.device_mesh is not None:
            shard(self.model, self.device_mesh["data_parallel"])

    def configure_optimizers(self):
        optimizer = self.make_optimizer(self.model)
        total = int(self.trainer.estimated_stepping_batches)
        schedule = self.make_schedule(optimizer, total)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
