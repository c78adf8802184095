"""Random numbers that select the masked patches of an image, from counters."""

import torch
from torch import Tensor

from vit.counters import uniform

_SLOT = 2000  # first slot of the patches; augmentations use 0..999, crops those from 1000 on
EVALUATION = 0  # seed of evaluation: all runs mask the same patches


def patch_noise(seed: int, epoch: Tensor | int, index: Tensor, patches: int) -> Tensor:
    """index (B,), epoch (B,) or a number → one random number per patch (B,patches), independent of the batch."""
    epoch = epoch[:, None] if isinstance(epoch, Tensor) else epoch
    return uniform(seed, epoch, index[:, None], torch.arange(_SLOT, _SLOT + patches, device=index.device))
