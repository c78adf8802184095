"""The top floor: command-line words through Hydra to a finished run.

Names are imported on first use, so that help and typing errors are answered without loading torch.
"""

import importlib

_HOMES = {
    "main": "command",
    "train": "run",
    "Run": "run",
    "compose": "composing",
    "ConfigError": "composing",
}


def __getattr__(name: str):
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
