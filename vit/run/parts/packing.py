"""`data.pack`: training on images that keep their aspect ratio, in batches without padding; configs of earlier versions
lack the key.
"""

import logging
from collections.abc import Mapping
from typing import Any

from torch import nn

from vit.data import PackedPreprocessing, Preprocessing
from vit.models import VisionTransformer
from vit.models.checks import packing_obstacle
from vit.run.config.composing import ConfigError, stated
from vit.run.config.overrides import checked
from vit.run.parts.recipe import PROGRESSIVE

log = logging.getLogger("vit")

RESIZING = ("resize", "crop_pct", "draft")  # keys of data.preprocessing that pack sets itself


def check_packing(config: dict) -> None:
    """Checks, before the data is read, that nothing in the config needs images of one size.

    Raises:
        ConfigError: names the key and a valid value.
    """
    data, recipe, model = config["data"], config["recipe"], config["model"]
    crop = recipe.get("crop")
    progressive, preprocessing = recipe.get("progressive") or {}, data["preprocessing"]
    resized = [] if config["resumed"] else [key for key in RESIZING if preprocessing.get(key) not in (None, False)]
    mixes = recipe.get("mixup") and any(key.split(".")[0] == "mixup" for key in stated(config["overrides"], "recipe"))
    for unfit, setting, reason, valid in (
        (config["task"]["name"] != "classification", f"task={config['task']['name']}",
         "masks equally many patches of each image", "task=classification"),
        (config["distill"]["kind"] != "none", f"distill={config['distill']['kind']}",
         "has a teacher for images of one size", "distill=none"),
        (mixes, "recipe.mixup", "mixes images of one size", "recipe.mixup=null"),
        (crop and crop["scale"] is None, "recipe.crop.scale=null",
         "crops to the aspect ratio of one size", "recipe.crop=null"),
        (progressive.get("image_size") is not None, f"{PROGRESSIVE}.image_size", "scales all images to one size",
         f"{PROGRESSIVE}.image_size=null"),
        (progressive.get("patch_drop") is not None, f"{PROGRESSIVE}.patch_drop",
         "keeps the same number of patches of every image", f"{PROGRESSIVE}.patch_drop=null"),
        *((True, f"data.preprocessing.{key}", "is for images of one size", f"data.preprocessing.{key}=null")
          for key in resized),
        (data["cache"] in ("memory", "disk", "device"), f"data.cache={data['cache']}", "stores images for one size",
         "data.cache=auto or none"),
        (config["compile"], f"compile={str(config['compile']).lower()}", "compiles for images of one size",
         "compile=false"),
        (config["strategy"]["name"] == "fsdp", "strategy=fsdp", "gathers the weights of a model for images of one size",
         "strategy=ddp"),
        (model.get("library") == "timm", "model.library=timm", "computes images of one size",
         "a model of this project, such as model=small"),
    ):
        if unfit:
            raise ConfigError(f"{setting} {reason}, but data.pack=true has images of different sizes; set {valid}, or "
                              "data.pack=false")
    check_model(model)


def check_model(values: Mapping[str, Any]) -> None:
    """Raises ConfigError for a value of a model that needs images of one size."""
    if reason := packing_obstacle(values):
        raise ConfigError(f"model.{reason}, but data.pack=true has images of different sizes; change it, or set "
                          "data.pack=false")


def drop_mixup(config: dict) -> None:
    """Remove the mixup of a recipe, in place and with a log line; one of an override is an error before."""
    if config["recipe"].get("mixup"):
        log.info("data.pack=true: images of different sizes are not mixed (recipe.mixup=null)")
        config["recipe"]["mixup"] = None


def packed_preprocessing(data: dict, preprocessing: Preprocessing, model: nn.Module) -> PackedPreprocessing:
    """The preprocessing that keeps aspect ratios, for the patches of the model.

    Raises:
        ConfigError: the model needs images of one size, or `data.max_patches` is invalid.
    """
    if not isinstance(model, VisionTransformer):
        raise ConfigError(f"data.pack=true is for the Vision Transformers of this project, not for {model.config.kind} "
                          "models; set data.pack=false")
    check_model(model.config.to_dict())  # its values may be those of init_from
    if isinstance(preprocessing, PackedPreprocessing):  # of a resumed run
        return preprocessing
    values = {"patch_size": model.config.patch_size, "max_patches": data["max_patches"]}
    made = checked("data", lambda values: PackedPreprocessing.of(preprocessing, **values), values)
    if (least := data["min_patches"] or 1) > made.max_patches:
        raise ConfigError(f"data.min_patches={least} is larger than the {made.max_patches} patches that an image has "
                          "at most; choose a smaller number, or a larger data.max_patches")
    rows, columns = model.config.grid
    log.info("images keep their aspect ratio: at most %d patches each; positions are resampled from %dx%d patches",
             made.max_patches, rows, columns)
    return made
