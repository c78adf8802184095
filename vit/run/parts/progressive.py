"""Progressive training, from `recipe.progressive`."""

import dataclasses
import logging
from functools import partial

from torch import nn

from vit.models import VisionTransformer
from vit.nn import PatchDropout
from vit.run.config.checked import checked
from vit.run.config.composing import ConfigError
from vit.training import Progressive, build_stages

log = logging.getLogger("vit")

NODE = "recipe.progressive"
SCHEDULES = ("image_size", "patch_drop")  # keys of the node that are null, or the first and the last value


def is_progressive(recipe: dict) -> bool:
    """Whether the recipe has a schedule; those of earlier versions lack the node."""
    return any((recipe.get("progressive") or {}).get(key) is not None for key in SCHEDULES)


def build_progressive(recipe: dict, model: nn.Module) -> Progressive | None:
    """The schedule of the recipe, None without one. The model then accepts its image sizes and drops patches at its
    rates.

    Raises:
        ConfigError: a value is out of range, or the model cannot be trained in this way.
    """
    if not is_progressive(recipe):
        return None
    node = recipe["progressive"]
    if not isinstance(model, VisionTransformer):
        keys = " and ".join(f"{NODE}.{key}" for key in SCHEDULES)
        raise ConfigError(f"{keys} are for the Vision Transformers of this project, not for {model.config.kind} models;"
                          " set both to null")
    config = model.config
    build = partial(build_stages, node["stages"], full_size=config.image_size, patch_size=config.patch_size)
    stages = checked(NODE, build, {key: node[key] for key in SCHEDULES}, unpack=True)
    made = Progressive(stages, node["until"])
    if made.image_sizes:
        checked(f"{NODE}.image_size", model.add_image_sizes, made.image_sizes)
    if made.patch_drops:
        add_patch_dropout(model, made)
    sizes = ", ".join(f"{height}x{width}" for height, width in made.image_sizes)
    drops = ", ".join(f"{rate:.3g}" for rate in made.patch_drops)
    parts = ([f"images of {sizes} pixels"] if sizes else []) + ([f"patch_drop {drops}"] if drops else [])
    log.info("progressive training: %d stages, %s; the last from %.0f %% of the steps on", len(stages),
             "; ".join(parts), 100 * made.until)
    return made


def add_patch_dropout(model: VisionTransformer, made: Progressive) -> None:
    """Give the encoder a `PatchDropout`, whose rate is that of the stage.

    Raises:
        ConfigError: the model has a rate of its own, or needs all patches.
    """
    config = model.config
    if config.patch_dropout:
        raise ConfigError(f"{NODE}.patch_drop and model.patch_dropout={config.patch_dropout} both drop patches; set "
                          "one of them to null")
    replaced = partial(dataclasses.replace, config, patch_dropout=max(made.patch_drops))
    checked(f"{NODE}.patch_drop", replaced, {}, unpack=True)
    model.encoder.patch_dropout = PatchDropout(made.patch_drops[0], config.prefix)
