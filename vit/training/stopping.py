"""Stopping on request: Ctrl-C and SIGTERM end a run between two steps, with a checkpoint."""

import signal
import sys

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Checkpoint

EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


class Interrupted(SystemExit):
    """A run that was asked to stop. `agreed`: every process stops at this same step, so that they can save together.

    Uncaught, it ends the process with 130 (Ctrl-C) or 143 (SIGTERM); processes other than the first with 0, because
    Lightning kills the first one with SIGKILL when another ends with an error.
    """

    def __init__(self, signum: int, agreed: bool, rank: int = 0):
        super().__init__(EXIT_CODES[signum] if rank == 0 else 0)
        self.signal, self.agreed = signal.Signals(signum), agreed


class GracefulStop(Checkpoint):
    """Turns SIGINT and SIGTERM into `Interrupted` at the end of a step; a second Ctrl-C stops at once.

    With several processes any one of them may get the signal: they compare notes every `every` steps. This replaces
    Lightning's handler, which waits inside the signal for processes that never come, and its broadcast in every step.
    As a kind of checkpoint callback it runs after the ordinary ones, when the step is complete for them too.
    """

    def __init__(self, every: int = 8):
        self.every = every
        self.requested: int | None = None
        self._previous: dict[int, object] = {}
        self._rank = 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.requested, self._rank = None, trainer.global_rank
        trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None
        self._previous = {signum: signal.signal(signum, self._handle) for signum in EXIT_CODES}

    def _handle(self, signum: int, frame: object) -> None:
        if self.requested is not None and signum == signal.SIGINT:
            raise Interrupted(signum, agreed=False, rank=self._rank)
        self.requested = signum
        if self._rank == 0:
            print(
                f"\n{signal.Signals(signum).name}: stopping after this step and saving"
                f"{'; Ctrl-C again stops at once, without saving' if signum == signal.SIGINT else ''}",
                file=sys.stderr,
            )

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        loop = trainer.fit_loop
        # gradients that wait for more batches are not saved; after the last batch the epoch's end comes first
        if not loop._should_accumulate() and not loop.epoch_loop.batch_progress.is_last_batch:
            self._stop_if_asked(trainer, batch_idx)

    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: object,
        batch: object,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if not trainer.sanity_checking:
            self._stop_if_asked(trainer, batch_idx)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._stop_if_asked(trainer, 0)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._stop_if_asked(trainer, 0)
        self._restore()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._restore()

    def _stop_if_asked(self, trainer: pl.Trainer, counter: int) -> None:
        asked = self.requested or 0
        if trainer.world_size > 1:
            if counter % self.every:
                return
            asked = highest(asked, trainer)
        if asked:
            raise Interrupted(asked, agreed=True, rank=self._rank)

    def _restore(self) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)
        self._previous = {}


def highest(value: int, trainer: pl.Trainer) -> int:
    shared = torch.tensor(value, device=trainer.strategy.root_device)
    torch.distributed.all_reduce(shared, op=torch.distributed.ReduceOp.MAX)
    return int(shared)
