"""Models of timm that none of ours computes: they stay timm's own networks, under our roof."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from vit.models import TimmConfig
from vit.models.timm_model import timm_model
from vit.weights import DetectedWeights, WeightFormat
from vit.weights.formats.timm import build_meta_model


def no_facts(state: Any, source_config: Mapping[str, Any]) -> dict[str, Any]:
    raise ValueError("it is no Vision Transformer")


# a network of timm that is no Vision Transformer, under its own names
OTHER_NETWORK = WeightFormat("another network of timm", lambda state: False, dict, no_facts)


def timms_own(config: Mapping[str, Any]) -> TimmConfig | None:
    """The config of a model that timm builds by its name alone; None for one that was changed.

    Args:
        config: the `config.json` of a timm folder, or `{"module": model}` for one in memory.
    """
    try:
        theirs = config["module"] if "module" in config else build_meta_model(config)
        cfg = theirs.pretrained_cfg
        size = getattr(getattr(theirs, "patch_embed", None), "img_size", None) or cfg["input_size"][1:]
        made = TimmConfig(cfg["architecture"], tuple(size), cfg["input_size"][0], theirs.num_classes)
        with torch.device("meta"):
            ours = timm_model(made)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return made if alike(ours, theirs) else None


def alike(a: nn.Module, b: nn.Module) -> bool:
    """Whether both have the same parts in the same shapes."""
    shapes = [{name: tensor.shape for name, tensor in each.state_dict().items()} for each in (a, b)]
    return shapes[0] == shapes[1] and str(a) == str(b) and pooling(a) == pooling(b)


def pooling(model: nn.Module) -> str:
    """A word in a Vision Transformer, a module in other networks."""
    return str(getattr(model, "global_pool", ""))


def as_it_is(known: DetectedWeights) -> DetectedWeights:
    """A state dict under its own names."""
    unchanged = WeightFormat("timm's own", known.format.matches, dict, known.format.config_values)
    return DetectedWeights(unchanged, known.state)
