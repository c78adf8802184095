"""Sequence to sequence: translation and image-to-text."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from vit.data.errors import printable
from vit.data.text.tokenizers import EOS, PAD, Tokenizer
from vit.evaluation import text_metrics
from vit.evaluation.text_metrics import References, nearest_reference
from vit.generation import Generation, Utf8, generate
from vit.tasks.base import Optimization, Task
from vit.tasks.loss import TextLoss

log = logging.getLogger("vit")

TEXT_METRICS = ("exact_match", "cer", "bleu")  # metrics of the texts generated in validation


@dataclass(frozen=True)
class ValidationTexts:
    """Texts that are generated in every validation epoch.

    Args:
        references: reference text of each row of the validation data, or several; None for a row whose source is that
            of an earlier row, for which no text is generated.
        decode: generation settings of the trained model; validation uses greedy search.
        rows: number of rows to generate; 0 for none, as with sharded weights, which need the same forwards everywhere.
        examples: number of texts to log.
    """

    references: Sequence[References | None]
    decode: Generation
    rows: int
    examples: int


class Seq2Seq(Task):
    """Trains an `EncoderDecoder` by next token prediction, and generates some validation texts each epoch.

    The loss is the mean over the target tokens of an optimizer step, over all processes and micro-batches.

    Args:
        validation: the texts to generate in validation.
        prepare: converts the source of a batch to the model's input, such as uint8 images to normalized ones; None for
            ids.
        loss: label-smoothed cross entropy by default.
        unit: what a row of a batch is, for the progress bar.
    """

    means = ("val_loss", "val_accuracy")

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Tokenizer,
        optimization: Optimization,
        validation: ValidationTexts,
        prepare: Callable[[Tensor], Tensor] | None = None,
        loss: TextLoss | None = None,
        unit: str = "sentences",
        seed: int = 0,
        config: dict | None = None,
    ):
        super().__init__(model, optimization, seed, config)
        self.tokenizer, self.validation, self.prepare, self.unit = tokenizer, validation, prepare, unit
        self.utf8 = Utf8(tokenizer.pieces, EOS)
        self.loss = loss or TextLoss(label_smoothing=0.1)
        self.generated: list[tuple[int, str, References]] = []  # row, generated text, its references

    @property
    def metric_names(self) -> list[str]:
        of_texts = [f"val/{name}" for name in TEXT_METRICS] if self.validation.rows else []
        return ["val/loss", "val/perplexity", "val/token_accuracy", *of_texts, "train/loss"]

    def forward(self, batch: dict[str, Tensor], **options: bool) -> Tensor:
        """batch -> logits (B,T-1,V) of all target tokens but the first; options as in `EncoderDecoder.forward`"""
        return self.model(self.source(batch), batch["target"][:, :-1], batch["source_mask"], **options)

    def source(self, batch: dict[str, Tensor]) -> Tensor:
        """The model's input, ids (B,S) or images (B,C,H,W)."""
        if self.prepare is None:
            return batch["source"]
        self.inputs = self.prepare(batch["source"])
        return self.inputs

    def training_loss(self, batch: dict[str, Tensor], step: int, micro: int) -> Tensor:
        """source (B,S) or images, target (B,T) -> the loss per target token, a scalar"""
        # (B,T-1,V), (B,S,V)
        logits, patches = self(batch, source_logits=True) if self.loss.ctc else (self(batch), None)
        return self.loss(logits, batch["target"][:, 1:], patches, batch["source_mask"]) / batch["tokens"]

    def on_validation_epoch_start(self) -> None:
        self.generated = []

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        labels = batch["target"][:, 1:] * batch["weight"].long()[:, None]  # (B,T-1), only pad in padding rows
        logits = self(batch)
        real = labels != PAD
        each = F.cross_entropy(logits.float().transpose(1, 2), labels, reduction="none")  # (B,T-1)
        self.val_loss.update(each, real.float())
        self.val_accuracy.update((logits.argmax(-1) == labels).float(), real.float())
        self.log("val/loss", self.val_loss)
        self.log("val/token_accuracy", self.val_accuracy)
        if self.validation.rows:
            self.generate_texts(batch)

    def generate_texts(self, batch: dict[str, Tensor]) -> None:
        """Generate the texts of the rows of a batch that are among the first ones of the validation data, one for each
        source.
        """
        rows = ((batch["index"] < self.validation.rows) & (batch["weight"] > 0)).nonzero()[:, 0]
        numbers = batch["index"][rows].tolist()
        chosen = [i for i, number in enumerate(numbers) if self.validation.references[number] is not None]
        if not chosen:
            return
        rows = rows[torch.tensor(chosen).to(rows.device)]
        source, mask = self.source(batch)[rows], batch["source_mask"][rows]
        found = generate(self.model, source, mask, self.validation.decode.greedy, utf8=self.utf8)
        for number, hypotheses in zip((numbers[i] for i in chosen), found, strict=True):
            text = self.tokenizer.decode(hypotheses[0].ids, "ignore")
            self.generated.append((number, text, self.validation.references[number]))

    def on_validation_epoch_end(self) -> None:
        self.log("val/perplexity", self.val_loss.compute().exp())  # val/loss is without label smoothing
        if not self.validation.rows:
            return
        parts = [self.generated]
        if self.trainer.world_size > 1:
            parts = [None] * self.trainer.world_size
            dist.all_gather_object(parts, self.generated)
        rows = sorted(row for part in parts for row in part)
        texts, references = [row[1] for row in rows], [row[2] for row in rows]
        metrics = text_metrics(texts, references) if rows else dict.fromkeys(TEXT_METRICS, 0.0)  # few with debug=true
        self.log_dict({f"val/{name}": metrics[name] for name in TEXT_METRICS}, prog_bar=True)
        for _, text, reference in rows[: self.validation.examples] if self.trainer.is_global_zero else ():
            log.info("  %s\n    should be: %s", as_line(text), as_line(nearest_reference(text, reference)))


def as_line(text: str) -> str:
    """A text as one visible line."""
    return printable(text) if text.strip() else "(only white space)" if text else "(empty)"
