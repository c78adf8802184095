"""Copies of models for inference, with the weights of linear layers cast and packed once instead of in every call."""

import torch
from torch import nn

from vit.nn.cpu import PLAIN, Packed, PackedLinear, is_plain_linear


def prepacked(model: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
    """A copy for several calls without gradients, as `vit predict` makes them; it shares all other tensors.

    Under autocast torch casts the weights in every call without gradients again, and oneDNN reorders them in every
    product. Both take longer than the product itself where a batch has few rows. The copy needs up to twice the memory
    of the linear layers; their weights in the model must not change while it is used. Hooks of the model run in the
    copy too.

    Args:
        dtype: that of autocast in these calls; None without autocast. The outputs have the same bits, because autocast
            casts these weights too.
    """
    return copy_of(model, dtype, {})


def autocast_dtype(device: str) -> torch.dtype | None:
    """The dtype of autocast on a type of device where it is enabled now."""
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


def copy_of(module: nn.Module, dtype: torch.dtype | None, copies: dict[nn.Module, nn.Module]) -> nn.Module:
    """The copy of a module; `copies` are those of modules that occur more than once."""
    if module in copies:
        return copies[module]
    is_linear = isinstance(module, nn.Linear) and type(module.weight) in PLAIN and is_plain_linear(module)
    packs = is_linear and type(module) is nn.Linear and module.weight.device.type == "cpu"
    copies[module] = copy = object.__new__(PackedLinear if packs else type(module))
    parts = {name: None if part is None else copy_of(part, dtype, copies) for name, part in module._modules.items()}
    copy.__dict__ |= module.__dict__ | {"_modules": parts}
    if is_linear and dtype is not None:
        copy.__dict__["_parameters"] = {name: cast(each, dtype) for name, each in module._parameters.items()}
    if packs:
        copy.__dict__["packed"] = Packed()
    return copy


def cast(parameter: nn.Parameter | None, dtype: torch.dtype) -> nn.Parameter | None:
    """The parameter in the dtype if it has float32, as autocast does."""
    if parameter is None or parameter.dtype != torch.float32:
        return parameter
    return nn.Parameter(parameter.detach().to(dtype), requires_grad=False)
