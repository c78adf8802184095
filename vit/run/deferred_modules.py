"""Modules that are imported when they are first used, at any time after the import statement; `quick_imports` defers
those that a run does not need before its first step.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import importlib.util
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec

COMPILER = "torch._dynamo"


class DeferredModule(types.ModuleType):
    """A placeholder for a module or package, which imports it when one of its attributes or submodules is used.

    The methods of subclasses and the `parts` are attributes whose use does not import the module; the import replaces
    them by the real ones. A part can be a deferred submodule.
    """

    __path__: Sequence[str] = ()  # the import system reads it; `SubmoduleFinder` finds the submodules

    def __init__(self, name: str, parts: Mapping[str, object] | None = None) -> None:
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None, is_package=True)
        self._finder = SubmoduleFinder(self)
        vars(self).update(parts or {})

    def _import(self) -> types.ModuleType:
        """Import the real module into `sys.modules` and return it. Its attributes are copied to this placeholder, and
        those of its submodules to their placeholders.
        """
        if sys.modules.get(self.__name__) is not self:
            return importlib.import_module(self.__name__)
        deferred = [module for name, module in list(sys.modules.items()) if isinstance(module, DeferredModule)
                    and f"{name}.".startswith(f"{self.__name__}.")]
        for module in deferred:
            del sys.modules[module.__name__]
            sys.meta_path.remove(module._finder)
        imported = importlib.import_module(self.__name__)
        self._imported(imported)
        for module in deferred:
            names = vars(importlib.import_module(module.__name__))
            vars(module).update({name: value for name, value in names.items() if not name.startswith("__")})
        return imported

    def _imported(self, module: types.ModuleType) -> None:
        """Hook for subclasses, called once with the imported module."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # read by tools that inspect all modules
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(self._import(), name)


def defer(module: DeferredModule) -> None:
    """Import the module, and its deferred submodules, when they are used, unless it is imported already or not
    installed.
    """
    name = module.__name__
    if name not in sys.modules and importlib.util.find_spec(name.partition(".")[0]):
        for part in list(vars(module).values()):
            if isinstance(part, DeferredModule):
                defer(part)
        sys.modules[name] = module
        sys.meta_path.insert(0, module._finder)


@dataclass(frozen=True)
class SubmoduleFinder:
    """Imports a deferred package before any of its submodules (`importlib.abc.MetaPathFinder`)."""

    package: DeferredModule

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if not name.startswith(f"{self.package.__name__}."):
            return None
        self.package._import()
        module = importlib.import_module(name)
        loader = ImportedModule(module.__spec__)
        module.__spec__ = ModuleSpec(name, loader)  # read by the import system before the returned one
        return module.__spec__


@dataclass(frozen=True)
class ImportedModule:
    """The loader of a module that is imported already; it restores the `spec` of the module (`importlib.abc.Loader`).
    """

    spec: ModuleSpec | None

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return sys.modules[spec.name]

    def exec_module(self, module: types.ModuleType) -> None:
        module.__spec__ = self.spec


class DeferredName:
    """A placeholder for a function, class or submodule of a deferred module. Calls, attributes and subclasses import
    it; `isinstance` does not, because a class that is not imported has no instances.
    """

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def _object(self) -> object:
        with no_placeholders():
            module = importlib.import_module(self._module)
            if isinstance(module, DeferredModule):
                module = module._import()
            if hasattr(module, self._name):
                return getattr(module, self._name)
            return importlib.import_module(f"{self._module}.{self._name}")

    def __call__(self, *arguments: object, **options: object) -> object:
        return self._object()(*arguments, **options)

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # read by typing
            raise AttributeError(f"{self._module}.{self._name} is not imported yet")
        return getattr(self._object(), name)

    def __instancecheck__(self, value: object) -> bool:
        deferred = isinstance(sys.modules.get(self._module), DeferredModule | Placeholder | None)
        return not deferred and isinstance(value, self._object())

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[object, ...]:
        return (self._object(),)


@contextlib.contextmanager
def deferred_packages(*packages: str, parts: Mapping[str, Mapping[str, object]] | None = None) -> Iterator[None]:
    """A context in which imports of packages succeed without loading them. Names imported from them load the package
    when they are first used, at any time later. After the context `import` imports the packages as usual.

    Packages that are not installed, or are imported already, are unchanged.

    Args:
        parts: module -> attributes that are used without the package.
    """
    absent = {name for name in packages if name not in sys.modules and importlib.util.find_spec(name)}
    finder = PlaceholderFinder(absent, parts or {})
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        remove_placeholders()


@dataclass(frozen=True)
class PlaceholderFinder:
    """Finds and loads placeholders for packages (`importlib.abc.MetaPathFinder` and `Loader`)."""

    packages: set[str]
    parts: Mapping[str, Mapping[str, object]]

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in self.packages else None

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return Placeholder(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        vars(module).update(self.parts.get(module.__name__, {}))


@contextlib.contextmanager
def no_placeholders() -> Iterator[None]:
    """A context in which `import` imports packages as usual."""
    deferring = [finder for finder in sys.meta_path if isinstance(finder, PlaceholderFinder)]
    sys.meta_path[:] = [finder for finder in sys.meta_path if finder not in deferring]
    try:
        remove_placeholders()
        yield
    finally:
        sys.meta_path[:0] = deferring


def remove_placeholders() -> None:
    """Remove the placeholders for packages, so that the next import imports the packages."""
    for name, module in list(sys.modules.items()):
        if isinstance(module, Placeholder):
            del sys.modules[name]


class Placeholder(types.ModuleType):
    """A placeholder for a module; each of its attributes is a `DeferredName`."""

    def __getattr__(self, name: str) -> "DeferredName":
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return DeferredName(self.__name__, name)


@contextlib.contextmanager
def quick_imports() -> Iterator[None]:
    """A context in which imports defer the modules that a run does not need before its first step. Garbage collection
    is off in it, because it would scan all objects of torch and Lightning repeatedly and free next to nothing.

    Lightning imports torchmetrics, which imports all of its metrics and their plots, and with them `scipy.signal`,
    `matplotlib`, `transformers` and `torchvision` if they are installed. Lightning and torch's optimizers import the
    compiler of torch.
    """
    defer(DeferredSignal("scipy.signal"))
    defer(DeferredCompiler())
    enabled = gc.isenabled()
    gc.disable()
    try:
        with deferred_packages(*PACKAGES, parts=PARTS):
            importlib.import_module("torch")
            with deferred_packages("triton"):  # this module only checks for Triton kernels, others define them
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

    Eager training uses it too: Lightning recognizes compiled models, Lightning and torch exclude functions from
    compilation, optimizers end a graph in each step, distributed training prepares for compiled models, and
    torchvision, which timm imports, defines a function that no classifier calls.
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
