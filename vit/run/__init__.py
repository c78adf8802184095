"""One run: from command-line overrides through Hydra to a trained model on disk.

Names are imported on first use, so that help and errors of overrides are printed without loading torch.
"""

from vit.lazy_names import lazy_names

_MODULES = {
    "main": "vit.run.command",
    "train": "vit.run.command",
    "Run": "vit.run.result",
    "compose": "vit.run.config.composing",
    "ConfigError": "vit.run.config.overrides",
}

__getattr__, __dir__ = lazy_names(__name__, _MODULES)
