"""vit: Vision Transformers to train, fine-tune, understand and use.

Names are imported on first use, so that `import vit` costs nothing beyond Python itself.
"""

import sys

from vit.lazy_names import lazy_names
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

sys.meta_path.append(MovedModules())  # last, for names that no file has

__getattr__, __dir__ = lazy_names(__name__, _MODULES)
