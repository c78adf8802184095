"""The base class of all tasks: training step, optimizer, means over an epoch that a resumed run continues exactly, and
the scores of single validation samples, for comparisons of two models on the same samples.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from pytorch_lightning import LightningModule
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torchmetrics import Metric
from torchmetrics.utilities.data import dim_zero_cat

from vit.files.credentials import masked
from vit.nn.init import evaluating
from vit.training import clip_gradients, seed_step, shard
from vit.training.checkpointing.resume_position import ACCUMULATE, BEYOND, steps_beyond
from vit.training.monitoring.paired_comparison import SampleScores
from vit.training.optimization.gradient_clipping import remaining_loss_scale


@dataclass(frozen=True)
class Optimization:
    """Optimizer, learning rate schedule and gradient clipping.

    Args:
        optimizer: `model -> torch optimizer`.
        schedule: `(optimizer, total steps) -> learning rate scheduler`, stepped once per optimizer step.
        clip: maximum norm of the gradient; None for no clipping.
    """

    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    schedule: Callable[[torch.optim.Optimizer, int], torch.optim.lr_scheduler.LRScheduler]
    clip: float | None = None


class Task(LightningModule, ABC):
    """Base class of the training tasks; subclasses define the loss of a batch and the validation metrics.

    The model contains only the architecture; loss, metrics, augmentation and optimizer are in the task. Random numbers
    are functions of (seed, step, micro-batch, rank) or of (seed, epoch, sample), so that a resumed run equals an
    uninterrupted one.

    Args:
        config: the resolved config of the run as plain values, saved in checkpoints for information.
    """

    unit = "images"  # what a row of a batch is, for the progress bar
    means: ClassVar[tuple[str, ...]] = ("val_loss",)  # attributes with validation means

    def __init__(
        self,
        model: nn.Module,
        optimization: Optimization,
        seed: int = 0,
        config: dict | None = None,
    ):
        super().__init__()
        self.model = model
        self.optimization, self.seed, self.config = optimization, seed, config or {}
        self.inputs: Tensor | None = None  # floating point input of this micro-batch, checked by FiniteLoss
        self.gradient_norm: Tensor | None = None  # gradient norm of this step, set by FiniteLoss
        self.resumed: dict | None = None  # the checkpoint that a run continues from, without its weights
        self.steps_beyond = 0  # as `vit.training.checkpointing.resume_position.steps_beyond` returns them
        self.total_steps = 0  # optimizer steps of the whole run, known when the optimizer is built
        self.train_loss, self.grad_norm = WeightedMean(), WeightedMean()
        self.val_table: ScoreTable | None = None  # set by tasks whose metrics are means over samples
        for name in self.means:
            setattr(self, name, WeightedMean())

    @property
    @abstractmethod
    def metric_names(self) -> list[str]:
        """Names of the metrics that can be monitored."""

    @abstractmethod
    def training_loss(self, batch: dict[str, Tensor], step: int, micro: int) -> Tensor:
        """The contribution of a micro-batch to the loss of its optimizer step: the sum over its samples or tokens,
        divided by their number in the whole step (`samples`, `tokens` of the batch), over all processes and
        micro-batches: a scalar. The gradient then does not depend on how a step is divided, by gradient accumulation or
        among processes.

        Args:
            step: optimizer step.
            micro: micro-batch within the step.
        """

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        """The loss of a micro-batch, a scalar, scaled so that Lightning's mean is the loss of the optimizer step."""
        accumulate = self.trainer.accumulate_grad_batches
        step, micro = self.global_step, batch_idx % accumulate
        seed_step(self.seed, step, micro, self.global_rank)
        filler = "filler" in batch
        with evaluating(self.model) if filler else nullcontext():
            loss = self.training_loss(batch, step, micro)
        # Lightning and DDP average over micro-batches and processes; a filler batch has a gradient of zero
        loss = loss * (0 if filler else accumulate * self.trainer.world_size)
        self.train_loss.update(loss.detach())
        if (step + 1) % self.trainer.log_every_n_steps == 0:  # the steps after which Lightning passes values to loggers
            self.log("train/step_loss", loss.detach())  # loss of this process's part of the batch only
        return loss

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """The batch on the device, with "counters", the index (B,) and epoch (B,) of its samples, on the host."""
        moved = super().transfer_batch_to_device(batch, device, dataloader_idx)
        if isinstance(batch, dict) and "epoch" in batch:
            moved["counters"] = batch["index"], batch["epoch"]
        return moved

    def on_validation_start(self) -> None:
        if self.val_table is not None:
            self.val_table.reset()
        if torch.distributed.is_available() and torch.distributed.is_initialized():  # not so in a single process
            share_statistics(self.model)

    def sample_scores(self, metric: str) -> SampleScores | None:
        """A metric's scores of the samples of the last validation, gathered over the processes; None for a metric that
        is not a mean over samples.
        """
        if self.val_table is None or metric not in self.val_table.metrics:
            return None
        return self.val_table.scores(metric)

    def on_train_epoch_start(self) -> None:
        self.train_loss.reset()
        self.grad_norm.reset()

    def on_train_epoch_end(self) -> None:
        self.log("train/loss", self.train_loss.compute())
        if self.grad_norm.update_called:
            self.log("train/grad_norm", self.grad_norm.compute())
        self.log("lr", max(group["lr"] for group in self.optimizers().param_groups))

    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None) -> None:
        norm = self.gradient_norm
        if self.optimization.clip is not None:
            parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
            scaler = getattr(self.trainer.precision_plugin, "scaler", None)
            loss_scale = remaining_loss_scale(scaler, optimizer)
            norm = clip_gradients(parameters, self.optimization.clip, norm, loss_scale)
        if norm is not None:
            self.log_gradient_norm(norm.to(self.device, non_blocking=True))  # fsdp may offload gradients to the CPU

    def log_gradient_norm(self, norm: Tensor) -> None:
        """The norm before clipping, a scalar, the same in all processes. It is not finite in a step that the scaler of
        float16 skips, and the mean over the epoch leaves such steps out.
        """
        finite = norm.isfinite()
        self.grad_norm.update(norm.where(finite, 0), finite.float())
        if (self.global_step + 1) % self.trainer.log_every_n_steps == 0:
            self.log("train/step_grad_norm", norm)

    def on_save_checkpoint(self, checkpoint: dict) -> None:
        """Called in every process: each resumes with its own sum of losses, because the order of summation matters."""
        losses = torch.stack([self.train_loss.total, self.train_loss.weight])  # (2,) sum, batches
        parts = [losses.clone() for _ in range(self.trainer.world_size)]
        if len(parts) > 1:
            torch.distributed.all_gather(parts, losses)
        checkpoint["train_loss"] = torch.stack(parts)  # (processes, 2)
        if self.grad_norm.update_called:
            checkpoint["grad_norm"] = torch.stack([self.grad_norm.total, self.grad_norm.weight])  # (2,) sum, steps
        checkpoint["config"] = masked(self.config)
        checkpoint[BEYOND] = self.steps_beyond

    def on_load_checkpoint(self, checkpoint: dict) -> None:
        saved = checkpoint["train_loss"].to(self.device).reshape(-1, 2)
        if ACCUMULATE in checkpoint:  # the weight of a step is its number of micro-batches
            saved = saved * self.trainer.accumulate_grad_batches / checkpoint[ACCUMULATE]
        if len(saved) == self.trainer.world_size:
            self.train_loss.restore(*saved[self.global_rank].clone())
        elif self.global_rank == 0:  # another number of processes, which adds another number of values per step
            self.train_loss.restore(*saved.sum(0) * self.trainer.world_size / len(saved))
        if "grad_norm" in checkpoint:  # not in those of earlier versions
            self.grad_norm.restore(*checkpoint["grad_norm"].to(self.device))

    def configure_model(self) -> None:
        if self.device_mesh is not None:
            options = getattr(self.trainer.strategy, "shard_options", {})
            shard(self.model, self.device_mesh["data_parallel"], **options)

    def configure_optimizers(self):
        optimizer = self.optimization.optimizer(self.model)
        self.total_steps = int(self.trainer.estimated_stepping_batches)
        if self.resumed is not None:
            self.steps_beyond = steps_beyond(self.resumed, self.trainer)
            self.total_steps += self.steps_beyond
        schedule = self.optimization.schedule(optimizer, self.total_steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def share_statistics(model: nn.Module) -> None:
    """Set the running averages of batch norms, which each process computes from its own samples, to those of the first
    process, which are saved: the validation is then of one model.
    """
    for part in model.modules():
        if isinstance(part, _BatchNorm) and part.running_mean is not None:
            torch.distributed.broadcast(part.running_mean, 0)
            torch.distributed.broadcast(part.running_var, 0)


def counters(batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Index (B,) and epoch (B,) of the samples: on the host, if `Task.transfer_batch_to_device` moved the batch."""
    return batch.get("counters") or (batch["index"], batch["epoch"])


class WeightedMean(Metric):
    """A weighted mean over batches and processes, without a check for NaN, which would synchronize with the device.

    torchmetrics' MeanMetric ignores weights if its check for NaN is disabled (1.9). `FiniteLoss` checks for NaN.
    """

    total: Tensor
    weight: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("total", "weight"):
            self.add_state(name, torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, value: Tensor, weight: Tensor | None = None) -> None:
        """value (...), weight (...), 1 by default"""
        weight = torch.ones_like(value) if weight is None else weight
        # not in place: `Trainer.validate` leaves tensors of inference mode, which a later `fit` may not change
        self.total = self.total + (value * weight).sum()
        self.weight = self.weight + weight.sum()

    def restore(self, total: Tensor, weight: Tensor) -> None:
        """Continue from these sums, scalars."""
        self.update(torch.zeros_like(total))  # otherwise torchmetrics warns if a stop after the last step is resumed
        self.total, self.weight = total, weight

    def compute(self) -> Tensor:
        """The weighted mean, a scalar."""
        return self.total / self.weight


class ScoreTable(Metric):
    """Scores of validation samples by their index, gathered over the processes when they are requested.

    Args:
        metrics: names of the metrics that are means of such scores.
    """

    index: list[Tensor]
    rows: list[Tensor]

    def __init__(self, metrics: Sequence[str]) -> None:
        super().__init__()
        self.metrics = tuple(metrics)
        for name in ("index", "rows"):
            self.add_state(name, [], dist_reduce_fx="cat")

    def update(self, index: Tensor, weight: Tensor, *scores: Tensor) -> None:
        """index (B,), weight (B,), 0 for padding, and for each metric (B,)"""
        self.index.append(index)
        self.rows.append(torch.stack([weight, *scores], dim=1).float())  # (B,1+metrics)

    def compute(self) -> Tensor:
        """(N,2+metrics) float64 on the CPU: index, weight, scores; one tensor: torchmetrics squeezes scalars."""
        index, rows = dim_zero_cat(self.index).cpu(), dim_zero_cat(self.rows).cpu()
        return torch.cat([index[:, None].double(), rows.double()], dim=1)

    def scores(self, metric: str) -> SampleScores:
        """The scores of one metric with the indices of their samples, in ascending order, without padding."""
        table = self.compute()
        table = table[table[:, 1] > 0]
        index, order = table[:, 0].long().sort()
        return SampleScores(index, table[order, 2 + self.metrics.index(metric)].float())
