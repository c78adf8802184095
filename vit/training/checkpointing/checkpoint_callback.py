"""The Lightning callback that saves checkpoints."""

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Checkpoint

from vit.files.atomic import CheckpointError, remove_stale_files, write_atomically
from vit.files.checkpoints import BEST, IS_BEST, LAST, verify
from vit.training.checkpointing.checkpoint import saved_step, settle
from vit.training.checkpointing.resume_position import batches_done, validates_start
from vit.training.fault_tolerance.interrupts import Interrupted
from vit.training.fault_tolerance.nan_guard import NonFiniteError
from vit.training.monitoring.paired_comparison import MARGIN, SampleScores, is_clearly_better, no_scores

log = logging.getLogger(__name__)

LOSS = "val/loss"
START = -1  # `best_epoch`, which counts from 0, of the model before the first step


class Checkpoints(Checkpoint):
    """Saves `last.ckpt` after every epoch, every `every_n_steps` optimizer steps and on a stop, and `best.ckpt`.

    The previous `last.ckpt` becomes `previous.ckpt`. Checkpoints are saved only between two optimizer steps, so that a
    resumed run repeats nothing. Other files in the folder are not touched.

    If the trainer validates the model before the first step (its "sanity check" over all batches), that model is a
    candidate for `best.ckpt` too, with `best_epoch` = `START`: fine-tuning can make a pretrained model worse. The best
    of many epochs has a better score on few validation samples by chance, so an epoch replaces the start only if it is
    better by more than `margin` standard errors of the paired difference (`is_clearly_better`).

    Args:
        monitor: the metric that selects `best.ckpt`; None for no `best.ckpt`.
        mode: "max" if higher values of the metric are better, "min" if lower.
        margin: 0 for any better score.
        sample_scores: metric -> its scores of the samples of the last validation, or None for a metric without such
            scores, where any better score replaces the start. Called in every process.
        rescored: why the scores of the epochs before a resumed one are not comparable with those that follow, so that
            the best epoch is one of the latter, if there are any; empty where they are.

    Raises:
        ValueError: another mode.
    """

    def __init__(
        self,
        folder: str | Path,
        monitor: str | None = None,
        mode: str = "max",
        every_n_steps: int | None = None,
        margin: float = MARGIN,
        sample_scores: Callable[[str], SampleScores | None] = no_scores,
        rescored: str = "",
    ):
        if mode not in ("min", "max"):
            raise ValueError(f"checkpoint mode is {mode!r}, but must be 'min' or 'max'")
        self.folder, self.monitor, self.mode, self.every_n_steps = Path(folder), monitor, mode, every_n_steps
        self.margin, self.sample_scores, self.rescored = margin, sample_scores, rescored
        self.start_scores: SampleScores | None = None
        self.best_score: float | None = None
        self.best_loss: float | None = None  # validation loss of the best epoch
        self.best_epoch: int | None = None
        self.best_step: int | None = None
        self.last_score: float | None = None  # score of the last validated epoch
        self.last_epoch: int | None = None
        self._between_steps = self._validated = self._improved = False
        self._saved_batches = 0

    @property
    def last_path(self) -> Path:
        return self.folder / LAST

    @property
    def best_path(self) -> Path:
        """The best epoch's checkpoint, or the last one without a monitored metric."""
        return self.folder / (BEST if self.best_score is not None else LAST)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Fail at the start, not after the first epoch, if the folder is not writable."""
        if stage == "fit" and trainer.is_global_zero:
            probe = self.folder / "probe"
            write_atomically(probe, b"x")
            probe.unlink()
            remove_stale_files(self.folder)
            if any(self.folder.glob("*.ckpt")):  # of a resumed run
                settle(self.folder)

    def on_sanity_check_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if validates_start(trainer) and self.monitor in trainer.callback_metrics:  # train/loss is not there yet
            self._improved = self._improves(trainer, START)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save the initial model if it was validated: only now do all callbacks have their initial state."""
        self._between_steps, self._saved_batches = False, batches_done(trainer)
        if self._improved:
            self.save_last(trainer)
            self._improved = False
        if self.rescored and self.best_score is not None:
            log.warning("%s of the epochs so far is not comparable with that of the next ones (%s); the best epoch is "
                        "chosen among those that follow", self.monitor, self.rescored)
            self._forget_best()
        if trainer.is_global_zero and self.best_score is not None and (reason := self._best_is_lost()):
            log.warning("%s; the best epoch is chosen among those that follow", reason)
            self._forget_best()

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._between_steps = False

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loop = trainer.fit_loop
        self._between_steps = not loop._should_accumulate()
        due = self.every_n_steps and trainer.global_step % self.every_n_steps == 0
        if due and self._between_steps and not loop.epoch_loop.batch_progress.is_last_batch:
            self.save_last(trainer)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._validated = not trainer.sanity_checking

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._improved = self._validated and self._improves(trainer, trainer.current_epoch)
        self._validated = False
        self.save_last(trainer)
        self._improved = False

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Save the steps since the last checkpoint, if the exception came between two optimizer steps.

        Saving needs all processes; all of them are here only if they agreed to stop, which they do between two steps.
        """
        agreed = isinstance(exception, Interrupted) and exception.agreed
        harmless = not isinstance(exception, (CheckpointError, NonFiniteError, Interrupted))
        alone = trainer.world_size == 1 and self._between_steps and harmless
        if not (agreed or alone) or batches_done(trainer) == self._saved_batches:
            return
        try:
            self.save_last(trainer)
        except (CheckpointError, NonFiniteError) as error:
            log.error("%s", error)

    def save_last(self, trainer: pl.Trainer) -> None:
        trainer.save_checkpoint(self.last_path)
        self._saved_batches = batches_done(trainer)

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        checkpoint[IS_BEST] = self._improved
        if trainer.validating:
            validate_again(checkpoint)

    def final_weights(self) -> tuple[Path, float | None, int | None]:
        """(path, score, epoch) of the checkpoint to use: the best one, or the last with a warning if that is lost.

        Epochs count from 1; 0 is the model before the first step.
        """
        if self.best_score is not None and (reason := self._best_is_lost()) is None:
            return self.best_path, self.best_score, counted(self.best_epoch)
        if self.best_score is not None:
            log.warning("%s; the model is made from %s, of epoch %s", reason, self.last_path, counted(self.last_epoch))
        return self.last_path, self.last_score, counted(self.last_epoch)

    def _forget_best(self) -> None:
        self.best_score = self.best_loss = self.best_epoch = self.best_step = self.start_scores = None

    def _best_is_lost(self) -> str | None:
        """Why `best.ckpt` does not contain the best epoch's weights; None if it does."""
        path = self.folder / BEST
        if reason := verify(path):
            epoch = counted(self.best_epoch)
            return f"the checkpoint of the best epoch so far ({epoch}) cannot be used: {path}: {reason}"
        step = saved_step(self.folder, BEST)
        if None in (step, self.best_step) or step == self.best_step:  # None: saved by an earlier version
            return None
        best = f"the best epoch so far ({counted(self.best_epoch)}) ended at step {self.best_step}"
        return f"{path} is of optimizer step {step}, but {best}"

    def _improves(self, trainer: pl.Trainer, epoch: int) -> bool:
        """Whether the model of this epoch is better than the best one so far, which it then replaces."""
        if self.monitor is None:
            return False
        if self.monitor not in trainer.callback_metrics:
            known = ", ".join(sorted(trainer.callback_metrics)) or "none"
            raise ValueError(f"checkpoints follow {self.monitor!r}, but the run has no such metric; it has: {known}")
        score = float(trainer.callback_metrics[self.monitor])
        self.last_score, self.last_epoch = score, epoch
        loss = float(trainer.callback_metrics[LOSS]) if LOSS in trainer.callback_metrics else None
        scores = self.sample_scores(self.monitor)  # in every process, also where another check below fails first
        if math.isnan(score) or not self._beats_best(score, loss) or not self._beats_start(scores):
            return False
        if epoch == START:
            self.start_scores = scores
        self.best_score, self.best_loss = score, loss
        self.best_epoch, self.best_step = epoch, trainer.global_step
        return True

    def _beats_start(self, scores: SampleScores | None) -> bool:
        if scores is None or self.start_scores is None:
            return True
        return is_clearly_better(scores, self.start_scores, self.mode, self.margin)

    def _beats_best(self, score: float, loss: float | None) -> bool:
        """Whether the score is better than the best one. Small validation sets often give equal scores: then the lower
        validation loss decides, then the later epoch. Only a better score replaces the model before the first step.
        """
        if self.best_score is None:
            return True
        if score != self.best_score:
            return (score > self.best_score) == (self.mode == "max")
        if self.best_epoch == START:
            return False
        return None in (loss, self.best_loss) or loss <= self.best_loss

    def state_dict(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in STATE}
        if self.start_scores is not None:
            values[START_SCORES] = {"index": self.start_scores.index, "score": self.start_scores.score}
        return values

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Checkpoints of earlier versions have no scores of the start: there any better score replaces it."""
        for name in STATE:
            setattr(self, name, state.get(name))
        if START_SCORES in state:
            self.start_scores = SampleScores(**state[START_SCORES])


def counted(epoch: int | None) -> int | None:
    """The epoch as it is displayed, counted from 1; 0 is before training, None unknown."""
    return None if epoch is None else epoch + 1


START_SCORES = "start_scores"
STATE = ("best_score", "best_loss", "best_epoch", "best_step", "last_score", "last_epoch")


def validate_again(checkpoint: dict[str, Any]) -> None:
    """Change a checkpoint saved during a validation so that the resumed run repeats the whole validation.

    Lightning would skip the rest of it. With these counters it is in the first batch.
    """
    progress = checkpoint["loops"]["fit_loop"]["epoch_loop.val_loop.batch_progress"]
    progress["total"].update(ready=1, started=1, processed=0, completed=0)
    progress["current"].update(ready=0, started=0, processed=0, completed=0)
    progress["is_last_batch"] = False
