"""Copies of models for inference, with weights that are cast and packed once, or with faster calls of modules."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import nn

from vit.nn import cpu
from vit.nn.cpu.linear import PLAIN, Packed, PackedLinear, has_custom_call, is_plain_linear


def prepacked(model: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
    """A copy for several calls without gradients, as `vit predict` makes them; it shares all other tensors.

    Under autocast torch casts the weights in every call without gradients again, and oneDNN reorders them in every
    product. Both take longer than the product itself where a batch has few rows. The copy needs up to twice the memory
    of the linear layers; their weights in the model must not change while it is used. Hooks of the model run in the
    copy too.

    Args:
        dtype: autocast's dtype in these calls; None without autocast. The outputs have the same bits, because autocast
            casts these weights too.
    """
    return copy_of(model, dtype, {})


def autocast_dtype(device: str) -> torch.dtype | None:
    """The dtype of autocast on a type of device where it is enabled now."""
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


def copy_of(module: nn.Module, dtype: torch.dtype | None, copies: dict[nn.Module, nn.Module]) -> nn.Module:
    """The copy of a module; `copies` maps modules to their copies, so that a shared module is copied once."""
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


def fast_call(module: nn.Module) -> nn.Module:
    """A copy that shares all tensors and computes the same, as long as no parameter or submodule is replaced.

    The lookup of parameters and submodules through `__getattr__` and the check for hooks take a tenth of the time in
    which a small decoder generates a token. In the copy they are plain attributes, and a call is the `forward` of the
    class. If a call of any submodule does more (hooks, an overridden `forward`, sharded weights, compilation), the
    module itself is returned.
    """
    if cpu.CALLS not in cpu.ENABLED or any(has_custom_call(part) for part in module.modules()):
        return module
    return fast_copy(module)


def fast_copy(module: nn.Module) -> nn.Module:
    """The copy of `fast_call`, without its check."""
    parts = {name: None if part is None else fast_copy(part) for name, part in module._modules.items()}
    copy = object.__new__(fast_class(type(module), type(module).forward))
    copy.__dict__ |= module.__dict__ | module._parameters | module._buffers | parts | {"_modules": parts}
    return copy


@cache
def fast_class(cls: type[nn.Module], forward: Callable[..., Any]) -> type[nn.Module]:
    """A subclass whose `__call__` is the current `forward`."""
    return type(cls.__name__, (cls,), {"__call__": forward})
