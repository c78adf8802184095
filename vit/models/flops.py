"""Floating point operations of a model."""

from collections.abc import Sequence

import torch
from torch import nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from vit.nn.modes import evaluating


def flops(model: nn.Module) -> int:
    """Floating point operations of the forward pass of one image; a multiply-add counts as two."""
    return count_flops(model, (1, model.config.in_chans, *model.config.image_size))


def count_flops(model: nn.Module, shape: Sequence[int]) -> int:
    """Floating point operations of the forward pass of an input of this shape; a multiply-add counts as two.

    Counts matrix products and convolutions in a forward pass on the meta device, which takes no memory or time.
    """
    image = torch.empty(*shape, device="meta", dtype=next(model.parameters()).dtype)
    with FlopCounterMode(display=False) as counter:
        run_on_meta(model, image)
    return counter.get_total_flops()


def run_on_meta(model: nn.Module, *inputs: torch.Tensor) -> None:
    """A forward pass in evaluation mode on the meta device; the model is left as it was.

    Args:
        inputs: tensors on the meta device.
    """
    empty = meta_tensors(model)
    with evaluating(model), torch.no_grad():
        functional_call(model, empty, inputs, tie_weights=False)


def meta_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers on the meta device, by name; shared ones are one tensor.

    A shared module has one name: `functional_call` would not restore what it replaces twice.
    """
    made: dict[int, torch.Tensor] = {}
    state = {}
    for prefix, module in model.named_modules():
        own = {"prefix": prefix, "recurse": False, "remove_duplicate": False}
        for name, tensor in (*module.named_parameters(**own), *module.named_buffers(**own)):
            state[name] = made.setdefault(id(tensor), torch.empty_like(tensor, device="meta"))
    return state
