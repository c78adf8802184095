"""Sources of weights: what may be passed as one, and the names of files that hold weights or describe them."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from torch import nn

from vit.bundle import CONFIG, WEIGHTS
from vit.bundle.files import ACCEPTED, read_json

WeightSource = str | PathLike[str] | Mapping[str, Any] | nn.Module

TIMM, HUB = "timm:", "hub:"
TIMM_SLASH = "timm/"  # accepted as well, where no such path exists
WEIGHT_FILES = ("model.safetensors", "model.safetensors.index.json", "open_clip_model.safetensors",
                "pytorch_model.bin", "pytorch_model.bin.index.json", "open_clip_pytorch_model.bin")
CONFIG_FILES = (CONFIG, "open_clip_config.json")
PROCESSOR_FILE = "preprocessor_config.json"
ACCEPTED_SOURCES = (f"a file ({ACCEPTED}), a folder of this project, timm or transformers, {TIMM}NAME or "
                    f"{HUB}OWNER/NAME")


def is_foreign(source: WeightSource) -> bool:
    """Whether this is neither a bundle nor a run folder of this project; a missing path counts as not foreign."""
    if not isinstance(source, str | PathLike):
        return True
    name, path = str(source), Path(source).expanduser()
    if name.startswith((TIMM, HUB)) or name.startswith(TIMM_SLASH) and not path.exists():
        return True
    if path.is_file():
        if path.name not in (CONFIG, WEIGHTS):
            return True
        path = path.parent
    if (path / CONFIG).is_file():
        return "vit" not in read_json(path / CONFIG)
    return path.is_dir() and not (path / "model" / CONFIG).is_file() and any((path / name).is_file()
                                                                             for name in WEIGHT_FILES)
