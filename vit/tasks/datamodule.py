"""One thin LightningDataModule around any source."""

from collections.abc import Callable, Iterable

from pytorch_lightning import LightningDataModule


class Batches(LightningDataModule):
    """Gives Lightning the loaders of a data set; `FollowEpoch` starts the training loader where a resumed run stood.

    Args:
        train: `(rank, world) -> loader`, a pass per epoch.
        val: `(rank, world) -> loader` over every validation sample once.

    `timeout`: seconds that a loading process may take for a batch; None for no limit.
    """

    timeout: float | None = None

    def __init__(self, train: Callable[[int, int], Iterable], val: Callable[[int, int], Iterable]):
        super().__init__()
        self._train, self._val = train, val
        self._loaders: list[Iterable] = []

    def train_dataloader(self) -> Iterable:
        return self._prepared(self._train(self.trainer.global_rank, self.trainer.world_size))

    def val_dataloader(self) -> Iterable:
        return self._prepared(self._val(self.trainer.global_rank, self.trainer.world_size))

    def _prepared(self, loader: Iterable) -> Iterable:
        loader.timeout = self.timeout or 0
        self._loaders.append(loader)
        return loader

    def close(self) -> None:
        """Ends the worker processes."""
        for loader in self._loaders:
            loader.close()

    @property
    def bad(self) -> dict[str, str]:
        """Name and reason of every image that was left out so far, in this process."""
        return {name: reason for loader in self._loaders for name, reason in loader.bad.items()}
