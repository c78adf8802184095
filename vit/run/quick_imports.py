"""What makes the import of torch and Lightning quicker in a program that trains."""

import contextlib
import gc
import importlib
import importlib.util
import sys
import types
from collections.abc import Iterator
from importlib.machinery import ModuleSpec

from vit.run.deferred_compiler import defer_compiler

DEFERRED = "scipy.signal"
DEFERRED_PACKAGES = ("transformers", "torchvision")


@contextlib.contextmanager
def quick_imports() -> Iterator[None]:
    """Import without what only metrics need that no run computes, and without cyclic garbage collection, which would
    scan all objects of torch and Lightning again and again, and free next to nothing.

    torchmetrics, which Lightning imports, imports all of its metrics, and with them `scipy.signal`, `transformers` and
    `torchvision` where they are installed.
    """
    defer_scipy_signal()
    defer_compiler()
    enabled = gc.isenabled()
    gc.disable()
    try:
        with DeferredPackages(DEFERRED_PACKAGES):
            yield
    finally:
        if enabled:
            gc.enable()


class DeferredPackages:
    """A context in which imports of packages succeed without loading them. Names imported from them load the package
    when they are first used, at any time later. After the context `import` imports the packages as ever.

    Packages that are not installed, or are imported already, are left alone.
    """

    def __init__(self, packages: tuple[str, ...]) -> None:
        self.packages = packages

    def __enter__(self) -> None:
        self.absent = {name for name in self.packages if name not in sys.modules and importlib.util.find_spec(name)}
        sys.meta_path.insert(0, self)

    def __exit__(self, *_: object) -> None:
        sys.meta_path.remove(self)
        remove_placeholders()

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """The specification of a placeholder (`importlib.abc.MetaPathFinder`)."""
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in self.absent else None

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return Placeholder(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """A placeholder has nothing to execute."""


def remove_placeholders() -> None:
    """Forget the placeholders of packages, so that the next import imports the packages."""
    for name, module in list(sys.modules.items()):
        if isinstance(module, Placeholder):
            del sys.modules[name]


class Placeholder(types.ModuleType):
    """Stands for a module; each of its attributes is a `DeferredName`."""

    def __getattr__(self, name: str) -> "DeferredName":
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return DeferredName(self.__name__, name)


class DeferredName:
    """Stands for a function, class or submodule. Calls, attributes and `isinstance` import the module."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def _object(self) -> object:
        finders = [finder for finder in sys.meta_path if not isinstance(finder, DeferredPackages)]
        before, sys.meta_path[:] = sys.meta_path[:], finders
        try:
            remove_placeholders()
            module = importlib.import_module(self._module)
            return getattr(module, self._name, None) or importlib.import_module(f"{self._module}.{self._name}")
        finally:
            sys.meta_path[:] = before

    def __call__(self, *arguments: object, **options: object) -> object:
        return self._object()(*arguments, **options)

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # which typing asks for
            raise AttributeError(f"{self._module}.{self._name} is not imported yet")
        return getattr(self._object(), name)

    def __instancecheck__(self, value: object) -> bool:
        return isinstance(value, self._object())

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[object, ...]:
        return (self._object(),)


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
