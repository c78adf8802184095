"""Networks of timm by name, and those that no model of this project computes: they are used as timm's own, with a
config of kind timm.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vit.bundle.files import SourceError
from vit.exchange.source_names import TIMM
from vit.exchange.sources import WEIGHT_FILES
from vit.messages import with_cause
from vit.models import TimmConfig
from vit.models.timm_model import nearest_timm_models, timm_model
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


def timm_config_by_name(file: Path, state: Mapping[str, Tensor]) -> dict[str, Any]:
    """The config of a timm folder for a file that is named after a timm model, as timm's own files are
    (`resnet18-5c106cde.pth`, `tf_efficientnet_b0.ap_in1k.safetensors`, formerly `tf_efficientnet_b0_ap-3b8a4f.pth`);
    {} for any other. If the name has no tag of timm, the tag is that of the model's default weights.
    """
    import timm

    stem = file.name.removesuffix(file.suffix).split("-")[0]
    name, _, tag = timm.models.get_deprecated_models().get(stem, stem).partition(".")
    if not timm.is_model(name):
        return {}
    tagged = f"{name}.{tag}"
    known = timm.get_pretrained_cfg(tagged if timm.models.is_model_pretrained(tagged) else name)
    cfg = known.to_dict()
    heads = cfg.get("classifier") or ()
    weights = [state.get(f"{head}.weight") for head in ([heads] if isinstance(heads, str) else heads)]
    classes = next((len(weight) for weight in weights if weight is not None), 0)
    return {"architecture": name, "num_classes": classes, "pretrained_cfg": {**cfg, "num_classes": classes}}


def pretrained_timm_model(name: str) -> nn.Module:
    """A timm model with its weights, fetched by timm or from its cache.

    Raises:
        SourceError: timm has no such model, or its weights cannot be fetched.
    """
    import timm  # takes a second that most runs need not wait for

    check_timm_source(name)
    try:
        check_hub_responds(timm.get_pretrained_cfg(name))
        return timm.create_model(name, pretrained=True)
    except Exception as error:
        raise SourceError(f"its weights could not be fetched ({with_cause(error, 100)}); without a network use a file "
                          "or folder of this machine", f"{TIMM}{name}") from None


def check_timm_source(name: str) -> None:
    """Checks that timm has a model of this name, without a network.

    Raises:
        SourceError: it has none.
    """
    import timm

    if not timm.is_model(name.split(".")[0]):
        near = ", ".join(nearest_timm_models(name, 0.4))
        raise SourceError(f"timm {timm.__version__} has no such model" + (f"; nearest: {near}" if near else ""),
                          f"{TIMM}{name}")


def check_hub_responds(cfg: Any) -> None:
    """Raises the hub's error at once where timm would retry for half a minute; cached weights need no network."""
    from huggingface_hub import HfApi, try_to_load_from_cache

    repo = getattr(cfg, "hf_hub_id", None)
    if repo and not any(isinstance(try_to_load_from_cache(repo, file), str) for file in WEIGHT_FILES):
        HfApi(library_name="vit").model_info(repo)
