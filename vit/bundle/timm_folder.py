"""The keys of a bundle's config.json with which timm and transformers load it."""

import warnings
from collections.abc import Sequence
from typing import Any

from torch import nn

from vit.data import Preprocessing
from vit.data.decoding.bit_depth import FULL, beyond_eight_bits
from vit.weights.formats.timm import timm_arguments

CROP_MODES = {  # resize rule of vit -> timm
    "squash": "squash", "none": "squash", "aspect": "squash", "shorter": "center", "pad": "border",
}


def timm_folder(model: nn.Module, classes: Sequence[str], preprocessing: Preprocessing) -> dict[str, Any] | None:
    """The keys of a timm folder's config.json; None, and a warning with the reason, if timm does not support the model.

    A warning also names a preprocessing that timm does not support.
    """
    arguments = timm_arguments(model.config)
    if isinstance(arguments, str):
        warnings.warn(f"saved under vit's own names, which timm and transformers cannot load ({arguments}); "
                      "vit convert --to transformers may find a family that can", stacklevel=3)
        return None
    if unsupported := unsupported_preprocessing(preprocessing):
        text = f"timm and transformers will load this model, but prepare images another way: {unsupported}"
        warnings.warn(text, stacklevel=3)
    return {
        "architecture": arguments["architecture"],
        "num_classes": len(classes),
        "label_names": list(classes),
        "model_args": arguments["model_args"],
        "pretrained_cfg": pretrained_cfg(model, classes, preprocessing, "img_size" in arguments["model_args"]),
    }


def pretrained_cfg(
    model: nn.Module, classes: Sequence[str], preprocessing: Preprocessing, fixed_input_size: bool
) -> dict[str, Any]:
    """timm's description of the model's input, its first layer and its head."""
    heads = ["head", "head_dist"] if getattr(model.config, "dist_token", False) else "head"
    cfg = getattr(model, "pretrained_cfg", None) or {"first_conv": "patch_embed.proj", "classifier": heads}
    height, width = preprocessing.size
    return {
        "input_size": [model.config.in_chans, height, width],
        "fixed_input_size": fixed_input_size,
        "interpolation": preprocessing.interpolation,
        "crop_pct": preprocessing.crop_pct,
        "crop_mode": CROP_MODES[preprocessing.resize],
        "mean": list(preprocessing.mean),
        "std": list(preprocessing.std),
        "num_classes": len(classes),
        "pool_size": None,
        "first_conv": cfg["first_conv"],
        "classifier": cfg["classifier"],
    }


def unsupported_preprocessing(preprocessing: Preprocessing) -> str:
    """What timm does not support of a preprocessing, as a sentence; empty if it supports everything."""
    mean = tuple(round(255 * value) for value in preprocessing.mean)
    if preprocessing.mode != "RGB":
        return f"they read RGB, this one {preprocessing.mode}"
    if preprocessing.resize == "aspect":
        return "they resize every image to one size, this one keeps its aspect ratio"
    if preprocessing.range != FULL:
        return beyond_eight_bits(preprocessing.range)
    if preprocessing.resize == "pad" and preprocessing.background != mean:
        return f"they pad with the mean colour {mean}, not with the background {preprocessing.background}"
    return ""
