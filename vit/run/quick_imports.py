"""What makes the import of torch and Lightning quicker in a program that trains."""

import contextlib
import gc
import importlib
import importlib.util
import sys
import types
from collections.abc import Iterator

DEFERRED = "scipy.signal"


@contextlib.contextmanager
def quick_imports() -> Iterator[None]:
    """Import with `scipy.signal` deferred, and without cyclic garbage collection, which would scan all objects of torch
    and Lightning again and again, and free next to nothing.
    """
    defer_scipy_signal()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def defer_scipy_signal() -> None:
    """Import `scipy.signal` when it is first used. torchmetrics, which Lightning imports, imports it only to add a
    missing name (1.9); that takes more than half a second (scipy 1.17). Without scipy, or if the module is there
    already, nothing is done.
    """
    if DEFERRED in sys.modules or importlib.util.find_spec("scipy") is None:
        return
    import scipy

    sys.modules[DEFERRED] = scipy.signal = DeferredModule(DEFERRED)


class DeferredModule(types.ModuleType):
    """Stands for a module until an attribute other than `hamming` is used, which imports the module."""

    def hamming(self, *arguments: object, **options: object) -> object:
        """`scipy.signal.windows.hamming`, under the name that torchmetrics adds."""
        return self.windows.hamming(*arguments, **options)

    def __getattr__(self, name: str) -> object:
        if name.startswith("__") and name != "__path__":  # which tools that inspect all modules ask for
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
            importlib.import_module(self.__name__).hamming = self.hamming  # also replaces the parent's attribute
        return getattr(sys.modules[self.__name__], name)
