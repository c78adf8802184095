"""Sources of weights: what may be passed as one, and the names of files that hold weights or describe them."""

from collections.abc import Mapping
from os import PathLike
from typing import Any

from torch import nn

from vit.bundle import CONFIG
from vit.bundle.files import ACCEPTED
from vit.exchange.source_names import HUB, TIMM

WeightSource = str | PathLike[str] | Mapping[str, Any] | nn.Module

WEIGHT_FILES = ("model.safetensors", "model.safetensors.index.json", "open_clip_model.safetensors",
                "pytorch_model.bin", "pytorch_model.bin.index.json", "open_clip_pytorch_model.bin")
CONFIG_FILES = (CONFIG, "open_clip_config.json")
PROCESSOR_FILE, README = "preprocessor_config.json", "README.md"
PROCESSORS_FILE = "processor_config.json"  # of transformers 5, with all processors of a model of images and texts
ACCEPTED_SOURCES = (f"a file ({ACCEPTED}), a folder of this project, timm or transformers, {TIMM}NAME or "
                    f"{HUB}OWNER/NAME")
