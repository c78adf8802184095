"""A LightningDataModule around any loaders."""

from collections.abc import Callable, Iterable

from pytorch_lightning import LightningDataModule

from vit.data.images.dataset import Batch


class Batches(LightningDataModule):
    """Training and validation loaders; `FollowEpoch` sets the position of the training loader in a resumed run.

    Args:
        train: `(rank, world) -> loader` over one epoch.
        val: `(rank, world) -> loader` over all validation samples.

    `timeout` is the maximum number of seconds that a worker process may take per batch; None for no limit.
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
        loader.pin_memory = self.trainer.strategy.root_device.type == "cuda"
        self._loaders.append(loader)
        return loader

    def close(self) -> None:
        """Stop the worker processes."""
        for loader in self._loaders:
            loader.close()

    @property
    def bad(self) -> dict[str, str]:
        """Name and reason of every sample that was skipped so far in this process."""
        return {name: reason for loader in self._loaders for name, reason in loader.bad.items()}


class DeviceBatches(Batches):
    """Batches of data sets that are on the device (`data.cache=device`)."""

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Select the images of the batch, unless it already has them, as a filler row for unreadable samples has."""
        return batch["images"].add_images(batch) if "images" in batch else batch
