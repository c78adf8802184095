"""What every task shares: the training step around a loss, the optimizer, exact sums across a stop."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import ClassVar

import torch
from pytorch_lightning import LightningModule
from torch import Tensor, nn
from torchmetrics import Metric

from vit.training import clip_gradients, seed_step, shard


@dataclass(frozen=True)
class Optimizing:
    """How a model's weights move.

    Args:
        optimizer: `model -> torch optimizer`.
        schedule: `(optimizer, total steps) -> learning-rate scheduler`, stepped once per optimizer step.
        clip: the gradient's largest norm; None for no limit.
    """

    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    schedule: Callable[[torch.optim.Optimizer, int], torch.optim.lr_scheduler.LRScheduler]
    clip: float | None = None


class Task(LightningModule, ABC):
    """Trains a model on batches; a subclass says what the loss of a batch is and what validation counts.

    The model holds the architecture alone; loss, metrics, augmentation and optimizer live in the task. Every random
    draw is a function of (seed, step, micro-batch, rank) or of (seed, epoch, sample), so that a resumed run repeats an
    uninterrupted one.

    Args:
        config: what the run was made from, as plain values; it goes into checkpoints for people to read.
    """

    unit = "images"  # what a row of a batch is, for the progress bar
    means: ClassVar[tuple[str, ...]] = ("val_loss",)  # what validation gathers, each an attribute

    def __init__(
        self,
        model: nn.Module,
        optimizing: Optimizing,
        seed: int = 0,
        config: dict | None = None,
    ):
        super().__init__()
        self.model = model
        self.optimizing, self.seed, self.config = optimizing, seed, config or {}
        self.inputs: Tensor | None = None  # what the model read in this micro-batch, if that can be NaN: for FiniteLoss
        self.gradient_norm: Tensor | None = None  # of this step, measured by FiniteLoss
        self.train_loss = Mean()
        for name in self.means:
            setattr(self, name, Mean())

    @property
    @abstractmethod
    def metric_names(self) -> list[str]:
        """What an epoch is judged by."""

    @abstractmethod
    def training_loss(self, batch: dict[str, Tensor], step: int, micro: int) -> Tensor:
        """What a micro-batch adds to the loss of its optimizer step: a sum over its samples or tokens, divided by those
        of the whole step (`samples`, `tokens`), over all processes and micro-batches. So the gradient does not depend
        on how a step is divided. `step` and `micro` count optimizer steps and their micro-batches.
        """

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        accumulate = self.trainer.accumulate_grad_batches
        step, micro = self.global_step, batch_idx % accumulate
        seed_step(self.seed, step, micro, self.global_rank)
        filler = "filler" in batch
        with evaluating(self.model) if filler else nullcontext():
            loss = self.training_loss(batch, step, micro)
        # micro-batches and processes are averaged afterwards; a filler's gradient is zero, but every process has one
        loss = loss * (0 if filler else accumulate * self.trainer.world_size)
        self.train_loss.update(loss.detach())
        if step % self.trainer.log_every_n_steps == 0:
            self.log("train/step_loss", loss.detach())  # of this process's part of the batch
        return loss

    def on_train_epoch_start(self) -> None:
        self.train_loss.reset()

    def on_train_epoch_end(self) -> None:
        self.log("train/loss", self.train_loss.compute())
        self.log("lr", max(group["lr"] for group in self.optimizers().param_groups))

    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None) -> None:
        if self.optimizing.clip is not None:
            parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
            clip_gradients(parameters, self.optimizing.clip, self.gradient_norm)

    def on_save_checkpoint(self, checkpoint: dict) -> None:
        """In every process. Each resumes with its own sum of losses: another order of adding changes the last bit."""
        losses = torch.stack([self.train_loss.total, self.train_loss.weight])  # (2,) sum, batches
        parts = [losses.clone() for _ in range(self.trainer.world_size)]
        if len(parts) > 1:
            torch.distributed.all_gather(parts, losses)
        checkpoint["train_loss"] = torch.stack(parts)  # (processes, 2)
        checkpoint["config"] = self.config

    def on_load_checkpoint(self, checkpoint: dict) -> None:
        saved = checkpoint["train_loss"].to(self.device).reshape(-1, 2)
        if len(saved) == self.trainer.world_size:
            self.train_loss.total, self.train_loss.weight = saved[self.global_rank].clone().unbind()
        elif self.global_rank == 0:  # another number of processes
            self.train_loss.total, self.train_loss.weight = saved.sum(0).unbind()

    def configure_model(self) -> None:
        if self.device_mesh is not None:
            shard(self.model, self.device_mesh["data_parallel"])

    def configure_optimizers(self):
        optimizer = self.optimizing.optimizer(self.model)
        total = int(self.trainer.estimated_stepping_batches)
        schedule = self.optimizing.schedule(optimizer, total)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode, in which no running statistics change; afterwards each module is as before."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


class Mean(Metric):
    """A weighted mean over batches and processes that never looks for NaN, which would wait for the device.

    torchmetrics' MeanMetric without its look for NaN takes all weights as 1 (1.9); `FiniteLoss` looks for it.
    """

    total: Tensor
    weight: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("total", "weight"):
            self.add_state(name, torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, value: Tensor, weight: Tensor | None = None) -> None:
        """value (...), weight (...) or none for 1"""
        weight = torch.ones_like(value) if weight is None else weight
        self.total += (value * weight).sum()
        self.weight += weight.sum()

    def compute(self) -> Tensor:
        return self.total / self.weight
