"""Masked-token pre-training with the question whether two sentences belong together (arXiv 1810.04805)."""

import torch.nn.functional as F
from torch import Tensor

from vit.tasks.base import Task


class MaskedTokens(Task):
    """Trains a model that tells hidden tokens; the loss is the mean over those, plus that of the pairs.

    `MaskedText.forward` says what the model must take and give.
    """

    unit = "pairs"
    means = ("val_loss", "val_tokens", "val_pairs")

    @property
    def metric_names(self) -> list[str]:
        return ["val/loss", "val/token_accuracy", "val/pair_accuracy", "train/loss"]

    def on_before_batch_transfer(self, batch: dict[str, Tensor], dataloader_idx: int) -> dict[str, Tensor]:
        """Where tokens are hidden is found while the batch is still in main memory: asking a GPU would wait for it."""
        masked = batch.pop("masked").flatten()
        positions = (masked >= 0).nonzero()[:, 0]  # (M,)
        return batch | {"positions": positions, "hidden": masked[positions]}

    def forward(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """-> logits of the hidden tokens (M,V), of the pairs (B,2)"""
        return self.model(batch["source"], batch["source_mask"], batch["segment"], batch["positions"])

    def training_loss(self, batch: dict[str, Tensor], step: int, micro: int) -> Tensor:
        tokens, pairs = self(batch)
        hidden = F.cross_entropy(tokens.float(), batch["hidden"], reduction="sum")
        follows = F.cross_entropy(pairs.float(), batch["next"], reduction="sum")
        return hidden / batch["tokens"] + follows / batch["samples"]

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        tokens, pairs = self(batch)
        hidden, real = batch["hidden"], batch["weight"]  # (M,), (B,)
        owner = batch["positions"] // batch["source"].shape[1]  # (M,) the row of each hidden token
        weight = real[owner]
        token_loss = F.cross_entropy(tokens.float(), hidden, reduction="none")
        self.val_loss.update(token_loss, weight)
        self.val_tokens.update((tokens.argmax(-1) == hidden).float(), weight)
        self.val_pairs.update((pairs.argmax(-1) == batch["next"]).float(), real)
        self.log("val/loss", self.val_loss)
        self.log_dict({"val/token_accuracy": self.val_tokens, "val/pair_accuracy": self.val_pairs}, prog_bar=True)
