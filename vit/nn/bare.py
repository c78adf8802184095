"""Modules without what torch does around their calls, for steps so short that they feel it."""

from collections.abc import Callable
from functools import cache
from typing import Any

from torch import nn
from torch.nn.modules.module import _has_any_global_hook

HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks", "_compiled_call_impl")


def bare(module: nn.Module) -> nn.Module:
    """A stand-in that computes the same with the same tensors, as long as nothing is put in another's place.

    Torch finds a parameter or a part of a module only after Python has looked for it in vain, and checks at every call
    whether it has hooks: a tenth of the time in which a small decoder generates a token. Here all are plain attributes,
    and a call is the `forward` of the class; what it sets on itself stays with the stand-in. Where a call of any part
    does more (hooks, a `forward` of its own, sharded weights, compiled calls), the module itself is returned.
    """
    return module if any(calls_more(part) for part in module.modules()) else stand_in(module)


def calls_more(module: nn.Module) -> bool:
    """Whether a call of the module does anything else than the `forward` of its class."""
    kind = type(module)
    if kind.__call__ is not nn.Module.__call__ and kind.__call__ is not kind.forward:
        return True
    return "forward" in module.__dict__ or any(getattr(module, hooks) for hooks in HOOKS) or _has_any_global_hook()


def stand_in(module: nn.Module) -> nn.Module:
    parts = {name: None if part is None else stand_in(part) for name, part in module._modules.items()}
    made = object.__new__(direct(type(module), type(module).forward))
    made.__dict__ |= module.__dict__ | module._parameters | module._buffers | parts | {"_modules": parts}
    return made


@cache
def direct(kind: type[nn.Module], forward: Callable[..., Any]) -> type[nn.Module]:
    """The same class, but that a call is its `forward`, as it is now, and nothing else."""
    return type(kind.__name__, (kind,), {"__call__": forward})
