"""The precision in which timm's Muon orthogonalizes updates."""

import torch
from timm.optim import muon
from torch import Tensor

from vit.training.precision import has_bfloat16

timm_newton_schulz = muon.zeropower_via_newtonschulz


def newton_schulz(update: Tensor, *arguments: object, **options: object) -> Tensor:
    """timm's Newton-Schulz iteration (https://kellerjordan.github.io/posts/muon/) on a matrix (m, n) or (batch, m, n),
    computed in bfloat16 on GPUs and processors that have it and in float32 elsewhere.

    timm always computes in bfloat16, which most processors emulate: with AVX2 the iterations of a small model take as
    long as its forward and backward pass.
    """
    dtype = torch.bfloat16 if has_bfloat16(update.device.type) else torch.float32
    return timm_newton_schulz(update, *arguments, dtype=dtype, **options)


def use_suited_precision() -> None:
    """Let the optimizers of timm.optim.muon call `newton_schulz`; they have no option for the precision."""
    muon.zeropower_via_newtonschulz = newton_schulz
