"""The words of a bundle's config.json by which timm and transformers open it."""

import warnings
from collections.abc import Sequence
from typing import Any

from torch import nn

from vit.data import Preprocessing
from vit.data.images.bit_depth import FULL, beyond_eight_bits
from vit.weights.formats.timm import timm_arguments

CROP_MODES = {"squash": "squash", "none": "squash", "shorter": "center", "pad": "border"}  # our resize rule -> timm's


def timm_folder(model: nn.Module, classes: Sequence[str], preprocessing: Preprocessing) -> dict[str, Any] | None:
    """What config.json says to timm and transformers; None, and a warning why, where timm has no words for it."""
    arguments = timm_arguments(model.config)
    if isinstance(arguments, str):
        warnings.warn(f"saved under our own names, timm and transformers cannot load it ({arguments}); "
                      "vit convert --to transformers may know a family that can", stacklevel=3)
        return None
    if unsaid := _beyond_timm(preprocessing):
        text = f"timm and transformers will load this model, but prepare images another way: {unsaid}"
        warnings.warn(text, stacklevel=3)
    heads = ["head", "head_dist"] if getattr(model.config, "dist_token", False) else "head"
    cfg = getattr(model, "pretrained_cfg", None) or {"first_conv": "patch_embed.proj", "classifier": heads}
    height, width = preprocessing.size
    return {
        "architecture": arguments["architecture"],
        "num_classes": len(classes),
        "label_names": list(classes),
        "model_args": arguments["model_args"],
        "pretrained_cfg": {
            "input_size": [model.config.in_chans, height, width],
            "fixed_input_size": "img_size" in arguments["model_args"],
            "interpolation": preprocessing.interpolation,
            "crop_pct": preprocessing.crop_pct if preprocessing.resize != "none" else 1.0,
            "crop_mode": CROP_MODES[preprocessing.resize],
            "mean": list(preprocessing.mean),
            "std": list(preprocessing.std),
            "num_classes": len(classes),
            "pool_size": None,
            "first_conv": cfg["first_conv"],
            "classifier": cfg["classifier"],
        },
    }


def _beyond_timm(preprocessing: Preprocessing) -> str:
    """What timm's words cannot say about our preprocessing; nothing where they say it all."""
    mean = tuple(round(255 * value) for value in preprocessing.mean)
    if preprocessing.mode != "RGB":
        return f"they read RGB, this one {preprocessing.mode}"
    if preprocessing.range != FULL:
        return beyond_eight_bits(preprocessing.range)
    if preprocessing.resize == "pad" and preprocessing.background != mean:
        return f"they pad with the mean colour {mean}, not with the background {preprocessing.background}"
    return ""
