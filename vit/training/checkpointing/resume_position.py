"""The position at which a resumed run continues: epoch and batch, from the counters that Lightning restores."""

import math
from typing import Any

import pytorch_lightning as pl


def batches_per_epoch(trainer: pl.Trainer, loader_length: int) -> int:
    """The number of the loader's batches, or fewer with `limit_train_batches`, a number or a fraction."""
    limit = trainer.limit_train_batches
    return min(loader_length, limit) if isinstance(limit, int) else int(loader_length * limit)


def batches_done(trainer: pl.Trainer) -> int:
    """Number of training batches since the start of the run, all sessions included."""
    return trainer.fit_loop.epoch_loop.batch_progress.total.processed


def resume_position(trainer: pl.Trainer, loader_length: int) -> tuple[int, int]:
    """(epoch, number of its batches that are done); valid once Lightning has restored its counters, (0, 0) before.

    Batches are counted by forward passes, with or without gradient accumulation. An epoch that was ended early
    (`max_time`, early stopping) counts as done, as in Lightning.
    """
    epochs = trainer.fit_loop.epoch_progress.current
    started = epochs.ready > epochs.processed
    batches = trainer.fit_loop.epoch_loop.batch_progress.current.processed if started else 0
    if batches >= batches_per_epoch(trainer, loader_length):
        return epochs.processed + 1, 0
    return epochs.processed, batches


def validates_start(trainer: pl.Trainer) -> bool:
    """Whether Lightning's "sanity check" is a whole validation of the model before the first step."""
    return trainer.num_sanity_val_steps == math.inf


def steps_per_epoch(trainer: pl.Trainer) -> int:
    """Optimizer steps of an epoch."""
    return math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches)


def recount(checkpoint: dict[str, Any], trainer: pl.Trainer) -> None:
    """Convert the finished micro-batches of a checkpoint to the number of micro-batches per epoch of this run.

    If only the accumulation differs, the same optimizer steps are finished; if the batch size differs, the same part of
    the epoch, rounded down to whole steps. Checkpoints of earlier versions state neither and are unchanged.
    """
    now = {STEPS: steps_per_epoch(trainer), ACCUMULATE: trainer.accumulate_grad_batches}
    saved = {name: checkpoint.get(name, value) for name, value in now.items()}
    if saved == now:
        return
    progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
    for counts in (progress["current"], progress["total"]):
        steps = math.ceil(counts["processed"] / saved[ACCUMULATE])
        more = steps * now[STEPS] // saved[STEPS] * now[ACCUMULATE] - counts["processed"]
        counts.update({name: count + more for name, count in counts.items()})  # Lightning compares them


def steps_beyond(checkpoint: dict[str, Any], trainer: pl.Trainer) -> int:
    """Optimizer steps before a checkpoint, minus the steps of the same epochs at the batch size of this run; 0 if the
    batch size has not changed.
    """
    now, saved = steps_per_epoch(trainer), checkpoint.get(STEPS)
    if saved in (None, now):
        return checkpoint.get(BEYOND, 0)
    loop = checkpoint["loops"]["fit_loop"]
    epochs, batches = loop["epoch_progress"]["current"], loop["epoch_loop.batch_progress"]["current"]["processed"]
    started = epochs["ready"] > epochs["processed"]
    steps = math.ceil(batches / checkpoint[ACCUMULATE]) * now // saved if started else 0
    return checkpoint["global_step"] - epochs["processed"] * now - steps


class FollowEpoch(pl.Callback):
    """Sets `.epoch` and `.start` (number of batches to skip) of the training loader to the position of the run.

    Lightning may create the loader and its iterator before it restores its counters, as in
    `trainer.estimated_stepping_batches`; so the position is set when training starts, and the iterator is replaced.
    """

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        checkpoint |= {STEPS: steps_per_epoch(trainer), ACCUMULATE: trainer.accumulate_grad_batches}

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        trainer.fit_loop.setup_data()  # as Lightning does next, for the length of an epoch
        recount(checkpoint, trainer)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        loader = trainer.train_dataloader
        position = resume_position(trainer, len(loader))
        if (loader.epoch, loader.start) != position:
            loader.epoch, loader.start = position
            iter(trainer.fit_loop._data_fetcher)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lightning skips this hook if a resumed run continues within an epoch, and creates the iterator after it."""
        loader = trainer.train_dataloader
        loader.epoch, loader.start = trainer.current_epoch, 0


STEPS, ACCUMULATE, BEYOND = "steps_per_epoch", "accumulate", "steps_beyond"  # entries of a checkpoint
