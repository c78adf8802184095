"""Which patches of an image are hidden, from counters."""

import torch
from torch import Tensor

from vit.counters import uniform

_SLOT = 2000  # the first of a number per patch; augmentations use 0..999, crops those from 1000 on
EVALUATION = 0  # the seed of the patches that are hidden in evaluation: the same ones whatever the run's seed is


def patch_noise(seed: int, epoch: Tensor | int, index: Tensor, patches: int) -> Tensor:
    """index (B,), epoch (B,) or one number -> a random number per patch, (B,patches), those of a sample its own"""
    epoch = epoch[:, None] if isinstance(epoch, Tensor) else epoch
    return uniform(seed, epoch, index[:, None], torch.arange(_SLOT, _SLOT + patches, device=index.device))
