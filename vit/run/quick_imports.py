"""A faster import of torch and Lightning in a program that trains."""

import atexit
import contextlib
import functools
import gc
import importlib
import types
from collections.abc import Callable, Iterator

from vit.run.deferred_modules import DeferredModule, DeferredName, Placeholder, defer, deferred_packages

COMPILER = "torch._dynamo"


@contextlib.contextmanager
def quick_imports() -> Iterator[None]:
    """A context in which imports defer the modules that a run does not need before its first step, and cyclic garbage
    collection is off, which would scan all objects of torch and Lightning repeatedly and free next to nothing.

    torchmetrics, which Lightning imports, imports all of its metrics and their plots, and with them `scipy.signal`,
    `matplotlib`, `transformers` and `torchvision` where they are installed. Lightning and torch's optimizers import its
    compiler.
    """
    defer(DeferredSignal("scipy.signal"))
    defer(DeferredCompiler())
    enabled = gc.isenabled()
    gc.disable()
    try:
        with deferred_packages(*PACKAGES, parts=PARTS):
            importlib.import_module("torch")
            with deferred_packages("triton"):  # this module only checks for its kernels, others define some
                importlib.import_module("torch.utils.flop_counter")
            yield
    finally:
        if enabled:
            gc.enable()


def skip_in_collections() -> None:
    """Exclude all current objects from later garbage collections, in a program that has only imported modules so far.

    In other programs, such as notebooks, objects that are garbage at this point would never be freed.
    """
    gc.freeze()
    atexit.register(gc.unfreeze)  # so that the interpreter can clean up


class DeferredSignal(DeferredModule):
    """`scipy.signal`, which torchmetrics imports only to add a missing name (1.9)."""

    def hamming(self, *arguments: object, **options: object) -> object:
        """`scipy.signal.windows.hamming`, under the name that torchmetrics adds."""
        return self.windows.hamming(*arguments, **options)

    def _imported(self, module: types.ModuleType) -> None:
        module.hamming = self.hamming


class DeferredCompiler(DeferredModule):
    """`torch._dynamo`, the front end of `torch.compile`, whose import takes as long as that of torch.

    Eager training uses it all the same: Lightning to recognize compiled models, Lightning and torch to exclude
    functions from compilation, optimizers to end a graph in each step, distributed training to prepare for compiled
    models, and torchvision, which timm imports, for a function that no classifier calls.
    """

    def __init__(self) -> None:
        utils = DeferredModule(f"{COMPILER}.utils", {
            "get_optimize_ddp_mode": default_ddp_mode,
            "is_compile_supported": DeferredName(f"{COMPILER}.utils", "is_compile_supported"),
        })
        rules = DeferredModule(f"{COMPILER}.trace_rules", {"clear_lru_cache": lambda: None})  # nothing is cached yet
        optimized = DeferredName(COMPILER, "OptimizedModule")
        super().__init__(COMPILER, {"OptimizedModule": optimized, "utils": utils, "trace_rules": rules})
        self._exclude: list[Callable[[types.ModuleType], None]] = []

    def graph_break(self, msg: str = "") -> None:
        """Outside of compiled code a graph break does nothing."""

    def disable(self, fn: Callable | None = None, recursive: bool = True, *, reason: str | None = None,
                wrapping: bool = True) -> Callable:
        """The function, excluded from compilation as soon as there is a compiler."""
        if fn is None:
            return functools.partial(self.disable, recursive=recursive, reason=reason, wrapping=wrapping)
        function = fn

        @functools.wraps(fn)
        def disabled(*arguments: object, **options: object) -> object:
            return function(*arguments, **options)

        def exclude(compiler: types.ModuleType) -> None:
            nonlocal function
            function = compiler.disable(fn, recursive, reason=reason, wrapping=wrapping)

        self._exclude.append(exclude)
        return disabled

    def _imported(self, module: types.ModuleType) -> None:
        for exclude in self._exclude:
            exclude(module)


def default_ddp_mode() -> str:
    """How models in DDP are compiled, unless `torch._dynamo.config`, which imports the compiler, has another value."""
    return "ddp_optimizer"


@contextlib.contextmanager
def plot_style(*arguments: object, **options: object) -> Iterator[None]:
    """`matplotlib.pyplot.style.context`, with which torchmetrics decorates its plots."""
    import matplotlib.pyplot

    with matplotlib.pyplot.style.context(*arguments, **options):
        yield


PACKAGES = ("transformers", "torchvision", "matplotlib")
PARTS = {  # parts of `PACKAGES` that the import of torchmetrics uses
    "matplotlib": {"colors": Placeholder("matplotlib.colors")},
    "matplotlib.pyplot": {"style": types.SimpleNamespace(context=plot_style)},
}
