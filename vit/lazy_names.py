"""Names of a package that are imported from its modules on first use."""

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence


def lazy_names(
    package: str, modules: Mapping[str, str], packages: Sequence[str] = ()
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package.

    Args:
        modules: name -> the module that defines it.
        packages: names of the packages in it that are imported on first use; not part of `__all__`.
    """
    def get(name: str) -> object:
        if name in modules:
            return getattr(importlib.import_module(modules[name]), name)
        if name in packages:
            return importlib.import_module(f"{package}.{name}")
        offered = f"it offers {', '.join(sorted(modules))}"
        listed = f"{offered}, and the packages {', '.join(packages)}" if packages else offered
        raise AttributeError(f"module {package!r} has no attribute {name!r}; {listed}")

    def names() -> list[str]:
        special = (name for name in vars(sys.modules[package]) if name.startswith("__"))
        return sorted({*special, *modules, *packages})

    return get, names, sorted(modules)
