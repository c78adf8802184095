"""A stand-in for `torch._dynamo`, the front end of `torch.compile`, in runs that compile nothing.

Its import takes as long as that of torch itself. Eager training uses it all the same: Lightning to recognize compiled
models, torch and Lightning to exclude functions from compilation, and optimizers to end a graph in each step.
"""

import functools
import types
from collections.abc import Callable

from vit.run.deferred_modules import DeferredModule, DeferredName

COMPILER = "torch._dynamo"


class DeferredCompiler(DeferredModule):
    """The parts of `torch._dynamo` that eager training uses. Once something else of it is used, functions that
    `disable` has returned behave as those of the package.
    """

    def __init__(self) -> None:
        super().__init__(COMPILER, {"OptimizedModule": DeferredName(COMPILER, "OptimizedModule")})
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
