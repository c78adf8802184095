"""Where a resumed run goes on: the epoch and the batch, from the counters that Lightning restores."""

import math

import pytorch_lightning as pl


def batches_per_epoch(trainer: pl.Trainer, loader_length: int) -> int:
    """The loader's batches, or fewer where `limit_train_batches` (a number or a share) says so."""
    limit = trainer.limit_train_batches
    return min(loader_length, limit) if isinstance(limit, int) else int(loader_length * limit)


def batches_done(trainer: pl.Trainer) -> int:
    """Training batches since the very start of the run, through all of its resumptions."""
    return trainer.fit_loop.epoch_loop.batch_progress.total.processed


def resume_position(trainer: pl.Trainer, loader_length: int) -> tuple[int, int]:
    """(epoch, batches of it that are done), right from the moment Lightning has restored its counters; (0, 0) before.

    Batches are counted by forward passes, so accumulation changes nothing here. An epoch that was ended early
    (`max_time`, early stopping) counts as done, as it does for Lightning.
    """
    epochs = trainer.fit_loop.epoch_progress.current
    under_way = epochs.ready > epochs.processed
    batches = trainer.fit_loop.epoch_loop.batch_progress.current.processed if under_way else 0
    if batches >= batches_per_epoch(trainer, loader_length):
        return epochs.processed + 1, 0
    return epochs.processed, batches


def validates_start(trainer: pl.Trainer) -> bool:
    """Whether Lightning's "sanity check" is a whole validation of the model before the first step."""
    return trainer.num_sanity_val_steps == math.inf


class FollowEpoch(pl.Callback):
    """Keeps the training loader's `.epoch` and `.start` (batches to leave out) where the run is, resumed or not.

    Lightning may ask for the loader before it restores its counters (`trainer.estimated_stepping_batches` does that),
    and starts an iterator at once; so the position is set when training starts, and the iterator made anew.
    """

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        loader = trainer.train_dataloader
        position = resume_position(trainer, len(loader))
        if (loader.epoch, loader.start) != position:
            loader.epoch, loader.start = position
            iter(trainer.fit_loop._data_fetcher)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lightning skips this hook where a resumed run enters an epoch halfway, and makes the iterator after it."""
        loader = trainer.train_dataloader
        loader.epoch, loader.start = trainer.current_epoch, 0
