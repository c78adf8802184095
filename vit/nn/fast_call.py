"""Copies of modules without the overhead of `nn.Module.__call__` and `__getattr__`, for short steps on a CPU."""

from collections.abc import Callable
from functools import cache
from typing import Any

from torch import nn
from torch.nn.modules.module import _has_any_global_hook

HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks", "_compiled_call_impl")


def fast_call(module: nn.Module) -> nn.Module:
    """A copy that shares all tensors and computes the same, as long as no parameter or submodule is replaced.

    The lookup of parameters and submodules through `__getattr__` and the check for hooks take a tenth of the time in
    which a small decoder generates a token. In the copy they are plain attributes, and a call is the `forward` of the
    class. If a call of any submodule does more (hooks, an overridden `forward`, sharded weights, compilation), the
    module itself is returned.
    """
    return module if any(has_custom_call(part) for part in module.modules()) else fast_copy(module)


def has_custom_call(module: nn.Module) -> bool:
    """Whether a call of the module does anything else than the `forward` of its class."""
    cls = type(module)
    if cls.__call__ is not nn.Module.__call__ and cls.__call__ is not cls.forward:
        return True
    return "forward" in module.__dict__ or any(getattr(module, hooks) for hooks in HOOKS) or _has_any_global_hook()


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
