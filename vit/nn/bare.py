"""Modules without what torch does around their calls, for steps so short that they feel it."""

from functools import cache

from torch import nn
from torch.nn.modules.module import _has_any_global_hook

HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks", "_compiled_call_impl")


def bare(module: nn.Module) -> nn.Module:
    """A stand-in that computes the same with the same tensors, as long as nothing is put in another's place.

    Torch finds a parameter or a part of a module only after Python has looked for it in vain, and asks at every call
    who wants to be told of it: a tenth of the time in which a small decoder writes a token. Here all are plain
    attributes, and a call is `forward`; what it sets on itself stays with the stand-in. Where somebody does want to be
    told (hooks, sharded weights, compiled calls), the module itself is returned.
    """
    return module if _has_any_global_hook() or any(watched(part) for part in module.modules()) else stand_in(module)


def watched(module: nn.Module) -> bool:
    """Whether a call of it does more than `forward`."""
    return type(module).__call__ is not nn.Module.__call__ or any(getattr(module, hooks) for hooks in HOOKS)


def stand_in(module: nn.Module) -> nn.Module:
    parts = {name: None if part is None else stand_in(part) for name, part in module._modules.items()}
    made = object.__new__(direct(type(module)))
    made.__dict__ |= module.__dict__ | module._parameters | module._buffers | parts | {"_modules": parts}
    return made


@cache
def direct(kind: type[nn.Module]) -> type[nn.Module]:
    """The same class, but that a call is `forward` and nothing else."""
    return type(kind.__name__, (kind,), {"__call__": kind.forward})
