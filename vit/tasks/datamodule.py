"""One thin LightningDataModule around any source."""

from collections.abc import Callable, Iterable

from pytorch_lightning import LightningDataModule


class Batches(LightningDataModule):
    """Gives Lightning the loaders of a data set, started where a resumed run stood.

    Args:
        train: `(rank, world) -> loader` over epochs, with `.epoch` and `.start` (batches to leave out of its first pass).
        val: `(rank, world) -> loader` over every validation sample once.
    """

    def __init__(self, train: Callable[[int, int], Iterable], val: Callable[[int, int], Iterable]):
        super().__init__()
        self._train, self._val = train, val

    def train_dataloader(self) -> Iterable:
        trainer = self.trainer
        loader = self._train(trainer.global_rank, trainer.world_size)
        batches = trainer.fit_loop.epoch_loop.batch_progress.current
        loader.epoch = trainer.current_epoch
        loader.start = batches.ready if batches.ready < len(loader) else 0
        return loader

    def val_dataloader(self) -> Iterable:
        return self._val(self.trainer.global_rank, self.trainer.world_size)
