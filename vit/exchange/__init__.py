"""Second floor: models of others come in and go out, in files, folders and memory.

Names are imported on first use: what a hub or a conversion needs comes only where it is wanted.
"""

import importlib

_HOMES = {
    "Source": "vit.exchange.read",
    "SourceError": "vit.bundle.files",
    "import_weights": "vit.exchange.importing",
    "open_model": "vit.exchange.opening",
}


def __getattr__(name: str):
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
