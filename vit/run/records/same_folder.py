"""A run ends where its folder was moved, removed or replaced, before it writes anything there."""

from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer

from vit.run.records.folder import RunFolder


class SameFolder(Callback):
    """Checks the run folder before the other callbacks, which follow, write into it.

    Raises:
        CheckpointError: in these hooks of the first process, as `RunFolder.check_in_place`.
    """

    def __init__(self, folder: RunFolder):
        self.folder = folder

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.folder.check_in_place()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.folder.check_in_place()

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self.folder.check_in_place()
