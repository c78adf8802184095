"""Floating point operations of a model."""

from collections.abc import Sequence
from math import prod

import torch
from torch import nn
from torch.func import functional_call

from vit.nn.init import evaluating


def flops(model: nn.Module, compute: bool = False) -> int:
    """Floating point operations of the forward pass of one image; a multiply-add counts as two.

    Args:
        compute: as in `count_flops`.
    """
    return count_flops(model, (1, model.config.in_chans, *model.config.image_size), compute)


def count_flops(model: nn.Module, shape: Sequence[int], compute: bool = False) -> int:
    """Floating point operations of the forward pass of an input of this shape; a multiply-add counts as two.

    Counts matrix products and convolutions in a forward pass on the meta device, which takes no memory.

    Args:
        compute: run the pass on the device of the model instead. For a small model this is faster, because the
            operators of the meta device load sympy.
    """
    from torch.utils.flop_counter import FlopCounterMode  # loads Triton

    weights = next(model.parameters())
    image = torch.zeros(*shape, device=weights.device if compute else "meta", dtype=weights.dtype)
    if compute:
        return call_flops(model, image)
    with FlopCounterMode(display=False, custom_mapping=FORMULAS) as counter:
        run_on_meta(model, image)
    return counter.get_total_flops()


def call_flops(model: nn.Module, *inputs: torch.Tensor | None) -> int:
    """Floating point operations of a forward pass of these inputs, on the device of the model, in evaluation mode."""
    from torch.utils.flop_counter import FlopCounterMode

    # without gradients `vit.nn.cpu` would use operators for which torch has no formula
    with (FlopCounterMode(display=False, custom_mapping=FORMULAS) as counter, evaluating(model), torch.enable_grad(),
          torch.random.fork_rng(devices=[])):
        model(*inputs)
    return counter.get_total_flops()


def lstm_flops(x: Sequence[int], input_weight: Sequence[int], hidden_weight: Sequence[int], *_: object,
               **__: object) -> int:
    """Operations of a layer of an LSTM on a CPU, from shapes: x (T,B,D), weights (4H,D) and (4H,H)."""
    return 2 * prod(x[:-1]) * (prod(input_weight) + prod(hidden_weight))


def linear_flops(x: Sequence[int], weight: Sequence[int], *_: object, **__: object) -> int:
    """Operations of a linear layer by oneDNN, from shapes: x (...,D), weight (E,D)."""
    return 2 * prod(x) * weight[0]


def attention_flops(query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: object, **__: object) -> int:
    """Operations of attention on a CPU, from shapes: query (B,H,T,D), key (B,H,S,D), value (B,H,S,E)."""
    return 2 * prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


# operators for which torch has no formula; torch 2.10 has none for attention on a CPU, later versions may have one
FORMULAS = {torch.ops.aten.mkldnn_rnn_layer: lstm_flops, torch.ops.vit.linear: linear_flops,
            torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attention_flops}


def run_on_meta(model: nn.Module, *inputs: torch.Tensor) -> None:
    """A forward pass in evaluation mode on the meta device; the model is left as it was.

    Args:
        inputs: tensors on the meta device.
    """
    empty = meta_tensors(model)
    with evaluating(model), torch.no_grad():
        functional_call(model, empty, inputs, tie_weights=False)


def meta_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers on the meta device, by name; shared tensors remain shared.

    A shared module is listed under one name only: `functional_call` would not restore a tensor that it replaces twice.
    """
    copies: dict[int, torch.Tensor] = {}
    state = {}
    for prefix, module in model.named_modules():
        own = {"prefix": prefix, "recurse": False, "remove_duplicate": False}
        for name, tensor in (*module.named_parameters(**own), *module.named_buffers(**own)):
            state[name] = copies.setdefault(id(tensor), torch.empty_like(tensor, device="meta"))
    return state
