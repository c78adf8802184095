"""The preprocessing of images in the configs of timm, OpenCLIP and transformers, and as our `Preprocessing`."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from vit.bundle.files import SourceError
from vit.data import Preprocessing
from vit.data.decoding.bit_depth import FULL, beyond_eight_bits
from vit.data.images.preprocessing import TIMM, TORCHVISION, TRANSFORMERS
from vit.data.images.preprocessing_values import IMAGENET_MEAN, IMAGENET_STD, as_size

CROP_MODES = {"center": "shorter", "squash": "squash", "border": "pad"}  # timm's -> our resize rule
OPENCLIP_RESIZE = {"shortest": "shorter", "longest": "pad", "squash": "squash"}
RESAMPLING = ("nearest", "lanczos", "bilinear", "bicubic", "box")  # Pillow's numbers, which transformers writes
INTERPOLATIONS = {"random": "bicubic"}  # timm trains such models with several
OPENAI = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)  # of CLIP's training images
IMAGENET = IMAGENET_MEAN, IMAGENET_STD
HALF = (0.5,) * 3, (0.5,) * 3
# what keys that pretrained_cfg lacks stand for in timm
TIMM_DEFAULTS = {"input_size": (3, 224, 224), "mean": IMAGENET_MEAN, "std": IMAGENET_STD}
PREPROCESSING_KEYS = {*TIMM_DEFAULTS, "crop_pct", "crop_mode", "interpolation"}
# of transformers' image processors: what keys that are missing or null in preprocessor_config.json stand for
OTHER_PROCESSOR = {"size": 224, "default_to_square": True, "do_center_crop": False, "resample": 3}
SHORTER_EDGE = {"default_to_square": False, "do_center_crop": True, "crop_size": 224}
PROCESSORS: dict[str, dict[str, Any]] = {
    "ViT": {"resample": 2, "normalized": HALF},
    "DINOv3ViT": {"resample": 2, "normalized": IMAGENET},
    "DeiT": {"size": 256, "do_center_crop": True, "crop_size": 224, "normalized": HALF},
    **dict.fromkeys(("CLIP", "Bit"), {**SHORTER_EDGE, "normalized": OPENAI}),
    **dict.fromkeys(("Siglip", "Beit"), {"normalized": HALF}),
}
# of image classifiers that resize, reorder or normalize in a way that their keys do not state
OTHER_STEPS = ("ConvNext", "EfficientNet", "Levit", "MobileViT", "PPLCNet", "Perceiver", "PoolFormer", "TextNet")
PROCESSOR_NAME = re.compile(r"(ImageProcessor|FeatureExtractor)(Fast|Pil)?$")
MODEL_PROCESSORS = {  # model_type -> its image processor
    **dict.fromkeys(("vit", "vit_mae", "vit_msn", "ijepa"), "ViT"), "deit": "DeiT", "dinov3_vit": "DINOv3ViT",
    **dict.fromkeys(("dinov2", "dinov2_with_registers"), "Bit"), **dict.fromkeys(("clip", "clip_vision_model"), "CLIP"),
    **dict.fromkeys(("siglip", "siglip_vision_model"), "Siglip"),
}


def from_timm(cfg: Mapping[str, Any]) -> Preprocessing:
    """The preprocessing of timm's `pretrained_cfg`, or of the result of `resolve_model_data_config`; a key that is
    missing or null has timm's default, and timm pads with the mean colour.

    Raises:
        SourceError: images are padded and cropped.
    """
    cfg = TIMM_DEFAULTS | {key: value for key, value in cfg.items() if value is not None}
    resize, crop_pct = CROP_MODES[cfg.get("crop_mode") or "center"], cfg.get("crop_pct") or 0.875
    if resize == "pad" and crop_pct != 1:
        raise SourceError(f"pretrained_cfg has crop_mode=border with crop_pct={crop_pct}, which pads images and then "
                          "crops them; padded images are not cropped here, so set crop_pct to 1")
    interpolation = cfg.get("interpolation") or "bicubic"
    padded = {"background": mean_colour(cfg["mean"])} if resize == "pad" else {}
    size = tuple(cfg["input_size"][1:])
    return Preprocessing(
        size,
        resize,
        crop_pct,
        INTERPOLATIONS.get(interpolation, interpolation),
        **channel_values(cfg["mean"], cfg["std"], cfg["input_size"][0]),
        **padded,
        rounding=timm_rounding(size, resize),
    )


def timm_rounding(size: tuple[int, ...], resize: str) -> str:
    """The rounding of timm and OpenCLIP, which is torchvision's for squares and without an aspect ratio."""
    return TIMM if resize == "pad" or resize == "shorter" and len(set(size)) > 1 else TORCHVISION


def mean_colour(mean: Sequence[float]) -> tuple[int, ...]:
    """The mean as the background of three channels, 0..255."""
    return tuple(round(255 * value) for value in (mean if len(mean) == 3 else [sum(mean) / len(mean)] * 3))


def from_openclip(cfg: Mapping[str, Any], model: Mapping[str, Any]) -> Preprocessing:
    """The preprocessing of `preprocess_cfg` in open_clip_config.json; its `model_cfg` may hold the image size. Images
    are padded with `fill_color`, by default black.
    """
    size = cfg.get("size") or model["vision_cfg"]["image_size"]
    resize = OPENCLIP_RESIZE[cfg.get("resize_mode") or "shortest"]
    padded = {"background": (int(cfg.get("fill_color") or 0),) * 3} if resize == "pad" else {}
    size = as_size(size)
    rectangle = resize == "shorter" and len(set(size)) > 1  # which OpenCLIP resizes with "bicubic" in any case
    interpolation = "bicubic" if rectangle else cfg.get("interpolation") or "bicubic"
    return Preprocessing(size, resize, 1.0, INTERPOLATIONS.get(interpolation, interpolation),
                         **channel_values(cfg["mean"], cfg["std"]), **padded, rounding=timm_rounding(size, resize))


def channel_values(mean: Sequence[float], std: Sequence[float], channels: int | None = None) -> dict[str, Any]:
    """`mean` and `std`, and `mode` "L" for one channel, whose values are the average over three."""
    grey = 1 in (channels, len(mean))
    values = {name: tuple(each) for name, each in (("mean", mean), ("std", std))}
    if not grey:
        return values
    return {"mode": "L", **{name: (sum(each) / len(each),) for name, each in values.items()}}


def with_channels(preprocessing: Preprocessing, channels: int) -> Preprocessing:
    """The same preprocessing for a model of one channel, or of three, with the mean and std averaged or repeated; for
    another number of channels as it is.
    """
    if channels == preprocessing.channels or channels not in (1, 3):
        return preprocessing
    mean, std = ((sum(each) / len(each),) * channels for each in (preprocessing.mean, preprocessing.std))
    return preprocessing.replace(mode="L" if channels == 1 else "RGB", mean=mean, std=std)


def from_transformers(values: Mapping[str, Any], model_type: str | None = None) -> Preprocessing:
    """The preprocessing of transformers' image processor; a key that is missing or null has the default of its class.

    Args:
        model_type: `model_type` of config.json, which determines the image processor if the values name none.

    Raises:
        SourceError: a rule that `Preprocessing` does not have, such as no resizing at all.
    """
    stated = {key: value for key, value in values.items() if value is not None}
    if (name := processor_name(stated, model_type)) in OTHER_STEPS:
        raise SourceError(f"{name}ImageProcessor of transformers prepares images in steps that are not supported here; "
                          "give the folder a preprocessor_config.json of a ViTImageProcessor if its pixels are right")
    stated = processor_defaults(stated, model_type) | stated
    if not stated.get("do_resize", True):
        raise SourceError("the image processor has do_resize=false: images keep their sizes, but the model needs one "
                          "size")
    crops, square = stated["do_center_crop"], stated["default_to_square"]
    size = edges(stated["size"], square)
    crop = edges(stated.get("crop_size", stated["size"]))
    mean, std = normalization(stated)
    interpolation, shared = RESAMPLING[stated["resample"]], channel_values(mean, std)
    if len(size) == 1 and crops and len(set(crop)) == 1 and crop[0] <= size[0]:
        return Preprocessing((crop[0], crop[0]), "shorter", exact_crop_pct(crop[0], size[0]), interpolation, **shared,
                             rounding=TRANSFORMERS)
    if len(size) == 2 and (not crops or crop == size):
        return Preprocessing(size, "squash", 1.0, interpolation, **shared)
    if len(set(size)) == len(set(crop)) == 1 and len(size) == len(crop) == 2 and crop[0] <= size[0]:
        return Preprocessing(crop, "squash", exact_crop_pct(crop[0], size[0]), interpolation, **shared,
                             rounding=TRANSFORMERS)
    raise SourceError(f"the image processor has size {values.get('size')} and crop "
                      f"{values.get('crop_size')}, which is neither a shorter edge with a square crop nor one size")


def states_preprocessing(values: Mapping[str, Any], model_type: str | None) -> bool:
    """Whether the values of an image processor determine how pixels are normalized, by themselves or by the defaults
    of its class.
    """
    normalized = values.get("image_mean") is not None or values.get("do_normalize") is False
    known = processor_name(values, model_type) in OTHER_STEPS or "normalized" in processor_defaults(values, model_type)
    return bool(values) and (normalized or known)


def processor_name(values: Mapping[str, Any], model_type: str | None) -> str:
    """The image processor that the values name, else that of the model type, without the ending of its class."""
    named = values.get("image_processor_type") or values.get("feature_extractor_type")
    return PROCESSOR_NAME.sub("", str(named)) if named else MODEL_PROCESSORS.get(model_type or "", "")


def processor_defaults(values: Mapping[str, Any], model_type: str | None) -> dict[str, Any]:
    """The defaults of the image processor that the values name, else of that of the model type."""
    return {**OTHER_PROCESSOR, **PROCESSORS.get(processor_name(values, model_type), {})}


def normalization(values: Mapping[str, Any]) -> tuple[list[float], list[float]]:
    """mean and std of pixels in [0, 1], which transformers multiplies by 255 `rescale_factor` before; `normalized` has
    those of values without their own.
    """
    means, stds = values.get("normalized", HALF)
    mean, std = list(values.get("image_mean", means)), list(values.get("image_std", stds))
    if not values.get("do_normalize", True):
        mean, std = [0.0] * len(mean), [1.0] * len(std)
    scale = 255 * (values.get("rescale_factor", 1 / 255) if values.get("do_rescale", True) else 1)
    if math.isclose(scale, 1):
        return mean, std
    return [value / scale for value in mean], [value / scale for value in std]


def exact_crop_pct(crop: int, size: int) -> float:
    """The part of `size` that a crop takes, such that `floor(crop / part)` is `size` again, however it is rounded."""
    part = crop / size
    return part if math.floor(crop / part) == size else math.nextafter(part, 0)


def to_transformers(preprocessing: Preprocessing) -> tuple[dict[str, Any], str]:
    """The values of `preprocessor_config.json`, and what it cannot express ("" where it expresses everything)."""
    height, width = preprocessing.size
    gap = {"pad": "they do not pad", "none": "they resize every image",
           "aspect": "they resize every image to one size"}.get(preprocessing.resize, "")
    if preprocessing.mode != "RGB":
        gap = f"they read RGB, this model {preprocessing.mode}"
    if preprocessing.range != FULL:
        gap = beyond_eight_bits(preprocessing.range)
    values = {
        "do_convert_rgb": True, "do_resize": True, "resample": RESAMPLING.index(preprocessing.interpolation),
        "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True, "image_mean": list(preprocessing.mean),
        "image_std": list(preprocessing.std),
    }
    if preprocessing.resize == "shorter" and height == width:
        covered = math.floor(height / preprocessing.crop_pct)
        return {"image_processor_type": "CLIPImageProcessor", **values, "size": {"shortest_edge": covered},
                "do_center_crop": True, "crop_size": {"height": height, "width": width}}, gap
    if preprocessing.resize == "shorter":
        gap = gap or "they do not crop a rectangle"
    elif preprocessing.crop_pct != 1:
        gap = gap or f"they do not crop to crop_pct {preprocessing.crop_pct} after squashing"
    return {"image_processor_type": "ViTImageProcessor", **values, "size": {"height": height, "width": width}}, gap


def edges(size: Any, square: bool = True) -> tuple[int, ...]:
    """(height, width), or (shorter edge,) for a single number that is not `square`."""
    if isinstance(size, int):
        return (size, size) if square else (size,)
    if isinstance(size, Mapping):
        return (size["shortest_edge"],) if "shortest_edge" in size else (size["height"], size["width"])
    return tuple(size)


# format -> resize rule, crop_pct, interpolation, mean and std of all its published models; torchvision's of 224 pixels
# differ (IMAGENET1K_V1, IMAGENET1K_SWAG_LINEAR_V1), which their files do not state
PUBLISHED = {
    "transformers CLIP": ("shorter", 1.0, "bicubic", *OPENAI),
    "OpenAI CLIP or OpenCLIP": ("shorter", 1.0, "bicubic", *OPENAI),
    "transformers SigLIP": ("squash", 1.0, "bicubic", *HALF),
    "Google's npz": ("squash", 1.0, "bilinear", *HALF),
    "torchvision": ("shorter", 0.875, "bilinear", *IMAGENET),
}
SWAG_SIZES = (384, 512, 518)  # of torchvision's models that SWAG fine-tuned end to end (IMAGENET1K_SWAG_E2E_V1)
SWAG = ("shorter", 1.0, "bicubic", *IMAGENET)
DEFAULT = ("shorter", 0.875, "bicubic", *IMAGENET)  # timm's, where nothing is stated


def published_preprocessing(format_name: str, size: tuple[int, int]) -> Preprocessing | None:
    """The preprocessing that all published models of a format (of torchvision, those of this size) share; None where
    they differ.
    """
    if format_name not in PUBLISHED:
        return None
    rounding = TRANSFORMERS if format_name == "transformers CLIP" else TORCHVISION
    swag = format_name == "torchvision" and size[0] in SWAG_SIZES
    return Preprocessing(size, *(SWAG if swag else PUBLISHED[format_name]), rounding=rounding)


def assumed_preprocessing(format_name: str, size: tuple[int, int], channels: int) -> Preprocessing:
    """The preprocessing of a model that states none: that of its format's published models, else timm's default."""
    found = published_preprocessing(format_name, size) or Preprocessing(size, *DEFAULT)
    return found.replace(**channel_values(found.mean, found.std, channels))
