"""Sequence to sequence: lines or images in, texts out; the same step for translation and for reading pictures."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from vit.data.text.tokenizers import PAD, Tokenizer
from vit.evaluation import text_metrics
from vit.generation import Generation, generate
from vit.tasks.base import Optimizing, Task
from vit.tasks.loss import TextLoss

log = logging.getLogger("vit")

WRITTEN = ("exact_match", "cer", "bleu")  # of the texts written while validating


@dataclass(frozen=True)
class Writing:
    """The validation texts that a model writes each epoch.

    Args:
        references: what should be written for each row of the validation data.
        decode: how it will write once it is trained; while validating it writes greedily.
        rows: how many; 0 for none, as where weights are sharded, which meet in whole forwards only.
        examples: how many of those are shown in the log.
    """

    references: Sequence[str]
    decode: Generation
    rows: int
    examples: int


class Seq2Seq(Task):
    """Trains an `EncoderDecoder` to give the next target token, and lets it write some validation texts each epoch.

    The loss is the mean over the target tokens of an optimizer step, over all its processes and micro-batches.

    Args:
        writing: what it writes each epoch.
        prepare: source of a batch -> what the model takes, such as uint8 images -> normalised ones; None for ids.
        loss: of the logits; with its `ctc` also of those that the memory of an image gives by itself.
    """

    means = ("val_loss", "val_accuracy")

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Tokenizer,
        optimizing: Optimizing,
        writing: Writing,
        prepare: Callable[[Tensor], Tensor] | None = None,
        loss: TextLoss | None = None,
        unit: str = "sentences",
        seed: int = 0,
        config: dict | None = None,
    ):
        super().__init__(model, optimizing, seed, config)
        self.tokenizer, self.writing, self.prepare, self.unit = tokenizer, writing, prepare, unit
        self.loss = loss or TextLoss(label_smoothing=0.1)
        self.written: list[tuple[int, str, str]] = []  # number of the row, answer, reference

    @property
    def metric_names(self) -> list[str]:
        written = [f"val/{name}" for name in WRITTEN] if self.writing.rows else []
        return ["val/loss", "val/token_accuracy", *written, "train/loss"]

    def forward(self, batch: dict[str, Tensor], **options: bool) -> Tensor:
        """-> logits (B,T-1,V) of every target token but the first, each told from the ones before it"""
        return self.model(self.source(batch), batch["target"][:, :-1], batch["source_mask"], **options)

    def source(self, batch: dict[str, Tensor]) -> Tensor:
        if self.prepare is None:
            return batch["source"]
        self.inputs = self.prepare(batch["source"])
        return self.inputs

    def training_loss(self, batch: dict[str, Tensor], step: int, micro: int) -> Tensor:
        # (B,T-1,V), (B,S,V)
        logits, patches = self(batch, source_logits=True) if self.loss.ctc else (self(batch), None)
        return self.loss(logits, batch["target"][:, 1:], patches, batch["source_mask"]) / batch["tokens"]

    def on_validation_epoch_start(self) -> None:
        self.written = []

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        labels = batch["target"][:, 1:] * batch["weight"].long()[:, None]  # (B,T-1), padding rows are nothing but pad
        logits = self(batch)
        real = labels != PAD
        each = F.cross_entropy(logits.float().transpose(1, 2), labels, reduction="none")  # (B,T-1)
        self.val_loss.update(each, real.float())
        self.val_accuracy.update((logits.argmax(-1) == labels).float(), real.float())
        self.log("val/loss", self.val_loss)
        self.log("val/token_accuracy", self.val_accuracy)
        if self.writing.rows:
            self.write(batch)

    def write(self, batch: dict[str, Tensor]) -> None:
        """Let the model write the rows of a batch that stand first in their file."""
        rows = ((batch["index"] < self.writing.rows) & (batch["weight"] > 0)).nonzero()[:, 0]
        if len(rows) == 0:
            return
        found = generate(self.model, self.source(batch)[rows], batch["source_mask"][rows], self.writing.decode.greedy)
        for row, hypotheses in zip(rows.tolist(), found, strict=True):
            number = int(batch["index"][row])
            self.written.append((number, self.tokenizer.decode(hypotheses[0].ids), self.writing.references[number]))

    def on_validation_epoch_end(self) -> None:
        if not self.writing.rows:
            return
        parts = [self.written]
        if self.trainer.world_size > 1:
            parts = [None] * self.trainer.world_size
            dist.all_gather_object(parts, self.written)
        written = sorted(row for part in parts for row in part)
        answers, references = [row[1] for row in written], [row[2] for row in written]
        metrics = text_metrics(answers, references) if written else dict.fromkeys(WRITTEN, 0.0)  # debug=true sees few
        self.log_dict({f"val/{name}": metrics[name] for name in WRITTEN}, prog_bar=True)
        for _, answer, reference in written[: self.writing.examples] if self.trainer.is_global_zero else ():
            log.info("  %s\n    should be: %s", answer, reference)
