"""Early stopping."""

from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import EarlyStopping

from vit.training.checkpointing.resume_position import validates_start


class Patience(EarlyStopping):
    """Lightning's `EarlyStopping`, which also compares with the model before the first step.

    That model is validated if the trainer's "sanity check" is a whole validation, as in fine-tuning.

    Args:
        rescored: whether the scores of the epochs before a resumed one are not comparable with those that follow.
    """

    def __init__(self, monitor: str, patience: int = 3, mode: str = "min", rescored: bool = False) -> None:
        super().__init__(monitor, patience=patience, mode=mode)
        self.rescored = rescored

    @property
    def state_key(self) -> str:
        return super().state_key.replace(type(self).__name__, EarlyStopping.__name__)  # as in earlier checkpoints

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The state without its patience, which a resumed run may change."""
        own = {"patience": self.patience, **({"best_score": self.best_score, "wait_count": 0} if self.rescored else {})}
        super().load_state_dict({**state_dict, **own})

    def on_sanity_check_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if validates_start(trainer) and self.monitor in trainer.callback_metrics:
            self.best_score = trainer.callback_metrics[self.monitor].squeeze().clone()
