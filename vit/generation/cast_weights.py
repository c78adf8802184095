"""The weights of linear layers in the dtype of autocast, which are cast once for all steps of a generation."""

import torch
from torch import nn

from vit.nn.cpu import has_custom_call, is_plain_linear


def with_cast_weights(model: nn.Module, device: str) -> nn.Module:
    """A copy for generation under the autocast of a type of device, with linear layers in its dtype; it shares all
    other tensors. Its outputs have the same bits, because autocast casts these weights too, but without gradients in
    every call again.

    Without autocast, or if a call of any submodule does more than `forward`, it is the model itself.
    """
    if not torch.is_autocast_enabled(device) or any(has_custom_call(part) for part in model.modules()):
        return model
    return cast_copy(model, torch.get_autocast_dtype(device), {})


def cast_copy(module: nn.Module, dtype: torch.dtype, copies: dict[nn.Module, nn.Module]) -> nn.Module:
    """The copy of a module; `copies` are those of modules that occur more than once."""
    if module in copies:
        return copies[module]
    copies[module] = copy = object.__new__(type(module))
    parts = {name: None if part is None else cast_copy(part, dtype, copies) for name, part in module._modules.items()}
    copy.__dict__ |= module.__dict__ | {"_modules": parts}
    if isinstance(module, nn.Linear) and is_plain_linear(module):
        copy.__dict__["_parameters"] = {name: cast(each, dtype) for name, each in module._parameters.items()}
    return copy


def cast(parameter: nn.Parameter | None, dtype: torch.dtype) -> nn.Parameter | None:
    """The parameter in the dtype if it has float32, as autocast does."""
    if parameter is None or parameter.dtype != torch.float32:
        return parameter
    return nn.Parameter(parameter.detach().to(dtype), requires_grad=False)
