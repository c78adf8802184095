"""Masked language modelling with next sentence prediction (BERT, arXiv 1810.04805)."""

import torch.nn.functional as F
from torch import Tensor, nn

from vit.tasks.base import Optimization, Task


class MaskedTokens(Task):
    """Trains a `MaskedText` model on the mean loss of the masked tokens plus the mean loss of next sentence prediction.

    Args:
        token_loss, pair_loss: weights of the two losses.
    """

    unit = "pairs"
    means = ("val_token_loss", "val_pair_loss", "val_tokens", "val_pairs")

    def __init__(
        self, model: nn.Module, optimization: Optimization, seed: int = 0, config: dict | None = None,
        token_loss: float = 1.0, pair_loss: float = 1.0,
    ) -> None:
        super().__init__(model, optimization, seed, config)
        self.weights = token_loss, pair_loss

    @property
    def metric_names(self) -> list[str]:
        return ["val/loss", "val/perplexity", "val/token_accuracy", "val/pair_accuracy", "train/loss"]

    def on_before_batch_transfer(self, batch: dict[str, Tensor], dataloader_idx: int) -> dict[str, Tensor]:
        """Find the masked positions while the batch is in host memory, because `nonzero` would synchronize a GPU."""
        masked = batch.pop("masked").flatten()
        positions = (masked >= 0).nonzero()[:, 0]  # (M,)
        return batch | {"positions": positions, "labels": masked[positions]}

    def forward(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """batch -> logits of the masked tokens (M,V) and of next sentence prediction (B,2)"""
        return self.model(batch["source"], batch["source_mask"], batch["segment"], batch["positions"])

    def training_loss(self, batch: dict[str, Tensor], step: int, micro: int) -> Tensor:
        """ids (B,N) -> a scalar: the weighted sum of the loss per masked token and that per pair of sentences (arXiv
        1810.04805)
        """
        tokens, pairs = self(batch)
        token_loss = F.cross_entropy(tokens.float(), batch["labels"], reduction="sum")
        pair_loss = F.cross_entropy(pairs.float(), batch["next"], reduction="sum")
        return self.weights[0] * token_loss / batch["tokens"] + self.weights[1] * pair_loss / batch["samples"]

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        tokens, pairs = self(batch)
        labels, real = batch["labels"], batch["weight"]  # (M,), (B,)
        owner = batch["positions"] // batch["source"].shape[1]  # (M,) the row of each masked token
        weight = real[owner]
        token_loss = F.cross_entropy(tokens.float(), labels, reduction="none")
        self.val_token_loss.update(token_loss, weight)
        self.val_pair_loss.update(F.cross_entropy(pairs.float(), batch["next"], reduction="none"), real)
        self.val_tokens.update((tokens.argmax(-1) == labels).float(), weight)
        self.val_pairs.update((pairs.argmax(-1) == batch["next"]).float(), real)

    def on_validation_epoch_end(self) -> None:
        means = self.val_token_loss, self.val_pair_loss
        self.log("val/loss", sum(weight * mean.compute() for weight, mean in zip(self.weights, means, strict=True)))
        self.log("val/perplexity", self.val_token_loss.compute().exp())  # of masked tokens; pairs have no perplexity
        for mean in means:
            mean.reset()
        self.log_dict({"val/token_accuracy": self.val_tokens, "val/pair_accuracy": self.val_pairs}, prog_bar=True)
