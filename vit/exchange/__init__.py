"""Layer 2: weights of other projects are imported and exported, as files, folders and models in memory.

Names are imported on first use, because a conversion and the hub need libraries that nothing else does.
"""

import importlib

_MODULES = {
    "Checkpoint": "vit.exchange.checkpoint",
    "Hints": "vit.exchange.options",
    "SourceError": "vit.bundle.files",
    "import_weights": "vit.exchange.importing",
    "open_model": "vit.exchange.opening",
    "read_checkpoint": "vit.exchange.read",
}


def __getattr__(name: str):
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
