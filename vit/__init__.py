"""vit: Vision Transformers to train, fine-tune, understand and use.

Names and packages, as `vit.load` and `vit.nn`, are imported on first use, so that `import vit` costs nothing beyond
Python itself.
"""

import sys
from typing import TYPE_CHECKING

from vit.lazy_names import lazy_names
from vit.moved_modules import MovedModules

__version__ = "0.1.0"

if TYPE_CHECKING:  # for type checkers and editors, which do not execute `lazy_names`
    from vit import bundle as bundle
    from vit import data as data
    from vit import evaluation as evaluation
    from vit import exchange as exchange
    from vit import generation as generation
    from vit import inference as inference
    from vit import models as models
    from vit import nn as nn
    from vit import report as report
    from vit import run as run
    from vit import tasks as tasks
    from vit import training as training
    from vit import weights as weights
    from vit.exchange import import_weights as import_weights
    from vit.exchange.convert import convert as convert
    from vit.inference import load as load
    from vit.models import create_model as create_model
    from vit.models import list_models as list_models
    from vit.run import train as train

_MODULES = {
    "convert": "vit.exchange.convert",
    "create_model": "vit.models",
    "import_weights": "vit.exchange",
    "list_models": "vit.models",
    "load": "vit.inference",
    "train": "vit.run",
}
_PACKAGES = ("bundle", "data", "evaluation", "exchange", "generation", "inference", "models", "nn", "report", "run",
             "tasks", "training", "weights")

sys.meta_path.append(MovedModules())  # last, for names that no file has

__getattr__, __dir__, __all__ = lazy_names(__name__, _MODULES, _PACKAGES)
