"""Graceful stop: a stop signal to any rank ends the run between two steps, with a checkpoint."""

import signal
import sys
import time

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Checkpoint

from vit.training.fault_tolerance.interrupts import Interrupted, StopSignals, install_handlers


class Agreement:
    """The maximum over all ranks of a value that each passes, returned in all ranks at the same call.

    All ranks must make the same calls in the same order. They communicate about once per `interval` seconds, so that
    the cost does not depend on the duration of a step.

    Args:
        most: maximum number of calls between two communications.
    """

    def __init__(self, interval: float = 1.0, most: int = 1000):
        self.interval, self.most = interval, most
        self._calls, self._every, self._last = 0, 1, time.monotonic()

    def highest(self, value: int, trainer: pl.Trainer, now: bool = False) -> int:
        """The maximum, or 0 in a call without communication; `now` forces it and must be equal in all ranks."""
        self._calls += 1
        if self._calls < self._every and not now:
            return 0
        per_call = (time.monotonic() - self._last) / self._calls
        shared = torch.tensor([float(value), per_call], device=trainer.strategy.root_device)
        torch.distributed.all_reduce(shared, op=torch.distributed.ReduceOp.MAX)
        value, per_call = shared.tolist()
        self._every = min(self.most, max(1, int(self.interval / max(per_call, 1e-6))))
        self._calls, self._last = 0, time.monotonic()
        return int(value)


class GracefulStop(Checkpoint):
    """Raises `Interrupted` after a stop signal, at the end of an optimizer step or of a validation batch.

    Any rank may receive the signal; all stop at the same step. Lightning's handlers are not used: its handler of
    SIGTERM communicates with the other ranks, which may be at another step, and its handler of SIGUSR1 under SLURM
    saves and resubmits the job by default. `GracefulStop` is a `Checkpoint` callback because Lightning runs these last,
    when all other callbacks have finished the step.
    """

    def __init__(self, signals: StopSignals | None = None, interval: float = 1.0):
        self.signals = signals or StopSignals()
        self._agreement = Agreement(interval)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None
        self.signals.rank, self.signals.deferred, self.signals.begun = trainer.global_rank, True, True
        self.signals.verbose &= trainer.is_global_zero
        connector = trainer._signal_connector
        connector.register_signal_handlers = lambda: None
        connector._original_handlers = install_handlers(self.signals.handle)  # Lightning restores them at its very end

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        loop = trainer.fit_loop
        # accumulated gradients are not saved; after the last batch of an epoch, its end comes before the stop
        if not loop._should_accumulate() and not loop.epoch_loop.batch_progress.is_last_batch:
            self._stop_if_requested(trainer)

    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: object,
        batch: object,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self._stop_if_requested(trainer)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._stop_if_requested(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.signals.deferred = False
        self._stop_if_requested(trainer, now=True)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """The end of a resumed run that had no steps left, for which Lightning does not call `on_train_end`.

        Raises:
            Interrupted: a stop signal has been received.
        """
        if self.signals.deferred:
            self.signals.deferred = False
            if self.signals.requested:
                raise Interrupted(self.signals.requested, agreed=False, rank=trainer.global_rank)

    def _stop_if_requested(self, trainer: pl.Trainer, now: bool = False) -> None:
        signum = self.signals.requested or 0
        if trainer.world_size > 1:
            signum = self._agreement.highest(signum, trainer, now)
        if signum:
            if trainer.is_global_zero and not self.signals.requested:
                print(f"\n{signal.Signals(signum).name}: stopping, because another rank received it", file=sys.stderr)
            raise Interrupted(signum, agreed=True, rank=trainer.global_rank)
