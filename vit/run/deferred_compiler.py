"""A stand-in for `torch._dynamo`, the front end of `torch.compile`, in runs that compile nothing.

Its import takes as long as that of torch itself. Eager training uses it all the same: Lightning to recognize compiled
models, torch and Lightning to exclude functions from compilation, and optimizers to end a graph in each step.
"""

import functools
import importlib
import sys
import types
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec

COMPILER = "torch._dynamo"


def defer_compiler() -> None:
    """Import `torch._dynamo` when something is compiled, unless it is imported already."""
    if COMPILER not in sys.modules:
        sys.modules[COMPILER] = stand_in = DeferredCompiler()
        sys.meta_path.insert(0, stand_in.finder)


class DeferredCompiler(types.ModuleType):
    """The parts of `torch._dynamo` that eager training uses, for code that is not compiled. Any other attribute and any
    module of the package replace it by the package, and functions that `disable` has returned then behave as those of
    the package.
    """

    __path__: Sequence[str] = ()  # a package, whose modules are found by its `finder`

    def __init__(self) -> None:
        super().__init__(COMPILER)
        self.__spec__ = ModuleSpec(COMPILER, None, is_package=True)
        self.OptimizedModule = CompiledModule
        self.finder = SubmoduleFinder(self)
        self._disabled: list[Callable[[types.ModuleType], None]] = []

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

        self._disabled.append(exclude)
        return disabled

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # which tools that inspect all modules ask for
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(self.replaced(), name)

    def replaced(self) -> types.ModuleType:
        """The package, which from now on is imported in place of this object."""
        first = sys.modules.get(COMPILER) is self
        if first:
            del sys.modules[COMPILER]
            sys.meta_path.remove(self.finder)
        compiler = importlib.import_module(COMPILER)
        if first:
            for exclude in self._disabled:
                exclude(compiler)
        return compiler


class CompiledModuleType(type):
    """`isinstance(value, CompiledModule)` without the compiler: nothing is compiled yet."""

    def __instancecheck__(cls, value: object) -> bool:
        compiler = sys.modules[COMPILER]
        return not isinstance(compiler, DeferredCompiler) and isinstance(value, compiler.OptimizedModule)


class CompiledModule(metaclass=CompiledModuleType):
    """Stands for `torch._dynamo.OptimizedModule`, the result of `torch.compile`, in checks with `isinstance`."""


class SubmoduleFinder:
    """Imports `torch._dynamo` before any of its modules (`importlib.abc.MetaPathFinder`)."""

    def __init__(self, stand_in: DeferredCompiler) -> None:
        self.stand_in = stand_in

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if not name.startswith(f"{COMPILER}."):
            return None
        self.stand_in.replaced()
        return ModuleSpec(name, ImportedModule(importlib.import_module(name)))


class ImportedModule:
    """The loader of a module that is imported already (`importlib.abc.Loader`)."""

    def __init__(self, module: types.ModuleType) -> None:
        self.module, self.spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return self.module

    def exec_module(self, module: types.ModuleType) -> None:
        module.__spec__ = self.spec  # which the import system has replaced
