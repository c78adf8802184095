"""Lightning callbacks that average the weights, validate with the average and save both in every checkpoint.

Lightning's `EMAWeightAveraging` is not used: it does not support sharded models, and it holds a second copy of the
whole model, frozen parameters included.
"""

from typing import Any

import pytorch_lightning as pl
import torch

from vit.training.averaging.ema import EpochAverage, WeightAverage


class AverageWeights(pl.Callback):
    """Exponential moving average of the weights of `pl_module.model`; validation uses it, checkpoints save both.

    In a checkpoint file the average is `callbacks.AverageWeights.average`, under the unwrapped model's names.
    """

    def __init__(self, decay: float, warmup: bool = True):
        self.decay, self.warmup = decay, warmup
        self.average: WeightAverage | None = None
        self._restored: dict[str, torch.Tensor] | None = None
        self._step = 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Only from here on are the weights on their device, sharded and restored."""
        self.average = WeightAverage(pl_module.model, self.decay, self.warmup)
        self._step = trainer.global_step
        if self._restored is not None:
            self.average.load_state_dict(self._restored)
            self._restored = None

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step != self._step:  # unchanged while gradients accumulate
            self._step = trainer.global_step
            self.average.update(self._step)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.average is not None:  # the sanity check comes before training
            self.average.swap_in()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._swap_out()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._swap_out()  # before the checkpoint callback, which comes last, saves the weights

    def _swap_out(self) -> None:
        if self.average is not None and self.average.swapped:
            self.average.swap_out()

    def state_dict(self) -> dict[str, Any]:
        return {"average": self.average.state_dict()} if self.average is not None else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._restored = state.get("average")


class AverageEpochs(AverageWeights):
    """The mean of the weights at the end of the last `epochs` epochs ("checkpoint averaging", arXiv 1706.03762)."""

    def __init__(self, epochs: int):
        super().__init__(0.0)
        self.epochs = epochs

    @property
    def state_key(self) -> str:
        return AverageWeights.__name__  # a run has one average, saved under one key

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.average = EpochAverage(pl_module.model, self.epochs)
        if self._restored is not None:
            self.average.load_state_dict(self._restored, self._snapshots)
            self._restored = None

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Does nothing: a snapshot is added once per epoch."""

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.average is not None:
            self.average.add_snapshot(trainer.global_step)
        super().on_validation_start(trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | ({"snapshots": self.average.snapshots_dict()} if self.average else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._snapshots = state.get("snapshots", [])
