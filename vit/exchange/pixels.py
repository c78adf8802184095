"""How images are prepared, in the words of timm and transformers, as our contract."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from vit.bundle.files import SourceError
from vit.data import Preprocessing
from vit.data.images.bit_depth import FULL, beyond_eight_bits

CROP_MODES = {"center": "shorter", "squash": "squash", "border": "pad"}  # timm's -> our resize rule
OPENCLIP_RESIZE = {"shortest": "shorter", "longest": "pad", "squash": "squash"}
RESAMPLING = ("nearest", "lanczos", "bilinear", "bicubic", "box")  # Pillow's numbers, which transformers writes
INTERPOLATIONS = {"random": "bicubic"}  # timm's word for training with several


def of_timm(cfg: Mapping[str, Any]) -> Preprocessing:
    """timm's `pretrained_cfg`, or what `resolve_model_data_config` makes of it."""
    resize = CROP_MODES[cfg.get("crop_mode") or "center"]
    interpolation = cfg.get("interpolation") or "bicubic"
    return Preprocessing(
        tuple(cfg["input_size"][1:]),
        resize,
        1.0 if resize == "pad" else cfg.get("crop_pct") or 0.875,
        INTERPOLATIONS.get(interpolation, interpolation),
        **colours(cfg["mean"], cfg["std"], cfg["input_size"][0]),
    )


def of_openclip(cfg: Mapping[str, Any], model: Mapping[str, Any]) -> Preprocessing:
    """`preprocess_cfg` of an open_clip_config.json, and the image size of the model it stands beside."""
    size = cfg.get("size") or model["vision_cfg"]["image_size"]
    resize = OPENCLIP_RESIZE[cfg.get("resize_mode") or "shortest"]
    return Preprocessing((size, size) if isinstance(size, int) else tuple(size), resize, 1.0,
                         cfg.get("interpolation") or "bicubic", **colours(cfg["mean"], cfg["std"]))


def colours(mean: Sequence[float], std: Sequence[float], channels: int | None = None) -> dict[str, Any]:
    """Mean and deviation of the channels, and that one channel is a grey image; it takes the mean of three."""
    grey = 1 in (channels, len(mean))
    values = {name: tuple(each) for name, each in (("mean", mean), ("std", std))}
    if not grey:
        return values
    return {"mode": "L", **{name: (sum(each) / len(each),) for name, each in values.items()}}


def of_transformers(values: Mapping[str, Any]) -> Preprocessing:
    """What `preprocessor_config.json` of transformers says.

    Raises:
        SourceError: a rule that ours do not have, such as no resizing at all.
    """
    crops = bool(values.get("do_center_crop", False))
    size, crop = edges(values.get("size", 224)), edges(values.get("crop_size", values.get("size", 224)))
    mean, std = values["image_mean"], values["image_std"]
    if not values.get("do_normalize", True):
        mean, std = (0.0,) * len(mean), (1.0,) * len(std)
    interpolation, shared = RESAMPLING[values.get("resample", 3)], colours(mean, std)
    if len(size) == 1 and crops and len(crop) == 2 and max(crop) <= size[0]:
        return Preprocessing(crop, "shorter", min(crop) / size[0], interpolation, **shared)
    if len(size) == 2 and (not crops or crop == size):
        return Preprocessing(size, "squash", 1.0, interpolation, **shared)
    raise SourceError(f"preprocessor_config.json asks for size {values.get('size')} and crop "
                      f"{values.get('crop_size')}, which is neither a shorter edge with a crop nor one size")


def for_transformers(preparation: Preprocessing) -> tuple[dict[str, Any], str]:
    """What `preprocessor_config.json` says for a contract, and what it cannot say."""
    height, width = preparation.size
    unsaid = {"pad": "they do not pad", "none": "they resize every image"}.get(preparation.resize, "")
    if preparation.mode != "RGB":
        unsaid = f"they read RGB, this one {preparation.mode}"
    if preparation.range != FULL:
        unsaid = beyond_eight_bits(preparation.range)
    values = {
        "do_convert_rgb": True, "do_resize": True, "resample": RESAMPLING.index(preparation.interpolation),
        "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True, "image_mean": list(preparation.mean),
        "image_std": list(preparation.std),
    }
    if preparation.resize == "shorter" and height == width:
        covered = math.floor(height / preparation.crop_pct)
        return {"image_processor_type": "CLIPImageProcessor", **values, "size": {"shortest_edge": covered},
                "do_center_crop": True, "crop_size": {"height": height, "width": width}}, unsaid
    if preparation.resize == "shorter":
        unsaid = unsaid or "they do not cut images that are not square out of larger ones"
    elif preparation.crop_pct != 1:
        unsaid = unsaid or f"they do not cut out a part of {preparation.crop_pct} after squashing"
    return {"image_processor_type": "ViTImageProcessor", **values, "size": {"height": height, "width": width}}, unsaid


def edges(size: Any) -> tuple[int, ...]:
    """(height, width), or (shorter edge,)"""
    if isinstance(size, int):
        return size, size
    if isinstance(size, Mapping):
        return (size["shortest_edge"],) if "shortest_edge" in size else (size["height"], size["width"])
    return tuple(size)


OPENAI = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)  # of CLIP's training images
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
HALF = (0.5,) * 3, (0.5,) * 3
# format -> resize rule, crop_pct, interpolation, mean and std of all that was published in it
USUAL = {
    "transformers CLIP": ("shorter", 1.0, "bicubic", *OPENAI),
    "OpenAI CLIP or OpenCLIP": ("shorter", 1.0, "bicubic", *OPENAI),
    "transformers SigLIP": ("squash", 1.0, "bicubic", *HALF),
    "Google's npz": ("squash", 1.0, "bilinear", *HALF),
    "torchvision": ("shorter", 0.875, "bilinear", *IMAGENET),
}


def usual(name: str, size: tuple[int, int]) -> Preprocessing | None:
    """How all published models of a format want their images; None where these differ among themselves."""
    return Preprocessing(size, *USUAL[name]) if name in USUAL else None
