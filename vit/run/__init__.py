"""One run: from command-line overrides through Hydra to a trained model on disk.

Names are imported on first use, so that help and wrong overrides are answered without loading torch.
"""

import importlib

_HOMES = {
    "main": "command",
    "train": "training_run",
    "Run": "result",
    "compose": "config.composing",
    "ConfigError": "config.overrides",
}


def __getattr__(name: str):
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
