"""Networks of timm that no model of this project computes: they are used as timm's own, with a config of kind timm."""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from vit.models import TimmConfig
from vit.models.timm_model import timm_model
from vit.weights import DetectedWeights, WeightFormat
from vit.weights.formats.timm import build_meta_model

RATES = re.compile(r"(Dropout\w*\(p=|DropPath\(drop_prob=)[\d.e-]+")  # act in training only
# attributes that leave a prediction as it is, or follow from the size of the image
WITHOUT_EFFECT = re.compile(r"drop|^p$|training|init|checkpoint|fused|img_size|grid_size|num_patches|^[HW]$")


def no_config_values(state: Any, source_config: Mapping[str, Any]) -> dict[str, Any]:
    """Raises ValueError: such a network has no values of a Vision Transformer's config."""
    raise ValueError("it is not a Vision Transformer")


# a network of timm that is not a Vision Transformer, under its own names
OTHER_NETWORK = WeightFormat("another network of timm", lambda state: False, dict, no_config_values)


def find_timm_config(source_config: Mapping[str, Any]) -> TimmConfig | None:
    """The config of a model that timm builds from its name alone; None for a model with other arguments.

    Args:
        source_config: the `config.json` of a timm folder, or `{"module": model}` for one in memory.
    """
    try:
        source = source_config["module"] if "module" in source_config else build_meta_model(source_config)
        cfg = source.pretrained_cfg
        stated = (source_config.get("pretrained_cfg") or {}).get("input_size") or cfg["input_size"]
        size = getattr(getattr(source, "patch_embed", None), "img_size", None) or stated[1:]
        config = TimmConfig(cfg["architecture"], tuple(size), cfg["input_size"][0], source.num_classes)
        with torch.device("meta"):
            rebuilt = timm_model(config)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return config if have_equal_parts(rebuilt, source) else None


def have_equal_parts(a: nn.Module, b: nn.Module) -> bool:
    """Whether both models have the same layers, whatever their dropout, with the same numbers and names as attributes,
    and tensors of the same names and shapes.
    """
    shapes = [{name: tensor.shape for name, tensor in each.state_dict().items()} for each in (a, b)]
    layers = [RATES.sub(r"\1", str(each)) for each in (a, b)]
    return (shapes[0] == shapes[1] and layers[0] == layers[1] and pooling(a) == pooling(b)
            and list(map(attributes, a.modules())) == list(map(attributes, b.modules())))


def attributes(module: nn.Module) -> dict[str, Any]:
    """The numbers and names that a layer computes with, such as its number of heads."""
    return {key: value for key, value in vars(module).items() if is_plain(value) and not WITHOUT_EFFECT.search(key)}


def is_plain(value: Any) -> bool:
    return isinstance(value, int | float | str) or (isinstance(value, tuple | list) and all(map(is_plain, value)))


def pooling(model: nn.Module) -> str:
    """The pooling of a timm model: an option's name in a Vision Transformer, a module in other networks."""
    return str(getattr(model, "global_pool", ""))


def under_own_names(found: DetectedWeights) -> DetectedWeights:
    """The state dict for timm's own network, without conversion of the names."""
    unchanged = WeightFormat("timm's own", found.format.matches, dict, found.format.config_values)
    return DetectedWeights(unchanged, found.state)
