"""A LightningDataModule around any loaders."""

from collections.abc import Callable, Iterable

import torch.distributed as dist
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
        self._bad_elsewhere: dict[str, str] = {}  # of the other processes

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

    def teardown(self, stage: str) -> None:
        """Gather the skipped samples of all processes at the end of training."""
        if stage == "fit" and self.trainer.world_size > 1:
            parts = [None] * self.trainer.world_size
            dist.all_gather_object(parts, self.bad)
            self._bad_elsewhere = {name: reason for part in parts for name, reason in part.items()}

    @property
    def bad(self) -> dict[str, str]:
        """Name and reason of every sample that was skipped so far: in this process, after training in all processes."""
        own = {name: reason for loader in self._loaders for name, reason in loader.bad.items()}
        return own | self._bad_elsewhere


class DeviceBatches(Batches):
    """Batches of data sets that are on the device (`data.cache=device`)."""

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Select the images of the batch, unless it already has them, as a filler row for unreadable samples has."""
        return batch["images"].add_images(batch) if "images" in batch else batch
