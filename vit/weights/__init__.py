"""Checkpoints of other projects: conversion of parameter names and shapes to those of vit and back, and loading with a
report.

`formats` has one module per foreign format; everything else here is shared by all of them.
"""

import warnings
from typing import Any

from vit.weights.config_inference import infer_config, published_num_heads
from vit.weights.format_detection import FORMATS, DetectedWeights, detect_format
from vit.weights.formats.bert import from_bert, to_bert
from vit.weights.formats.timm import from_timm, timm_arguments, to_timm
from vit.weights.formats.torchvision import from_torchvision
from vit.weights.formats.transformers import from_transformers
from vit.weights.key_report import KeyReport, KeyRow
from vit.weights.loading import load_weights
from vit.weights.weight_format import WeightFormat

__all__ = [
    "FORMATS", "DetectedWeights", "KeyReport", "KeyRow", "WeightFormat", "detect_format", "from_bert", "from_timm",
    "from_torchvision", "from_transformers", "infer_config", "load_weights", "published_num_heads", "timm_arguments",
    "to_bert", "to_timm",
]
FORMER_NAMES = {"Format": "WeightFormat", "Recognised": "DetectedWeights", "detect": "infer_config",
                "published_heads": "published_num_heads", "recognise": "detect_format"}


def __getattr__(name: str) -> Any:
    if name not in FORMER_NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"vit.weights.{name} is now {FORMER_NAMES[name]}", DeprecationWarning, stacklevel=2)
    return globals()[FORMER_NAMES[name]]
