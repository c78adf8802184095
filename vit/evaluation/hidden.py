"""How well a pre-trained model finds hidden tokens and tells sentence pairs, on questions that are always the same."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from vit.data import MaskedDataset
from vit.evaluation.progress import Progress
from vit.inference import autocast, best_device


@torch.inference_mode()
def evaluate_hidden(
    model: nn.Module,
    dataset: MaskedDataset,
    batch_size: int = 64,
    precision: str = "32-true",
    most: int | None = None,
    progress: Progress | None = None,
) -> dict[str, float]:
    """loss (nats per hidden token), token_accuracy, pair_accuracy over all pairs of a split, or its first `most`.

    Args:
        progress: called with the number of pairs of every finished batch.
    """
    device = best_device()
    model = model.eval().to(device)
    pairs = min(len(dataset), most or len(dataset))
    loss = tokens_right = tokens = pairs_right = 0.0
    for start in range(0, pairs, batch_size):
        index = np.arange(start, min(start + batch_size, pairs))
        batch = dataset.__getitems__(np.stack([np.zeros_like(index), index], axis=1))
        masked = batch["masked"].flatten()
        places = (masked >= 0).nonzero()[:, 0]
        hidden = masked[places].to(device)
        inputs = [batch[key].to(device) for key in ("source", "source_mask", "segment")]
        with autocast(device, precision):
            token_logits, pair_logits = model(*inputs, places.to(device))
        loss += float(F.cross_entropy(token_logits.float(), hidden, reduction="sum").double())
        tokens_right += int((token_logits.argmax(-1) == hidden).sum())
        pairs_right += int((pair_logits.argmax(-1).cpu() == batch["next"]).sum())
        tokens += len(hidden)
        if progress:
            progress(len(index))
    return {"loss": loss / tokens, "token_accuracy": tokens_right / tokens, "pair_accuracy": pairs_right / pairs}
