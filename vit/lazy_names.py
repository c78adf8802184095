"""Names of a package that are imported from its modules on first use."""

import importlib
import sys
from collections.abc import Callable, Mapping


def lazy_names(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package.

    Args:
        modules: name -> the module that defines it.
    """
    def get(name: str) -> object:
        if name in modules:
            return getattr(importlib.import_module(modules[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}; it offers {', '.join(sorted(modules))}")

    def names() -> list[str]:
        return sorted([*vars(sys.modules[package]), *modules])

    return get, names
