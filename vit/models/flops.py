"""Floating point operations of a model."""

from collections.abc import Sequence

import torch
from torch import nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode


def flops(model: nn.Module) -> int:
    """Floating point operations of the forward pass of one image; a multiply-add counts as two."""
    return count_flops(model, (1, model.config.in_chans, *model.config.image_size))


def count_flops(model: nn.Module, shape: Sequence[int]) -> int:
    """Floating point operations of the forward pass of an input of this shape; a multiply-add counts as two.

    Counts matrix products and convolutions in a forward pass on the meta device, which takes no memory or time.
    """
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    empty = {name: torch.empty_like(tensor, device="meta") for name, tensor in state.items()}
    image = torch.empty(*shape, device="meta", dtype=next(model.parameters()).dtype)
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            functional_call(model, empty, image)
    finally:
        for module, mode in modes:
            module.training = mode
    return counter.get_total_flops()
