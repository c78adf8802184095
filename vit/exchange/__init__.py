"""Layer 2: weights of other projects are imported and exported, as files, folders and models in memory.

Names are imported on first use, because a conversion and the hub need libraries that nothing else does.
"""

from typing import TYPE_CHECKING

from vit.lazy_names import lazy_names

if TYPE_CHECKING:  # for type checkers and editors, which do not execute `lazy_names`
    from vit.bundle.files import SourceError as SourceError
    from vit.exchange.checkpoint import Checkpoint as Checkpoint
    from vit.exchange.importing import import_weights as import_weights
    from vit.exchange.opening import open_model as open_model
    from vit.exchange.options import Hints as Hints
    from vit.exchange.read import read_checkpoint as read_checkpoint

_MODULES = {
    "Checkpoint": "vit.exchange.checkpoint",
    "Hints": "vit.exchange.options",
    "SourceError": "vit.bundle.files",
    "import_weights": "vit.exchange.importing",
    "open_model": "vit.exchange.opening",
    "read_checkpoint": "vit.exchange.read",
}

__getattr__, __dir__, __all__ = lazy_names(__name__, _MODULES)
