"""The timm model that a config.json describes, without memory for its tensors."""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

LOADING_ARGUMENTS = {"pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path", "cache_dir"}
DEPTH_KEYS = ("depth", "layers", "blocks", "repeats")
MAX_DEPTH, MAX_NUMBER = 1_000, 10_000_000  # in model_args: of keys with one of DEPTH_KEYS, and of others


def build_meta_model(config: Mapping[str, Any]) -> Any:
    """The model on the meta device; only timm has its architectures.

    Args:
        config: the `config.json` of a timm folder.

    Raises:
        ValueError: the architecture is unknown, or timm cannot build it with these arguments.
    """
    import timm  # takes a second, which most programs do not need to wait for

    arguments, cfg = config.get("model_args") or {}, config.get("pretrained_cfg") or {}
    if not (isinstance(config["architecture"], str) and isinstance(arguments, dict) and isinstance(cfg, dict)):
        raise ValueError("the config's architecture must be a string, its model_args and pretrained_cfg objects")
    name, arguments = config["architecture"].split(".")[0], dict(arguments)
    if cfg.get("input_size"):
        arguments.setdefault("in_chans", cfg["input_size"][0])
    if cfg.get("fixed_input_size") and cfg.get("input_size"):
        arguments.setdefault("img_size", cfg["input_size"][1:])
    stated = {"num_classes": cfg.get("num_classes"), **config}
    for key in ("num_classes", "global_pool"):
        if stated.get(key) is not None:
            arguments.setdefault(key, stated[key])
    if not timm.is_model(name):
        raise ValueError(f"the config names the architecture {name!r}, which timm {timm.__version__} does not have")
    if loading := LOADING_ARGUMENTS & set(arguments):
        raise ValueError(f"the config's model_args have {min(loading)}, which would load another file; remove it")
    check_numbers(arguments)
    try:
        return create_on_meta(name, json.dumps(arguments, sort_keys=True))
    except (TypeError, ValueError, AssertionError, RuntimeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"timm cannot build {name} with the config's model_args: {reason}") from None


def check_numbers(arguments: Mapping[str, Any]) -> None:
    """Checks that no number is so large that timm would take hours to build the model.

    Raises:
        ValueError: one is too large.
    """
    for key, value in arguments.items():
        if isinstance(value, dict):
            check_numbers(value)
        most = MAX_DEPTH if any(part in key for part in DEPTH_KEYS) else MAX_NUMBER
        numbers = [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, int | float)]
        if numbers and not abs(max(numbers, key=abs)) <= most:
            raise ValueError(f"the config's model_args have {key}={value}, but the largest supported value is {most:,}")


@lru_cache(maxsize=4)  # one folder is read for its config values and for its declared config
def create_on_meta(name: str, arguments: str) -> Any:
    """timm's model without memory for its tensors; `arguments` are JSON, because a cache needs hashable ones."""
    import timm
    import torch

    with torch.device("meta"):
        return timm.create_model(name, **json.loads(arguments))
