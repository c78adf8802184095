"""The callback that follows a `Finetune` through the epochs."""

import logging

import pytorch_lightning as pl
from pytorch_lightning.strategies import DDPStrategy

from vit.training.finetune import train_only
from vit.training.lora import is_added

log = logging.getLogger("vit")


class Unfreezing(pl.Callback):
    """Lets every parameter train from its epoch on; until then it has no gradient, so no optimizer state either.

    What trains is a function of the epoch alone: nothing is saved, and a resumed run is right at once. The optimizer
    holds all parameters from the start and passes over those without a gradient.

    Args:
        begins: what `Finetune.begins` says.
        batch_norm: whether batch norms that train follow the batches' statistics.
    """

    def __init__(self, begins: dict[str, int], batch_norm: bool = True) -> None:
        self.begins, self.batch_norm, self.training = begins, batch_norm, -1
        self.checked = False

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lightning enters an epoch halfway without the hook of its start."""
        self.follow(trainer, pl_module)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.follow(trainer, pl_module)

    def follow(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        names = {name for name, epoch in self.begins.items() if epoch <= trainer.current_epoch}
        if len(names) == self.training:
            return
        train_only(pl_module.model, names, self.batch_norm)
        if self.training >= 0 or len(names) < len(self.begins):
            replicate_again(trainer, pl_module)
            numbers = {name: parameter.numel() for name, parameter in pl_module.model.named_parameters()}
            now = sum(numbers[name] for name in names)
            log.info("epoch %d: %s parameters train", trainer.current_epoch + 1, f"{now:,}")
        self.training = len(names)

    def on_before_optimizer_step(self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: object) -> None:
        """After the first backward pass: a layer whose weight is read past it never calls what was added to it."""
        if self.checked:
            return
        self.checked = True
        for name, parameter in pl_module.model.named_parameters():
            if is_added(name) and parameter.requires_grad and parameter.grad is None:
                layer = name.partition(".lora.")[0]
                raise ValueError(
                    f"finetune.lora: the model reads the weight of {layer} without calling the layer, so nothing "
                    "can be added there; name other finetune.lora.matrices, or take finetune=attention_only"
                )


def replicate_again(trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
    """DDP waits for the gradients of what trained when it was made, and shares no others."""
    if isinstance(trainer.strategy, DDPStrategy):
        pl_module.zero_grad(set_to_none=True)  # gradients lie in the old one's memory
        trainer.strategy.model = pl_module
        trainer.strategy.configure_ddp()
