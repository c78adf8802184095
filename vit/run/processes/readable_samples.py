"""A run of several processes ends if none of them can read a sample of a split, as a run of one process does."""

from collections.abc import Mapping
from typing import Protocol

import torch
from pytorch_lightning import Callback, LightningModule, Trainer

from vit.data import BadImage
from vit.data.batching.loading import Samples
from vit.messages import number_of


class Loader(Protocol):
    dataset: Samples
    bad: Mapping[str, str]  # name -> reason of the samples that this process has skipped


class ReadableSamples(Callback):
    """Compares the number of samples that all processes have skipped with that of the split, after each pass. A loader
    by itself finds only that its process has skipped all of them.

    Raises:
        BadImage: all samples are unreadable; in all processes.
    """

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        check_readable(trainer, trainer.train_dataloader)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        check_readable(trainer, trainer.val_dataloaders)


def check_readable(trainer: Trainer, loader: Loader) -> None:
    """Raises BadImage, in all processes, if they have skipped all samples of the data set between them."""
    count = torch.tensor(len(loader.bad), device=trainer.strategy.root_device)
    torch.distributed.all_reduce(count)
    if int(count) < len(loader.dataset):  # a sample that several processes have skipped counts more than once
        return
    parts = [None] * trainer.world_size
    torch.distributed.all_gather_object(parts, dict(loader.bad))
    bad = {name: reason for part in parts for name, reason in part.items()}
    if len(bad) >= len(loader.dataset):
        name, reason = next(iter(bad.items()))
        samples = number_of(len(bad), loader.dataset.unit.removesuffix("s"))
        raise BadImage(name, f"{reason}; all {samples} are unreadable")
