"""Stopping when no epoch is better any more."""

import pytorch_lightning as pl
from pytorch_lightning.callbacks import EarlyStopping

from vit.training.checkpointing.resume import validates_start


class Patience(EarlyStopping):
    """Lightning's `EarlyStopping`, which counts epochs without a better one than the start too, where that was
    validated (the trainer's "sanity check").
    """

    @property
    def state_key(self) -> str:
        return super().state_key.replace(type(self).__name__, EarlyStopping.__name__)  # as in earlier checkpoints

    def on_sanity_check_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if validates_start(trainer) and self.monitor in trainer.callback_metrics:
            self.best_score = trainer.callback_metrics[self.monitor].squeeze().clone()
