"""Evaluation of a masked language model with sentence-pair prediction (BERT, arXiv 1810.04805)."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from vit.data import MaskedDataset
from vit.evaluation.progress import Progress
from vit.inference import autocast, best_device
from vit.inference.image_inputs import check_batch_size


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
    """token_loss (nats per masked token), pair_loss (nats per pair), loss (their sum with `weights`), token_accuracy
    and pair_accuracy over a split, or over its first `limit` pairs.

    Masks and pairs are those of epoch 0, so that two evaluations are comparable.

    Raises:
        ValueError: an unknown `precision`, or `batch_size` or the number of pairs is below 1.
    """
    check_batch_size(batch_size)
    pairs = len(dataset) if limit is None else min(limit, len(dataset))
    if pairs < 1:
        raise ValueError(f"there are {pairs} pairs to evaluate, of {len(dataset)} in the split; at least 1 is needed")
    device = best_device(device)
    model = model.eval().to(device)
    token_loss = pair_loss = correct_tokens = tokens = correct_pairs = 0.0
    for start in range(0, pairs, batch_size):
        index = np.arange(start, min(start + batch_size, pairs))
        batch = dataset.__getitems__(np.stack([np.zeros_like(index), index], axis=1))
        labels = batch["masked"].flatten()  # (B*N,), -1 at positions that are not masked
        positions = (labels >= 0).nonzero()[:, 0]
        labels = labels[positions].to(device)
        inputs = [batch[key].to(device) for key in ("source", "source_mask", "segment")]
        with autocast(device, precision):
            token_logits, pair_logits = model(*inputs, positions.to(device))
        follows = batch["next"].to(device)
        token_loss += float(F.cross_entropy(token_logits.float(), labels, reduction="sum").double())
        pair_loss += float(F.cross_entropy(pair_logits.float(), follows, reduction="sum").double())
        correct_tokens += int((token_logits.argmax(-1) == labels).sum())
        correct_pairs += int((pair_logits.argmax(-1) == follows).sum())
        tokens += len(labels)
        if progress:
            progress(len(index))
    losses = token_loss / tokens, pair_loss / pairs
    return {"loss": weights[0] * losses[0] + weights[1] * losses[1], "token_loss": losses[0], "pair_loss": losses[1],
            "token_accuracy": correct_tokens / tokens, "pair_accuracy": correct_pairs / pairs}
