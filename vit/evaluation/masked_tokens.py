"""Evaluation of a masked language model with sentence-pair prediction (BERT, arXiv 1810.04805)."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.data import MaskedDataset
from vit.evaluation.progress import Progress
from vit.evaluation.text_metrics import perplexity
from vit.inference import autocast, best_device
from vit.inference.image_inputs import check_batch_size
from vit.messages import number_of

SUMS = ("tokens", "token_loss", "pair_loss", "correct_tokens", "correct_pairs")  # over the pairs of a split


@torch.inference_mode()
def evaluate_masked_tokens(
    model: nn.Module,
    dataset: MaskedDataset,
    batch_size: int = 64,
    precision: str = "32-true",
    limit: int | None = None,
    progress: Progress | None = None,
    device: torch.device | None = None,
    weights: Sequence[float] = (1.0, 1.0),
) -> dict[str, float]:
    """token_loss (nats per masked token), its exponential perplexity, pair_loss (nats per pair), loss (the sum of both
    losses with `weights`), token_accuracy and pair_accuracy.

    Masks and pairs are those of epoch 0, so that two evaluations are comparable.

    Args:
        limit: evaluate the first `limit` pairs of the split; all by default.
        progress: called with the number of pairs of each finished batch.
        weights: weights of the token loss and the pair loss.

    Raises:
        ValueError: an unknown `precision`, `batch_size` or the number of pairs is below 1, or no token can be masked.
    """
    check_batch_size(batch_size)
    pairs = len(dataset) if limit is None else min(limit, len(dataset))
    if pairs < 1:
        raise ValueError(f"{number_of(pairs, 'pair')} to evaluate, of {len(dataset)} in the split; at least "
                         "1 is needed")
    if not dataset.masked_count(np.stack([np.zeros(pairs, dtype=np.int64), np.arange(pairs)], axis=1)):
        raise ValueError(f"no token of the {number_of(pairs, 'pair')} to evaluate can be masked: all are special or "
                         "unknown to the tokenizer of the model; evaluate texts of its language")
    device = best_device(device)
    model = model.eval().to(device)
    totals = np.zeros(len(SUMS))
    for start in range(0, pairs, batch_size):
        index = np.arange(start, min(start + batch_size, pairs))
        batch = dataset.__getitems__(np.stack([np.zeros_like(index), index], axis=1))
        totals += batch_sums(model, batch, device, precision)
        if progress:
            progress(len(index))
    sums = dict(zip(SUMS, totals.tolist(), strict=True))
    token_loss, pair_loss = sums["token_loss"] / sums["tokens"], sums["pair_loss"] / pairs
    return {"loss": weights[0] * token_loss + weights[1] * pair_loss, "token_loss": token_loss,
            "perplexity": perplexity(token_loss), "pair_loss": pair_loss,
            "token_accuracy": sums["correct_tokens"] / sums["tokens"], "pair_accuracy": sums["correct_pairs"] / pairs}


def batch_sums(model: nn.Module, batch: dict[str, Tensor], device: torch.device, precision: str) -> list[float]:
    """The values of `SUMS` for a batch of pairs."""
    labels = batch["masked"].flatten()  # (B*N,), -1 at positions that are not masked
    positions = (labels >= 0).nonzero()[:, 0]  # (M,)
    labels, follows = labels[positions].to(device), batch["next"].to(device)
    inputs = [batch[key].to(device) for key in ("source", "source_mask", "segment")]
    with autocast(device, precision):
        token_logits, pair_logits = model(*inputs, positions.to(device))
    return [
        len(labels),
        float(F.cross_entropy(token_logits.float(), labels, reduction="sum")),
        float(F.cross_entropy(pair_logits.float(), follows, reduction="sum")),
        int((token_logits.argmax(-1) == labels).sum()),
        int((pair_logits.argmax(-1) == follows).sum()),
    ]
