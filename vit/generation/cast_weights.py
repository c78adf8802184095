"""Copies of models whose linear layers have the dtype of autocast, so that generation casts each weight only once."""

import torch
from torch import nn

from vit.nn.cpu import has_custom_call, is_plain_linear


def with_cast_weights(model: nn.Module, device: str) -> nn.Module:
    """A copy of the model whose linear layers have the dtype of autocast; all other tensors are shared.

    Its outputs have the same bits as those of the model, since autocast casts the same weights; without gradients it
    does so in every call. Without autocast, or if a call of any submodule does more than `forward`, the model itself is
    returned.

    Args:
        device: the type of device of autocast, such as "cuda".
    """
    if not torch.is_autocast_enabled(device) or any(has_custom_call(part) for part in model.modules()):
        return model
    return cast_copy(model, torch.get_autocast_dtype(device), {})


def cast_copy(module: nn.Module, dtype: torch.dtype, copies: dict[nn.Module, nn.Module]) -> nn.Module:
    """A copy of a module with cast linear layers.

    Args:
        copies: copies made so far, by module, so that a shared submodule is copied once; extended here.
    """
    if module in copies:
        return copies[module]
    copies[module] = copy = object.__new__(type(module))
    parts = {name: None if part is None else cast_copy(part, dtype, copies) for name, part in module._modules.items()}
    copy.__dict__ |= module.__dict__ | {"_modules": parts}
    if isinstance(module, nn.Linear) and is_plain_linear(module):
        copy.__dict__["_parameters"] = {name: cast(each, dtype) for name, each in module._parameters.items()}
    return copy


def cast(parameter: nn.Parameter | None, dtype: torch.dtype) -> nn.Parameter | None:
    """A float32 parameter in another dtype; others unchanged, as under autocast."""
    if parameter is None or parameter.dtype != torch.float32:
        return parameter
    return nn.Parameter(parameter.detach().to(dtype), requires_grad=False)
