"""One run: from command-line overrides through Hydra to a trained model on disk.

Names are imported on first use, so that help and wrong overrides are answered without loading torch.
"""

import importlib

_MODULES = {
    "main": "vit.run.command",
    "train": "vit.run.training_run",
    "Run": "vit.run.result",
    "compose": "vit.run.config.composing",
    "ConfigError": "vit.run.config.overrides",
}


def __getattr__(name: str):
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
