"""Where a resumed run goes on: the epoch and the batch, from the counters that Lightning restores."""

import pytorch_lightning as pl


def batches_per_epoch(trainer: pl.Trainer, loader_length: int) -> int:
    """The loader's batches, or fewer where `limit_train_batches` (a number or a share) says so."""
    limit = trainer.limit_train_batches
    return min(loader_length, limit) if isinstance(limit, int) else int(loader_length * limit)


def resume_position(trainer: pl.Trainer, loader_length: int) -> tuple[int, int]:
    """(epoch, batches of it that are done), to be read in `train_dataloader()`; (0, 0) in a new run.

    Lightning has restored its counters by then and asks for the iterator right after, before any hook that could still
    move it. Batches are counted by forward passes, so accumulation changes nothing here.
    """
    return divmod(batches_done(trainer), max(1, batches_per_epoch(trainer, loader_length)))


def batches_done(trainer: pl.Trainer) -> int:
    """Training batches since the very start of the run, through all of its resumptions."""
    return trainer.fit_loop.epoch_loop.batch_progress.total.processed


class FollowEpoch(pl.Callback):
    """Tells the training loader which epoch begins, from its first batch on.

    Lightning calls this hook at the start of every epoch but the one that a resumed run enters halfway, and makes the
    epoch's iterator only afterwards.
    """

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        loader = trainer.train_dataloader
        loader.epoch, loader.start = trainer.current_epoch, 0
