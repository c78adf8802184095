"""What makes the import of torch and Lightning quicker in a program that trains."""

import atexit
import contextlib
import gc
import types
from collections.abc import Iterator

from vit.run.deferred_compiler import DeferredCompiler
from vit.run.deferred_modules import DeferredModule, DeferredPackages, Placeholder, defer


@contextlib.contextmanager
def quick_imports() -> Iterator[None]:
    """Import without what no run needs before its first step, and without cyclic garbage collection, which would scan
    all objects of torch and Lightning again and again, and free next to nothing. Later collections skip them too.

    torchmetrics, which Lightning imports, imports all of its metrics and their plots, and with them `scipy.signal`,
    `matplotlib`, `transformers` and `torchvision` where they are installed. Lightning and torch's optimizers import its
    compiler.
    """
    defer(DeferredSignal())
    defer(DeferredCompiler())
    enabled = gc.isenabled()
    gc.disable()
    try:
        with DeferredPackages(PACKAGES, PARTS):
            yield
    finally:
        gc.freeze()
        atexit.register(gc.unfreeze)  # so that the interpreter can clean up
        if enabled:
            gc.enable()


class DeferredSignal(DeferredModule):
    """`scipy.signal`, which torchmetrics imports only to add a missing name (1.9)."""

    def __init__(self) -> None:
        super().__init__("scipy.signal")

    def hamming(self, *arguments: object, **options: object) -> object:
        """`scipy.signal.windows.hamming`, under the name that torchmetrics adds."""
        return self.windows.hamming(*arguments, **options)

    def _imported(self, module: types.ModuleType) -> None:
        module.hamming = self.hamming


@contextlib.contextmanager
def plot_style(*arguments: object, **options: object) -> Iterator[None]:
    """`matplotlib.pyplot.style.context`, with which torchmetrics decorates its plots."""
    import matplotlib.pyplot

    with matplotlib.pyplot.style.context(*arguments, **options):
        yield


PACKAGES = ("transformers", "torchvision", "matplotlib", "triton")
PARTS = {  # of `PACKAGES`, that torchmetrics uses when it is imported
    "matplotlib": {"colors": Placeholder("matplotlib.colors")},
    "matplotlib.pyplot": {"style": types.SimpleNamespace(context=plot_style)},
}
