"""vit: Vision Transformers to train, fine-tune, understand and use.

Names are imported on first use, so that `import vit` costs nothing beyond Python itself.
"""

import importlib
import sys

from vit.moved_modules import MovedModules

__version__ = "0.1.0"

_MODULES = {
    "convert": "vit.exchange.convert",
    "create_model": "vit.models",
    "import_weights": "vit.exchange",
    "list_models": "vit.models",
    "load": "vit.inference",
    "train": "vit.run",
}

sys.meta_path.append(MovedModules())  # asked last, for names that no file has


def __getattr__(name: str):
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'vit' has no attribute {name!r}; it offers {', '.join(sorted(_MODULES))}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
