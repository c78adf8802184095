"""Second floor: models of others come in and go out, in files, folders and memory.

Names are imported on first use: a bundle reads files with what stands here, and needs nothing else of it.
"""

import importlib

_HOMES = {
    "Source": "read",
    "SourceError": "files",
    "import_weights": "importing",
    "open_model": "opening",
}


def __getattr__(name: str):
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
