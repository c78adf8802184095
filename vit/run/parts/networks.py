"""The network of a run, from the `model` node, the data, and the weights that it starts from; those of texts are in
`text_networks.py`.
"""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch import nn

from vit.data import Preprocessing
from vit.data.images.preprocessing_values import as_size
from vit.models import VisionTransformerConfig, create_model, model_from_config
from vit.models.checks import DROPPING, INITIAL_STD, check_names, current_names, neighbours_reason
from vit.models.config import ModelConfig
from vit.models.timm_model import check_timm_name
from vit.models.zoo import KINDS, NAME, TIMM, named_config, named_values
from vit.run.config.composing import ConfigError, stated
from vit.run.config.groups import options
from vit.run.config.overrides import checked, yaml_text
from vit.run.config.valid_values import DEFAULT_SIZE
from vit.run.parts.init_from import Initial

log = logging.getLogger("vit")

NAMING = ("name", "fallback", "library")  # keys of a model node that select the network
INITIAL = ("vectors",)  # keys that select initial weights
SIZE = ("dim", "depth", "num_heads")  # keys that the name of a network determines
NOT_COMPARED = ("image_size", "patch_size", "in_chans", "num_classes", "dim", "depth", "mlp_ratio", *INITIAL_STD,
                "layer_scale", "dist_token")  # follow from the data or from tensors, or only initialize weights
SET_BY = {  # key of the model that follows from the data -> what sets it
    "image_size": "it is set by data.image_size, for images of text by data.preprocessing.height and max_width",
    "in_chans": "it is set by data.preprocessing.mode: L has 1 channel, RGB 3",
    "num_classes": "it is the number of classes of the data",
    "patch_size": "it is set by data.patch_size",
    "vocab_size": "it is the number of tokens of the tokenizer",
    "source_vocab": "it is the number of tokens of the tokenizer of the source",
    "max_len": "it is set by data.max_len, for translation and image to text by data.max_source_len and max_target_len",
    "source": "it is set by the kind of the data",
}


def check_options(model: dict, configs: Sequence[type]) -> None:
    """Checks, before the data is read, that some model has each option; whether this one has it is checked afterwards.

    Args:
        model: the `model` node; that of a resumed run holds a whole config, which is not checked.
        configs: classes of the configs of the task, for the nearest names.

    Raises:
        ConfigError: no model has an option; the message has the nearest ones.
    """
    if model.get("kind"):
        return
    name = model.get("name")
    if VisionTransformerConfig in configs and name in KINDS and KINDS[name][0] not in configs:
        raise ConfigError(f"model.name={name} is a model of texts, but this task trains a model of images; choose "
                          "another one, such as model=small, or data with texts, such as data=parallel")
    if VisionTransformerConfig in configs and name and model.get("library") != "timm" and not name.startswith("timm"):
        checked("model", named_values, name)
    options = current_names({key: value for key, value in model.items() if value is not None})
    known = {field.name for config, _ in KINDS.values() for field in dataclasses.fields(config)}
    checked("model", partial(check_names, configs), [key for key in options if key not in (*NAMING, *INITIAL, *known)])


def build_model(
    model: dict, patch_size, preprocessing: Preprocessing, classes: list[str], initial: Initial | None
) -> nn.Module:
    """The network of `model`, for these pixels and classes.

    `model=pretrained` takes the architecture of `init_from` if it is known; the config of a resumed run holds it.

    Raises:
        ConfigError: the model does not fit the data, or the architecture is not known.
    """
    required = {"image_size": preprocessing.size, "in_chans": preprocessing.channels}
    required |= {"num_classes": len(classes)} if classes else {}  # none in pre-training
    stated = {key: value for key, value in model.items() if value is not None and key not in NAMING}
    check_required(stated, required)
    if model.get("kind"):
        return checked("model", model_from_config, model)
    if model["name"] is None and initial is not None and initial.model is not None:
        return checked("model", model_from_config, {**initial.classifier, **_listed(required), **_listed(stated)})
    if model["name"] is None and initial is not None and initial.reason:
        raise ConfigError(f"init_from={initial.name}: {initial.reason}; or choose a model, such as model=small")
    name, stated = model_name(model), with_patches(model, stated, patch_size)
    return checked("model", partial(create_model, name), {**required, **stated}, unpack=True, names=model)


def with_patches(model: dict, values: dict, patch_size: Any) -> dict:
    """The values of the network, with the patch size of the data unless they or the name of the network have one."""
    name = model_name(model)
    return values if name.startswith(TIMM) or "_patch" in name else {"patch_size": patch_size, **values}


def check_named_size(config: dict) -> None:
    """Checks that the size of the network that an override of `model.name` chooses is not that of other values.

    Raises:
        ConfigError: the config has another width, depth or number of heads, such as those of the option model=micro.
    """
    model, own = config["model"], stated(config.get("overrides", []), "model")
    name = str(model.get("name"))
    found = NAME.fullmatch(name)
    if "name" not in own or model.get("kind") or found is None:
        return
    named = checked("model", named_values, name)
    other = [key for key in SIZE if key not in own and model.get(key) not in (None, named[key])]
    if other:
        option = found["size"] if found["size"] in options("model") else "base"
        option = "mae" if name.startswith("mae_") else option
        keys = " ".join(f"model.{key}={named[key]}" for key in other)
        raise ConfigError(f"model.name={name} has {keys}, but the chosen model sets "
                          f"{', '.join(f'{key}={model[key]}' for key in other)}; add model={option}, whose size "
                          "is that of the name, or set these keys too")


def check_image_model(model: dict, data: dict, init_from: str | None) -> ModelConfig | None:
    """Checks the values of a new network of images before the data is read, which then determines only its classes.
    Returns its config; None if its architecture or the size of the images is not known yet.

    Args:
        model, data: these nodes of the config.
        init_from: weights, whose image size and channels a run adopts; a model without a name adopts their values too.

    Raises:
        ConfigError: the network rejects a value, timm has no such model, or a value differs from that of the data.
    """
    if model.get("kind") or model["name"] is None and init_from:
        return None
    stated = {key: value for key, value in model.items() if value is not None and key not in NAMING}
    preprocessing, required = data["preprocessing"], {}
    if size := data["image_size"] or preprocessing.get("size") or (None if init_from else DEFAULT_SIZE):
        required["image_size"] = checked("data.preprocessing.size", as_size, size)
    if not init_from:
        required["in_chans"] = 1 if preprocessing.get("mode") == "L" else 3
    check_required(stated, required)
    name = model_name(model)
    values = with_patches(model, stated, data["patch_size"])
    if name.startswith(TIMM):
        checked("model", check_timm_name, name)
    elif not size:  # any that has patches
        rows, columns = as_size(values.get("patch_size") or checked("model", named_values, name)["patch_size"])
        required["image_size"] = (16 * rows, 16 * columns)
    made = checked("model", partial(named_config, name), {**required, **values}, unpack=True, names=model)
    return made if size else None


def check_required(model: dict, required: dict) -> None:
    """Raises ConfigError for a value of the model that differs from the one that the data requires."""
    for key in [key for key in required if key in model]:
        is_size = key in ("image_size", "patch_size")
        if model[key] != required[key] and not (is_size and as_size(model[key]) == as_size(required[key])):
            raise ConfigError(f"model.{key}={model[key]}, but the data has {key} {_listed(required)[key]}; "
                              f"{SET_BY[key]}")


def check_patch_size(config: dict, model: nn.Module) -> None:
    """Raises ConfigError for an override of `data.patch_size`, which is for models without one, on another model."""
    size, found = config["data"]["patch_size"], getattr(model.config, "patch_size", None)
    if size is None or "patch_size" not in stated(config["overrides"], "data"):  # that of the model
        return
    if found is None:
        raise ConfigError(f"data.patch_size={size} has no effect on a model of timm, whose name determines its "
                          "patches; leave it out")
    if found == as_size(size):
        return
    if config["resumed"]:
        raise ConfigError(f"data.patch_size={size}: the model of the resumed run has patches of {found[0]}x{found[1]}; "
                          "leave it out, or start a new run with init_from=")
    raise ConfigError(f"data.patch_size={size} is for models without a patch size, but this one has patches of "
                      f"{found[0]}x{found[1]}; leave it out, or set model.patch_size={size}")


def check_neighbours(model: Mapping[str, Any], setting: str, fix: str = "") -> None:
    """Checks that no layer of a model depends on which patches are next to each other, for a run that trains on some of
    the patches. Runs of earlier versions may have such a model, and are resumed.

    Args:
        model: values of the config of the model.
        setting: what leaves patches out, `KEY=VALUE`.
        fix: the `KEY=VALUE` that leaves none out, if there is one.

    Raises:
        ConfigError: a layer does.
    """
    if reason := neighbours_reason(model):
        choice = "model.attention=scaled" if reason.startswith("attention") else "model.mixer=attention"
        raise ConfigError(f"{setting} leaves patches out in training, so that other patches are neighbours than in "
                          f"inference, but model.{reason}; set {fix and f'{fix}, or '}{choice}")


def warn_of_other_values(config: dict, model: nn.Module, initial: Initial) -> None:
    """Warns if config values of the selected image classifier differ from those of `init_from`, so that its weights
    compute another function. Values set by overrides or determined by tensors or data are not compared.
    """
    own = model.config
    if initial.image_config is None or own.kind != VisionTransformerConfig.kind:
        return
    known = own.from_dict(initial.classifier).to_dict()
    left_out = {*NOT_COMPARED, *DROPPING, *current_names(stated_values(config))}
    other = {key: value for key, value in own.to_dict().items() if key not in left_out and value != known[key]}
    if other:
        log.warning("the model uses the weights of init_from=%s with %s; model=pretrained uses the values of "
                    "init_from", initial.name, listed({key: (known[key], value) for key, value in other.items()}))


def listed(values: Mapping[str, tuple]) -> str:
    """key -> (other value, value): `depth=1 instead of 3, dim=16 instead of 128`"""
    return ", ".join(f"{key}={yaml_text(value)} instead of {yaml_text(other)}"
                     for key, (other, value) in sorted(values.items()))


def stated_values(config: dict) -> dict:
    """The keys of `model` that overrides set to a value other than null."""
    model = config["model"]
    return {key: model[key] for key in stated(config["overrides"], "model") if model.get(key) is not None}


def model_name(model: dict, initial: Initial | None = None) -> str:
    """The name of the network of a `model` node, as `create_model` takes it.

    Raises:
        ConfigError: the node has none.
    """
    if model["name"] is None and initial is not None and initial.model is not None:
        return initial.model.get("name") or initial.name
    name = model["name"] or model.get("fallback")
    if not isinstance(name, str):
        raise ConfigError(f"model.name={yaml_text(model['name'])}: must be a string, such as vit_tiny")
    return f"timm:{name.removeprefix('timm:').removeprefix('timm/')}" if model.get("library") == "timm" else name


def _listed(values: dict) -> dict:
    """The values with lists instead of tuples, as a config has them."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}
