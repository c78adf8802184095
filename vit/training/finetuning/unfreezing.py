"""Gradual unfreezing: the callback that applies a `Finetune` in each epoch."""

import logging

import pytorch_lightning as pl
from pytorch_lightning.strategies import DDPStrategy

from vit.training.finetuning.finetune import train_only
from vit.weights.training_checkpoint import is_added

log = logging.getLogger("vit")


class Unfreezing(pl.Callback):
    """Unfreezes every parameter in its first epoch. Until then it has no gradient and no optimizer state.

    The set of trained parameters is a function of the epoch alone, so a resumed run needs no saved state. The optimizer
    holds all parameters from the start and skips those without a gradient.

    Args:
        begins: first epoch of every trained parameter, from `Finetune.begins`.
        batch_norm: whether batch norms of trained layers update their running statistics.
    """

    def __init__(self, begins: dict[str, int], batch_norm: bool = True) -> None:
        self.begins, self.batch_norm, self.training = begins, batch_norm, -1
        self.checked = False

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lightning calls no `on_train_epoch_start` when it resumes within an epoch."""
        self.unfreeze(trainer, pl_module)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.unfreeze(trainer, pl_module)

    def unfreeze(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Train the parameters whose first epoch has begun."""
        names = {name for name, epoch in self.begins.items() if epoch <= trainer.current_epoch}
        if len(names) == self.training:
            return
        train_only(pl_module.model, names, self.batch_norm)
        if self.training >= 0 or len(names) < len(self.begins):
            replicate_again(trainer, pl_module)
            numbers = {name: parameter.numel() for name, parameter in pl_module.model.named_parameters()}
            now = sum(numbers[name] for name in names)
            log.info("epoch %d: %s parameters are trained", trainer.current_epoch + 1, f"{now:,}")
        self.training = len(names)

    def on_before_optimizer_step(self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: object) -> None:
        """Check after the first backward pass that all LoRA layers have gradients.

        Raises:
            ValueError: the model reads the weight of such a layer without calling the layer.
        """
        if self.checked:
            return
        self.checked = True
        for name, parameter in pl_module.model.named_parameters():
            if is_added(name) and parameter.requires_grad and parameter.grad is None:
                layer = name.partition(".lora.")[0]
                raise ValueError(
                    f"finetune.lora: the model reads the weight of {layer} without calling the layer, so LoRA "
                    "cannot be added to it; set other finetune.lora.matrices, or finetune=attention_only"
                )


def replicate_again(trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
    """Wrap the model in DDP again: DDP only reduces the gradients of parameters that were trained when it was built."""
    if isinstance(trainer.strategy, DDPStrategy):
        pl_module.zero_grad(set_to_none=True)  # the gradients are views of the old buckets
        trainer.strategy.model = pl_module
        trainer.strategy.configure_ddp()
