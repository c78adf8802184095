"""Layer 2: weights of other projects are imported and exported, as files, folders and models in memory.

Names are imported on first use, because a conversion and the hub need libraries that nothing else does.
"""

from vit.lazy_names import lazy_names

_MODULES = {
    "Checkpoint": "vit.exchange.checkpoint",
    "Hints": "vit.exchange.options",
    "SourceError": "vit.bundle.files",
    "import_weights": "vit.exchange.importing",
    "open_model": "vit.exchange.opening",
    "read_checkpoint": "vit.exchange.read",
}

__getattr__, __dir__ = lazy_names(__name__, _MODULES)
