"""Training and evaluation mode of modules, restored at the end of a context."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def restored_modes(*models: nn.Module) -> Iterator[None]:
    """Restore the mode of every module on exit, also of those that differ from the module around them."""
    modes = {module: module.training for model in models for module in model.modules()}
    try:
        yield
    finally:
        for module, mode in modes.items():
            if module.training != mode:  # setting an attribute of a module is slow
                module.training = mode


@contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """Put the models in evaluation mode, and restore the mode of every module on exit."""
    with restored_modes(*models):
        for model in models:
            if any(module.training for module in model.modules()):
                model.eval()
        yield
