"""One run: from command-line overrides through Hydra to a trained model on disk.

Names are imported on first use, so that help and errors of overrides are printed without loading torch.
"""

from typing import TYPE_CHECKING

from vit.lazy_names import lazy_names

if TYPE_CHECKING:  # for type checkers and editors, which do not execute `lazy_names`
    from vit.run.command import main as main
    from vit.run.command import train as train
    from vit.run.config.composing import compose as compose
    from vit.run.config.overrides import ConfigError as ConfigError
    from vit.run.result import Run as Run

_MODULES = {
    "main": "vit.run.command",
    "train": "vit.run.command",
    "Run": "vit.run.result",
    "compose": "vit.run.config.composing",
    "ConfigError": "vit.run.config.overrides",
}

__getattr__, __dir__, __all__ = lazy_names(__name__, _MODULES)
