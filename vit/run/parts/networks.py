"""The network of a run: from a config, the data it must fit, and the weights it starts from."""

import dataclasses
import logging
from functools import partial

import torch
from torch import nn

from vit.data import Preprocessing, read_vectors
from vit.data.text.tokenizers import Tokenizer
from vit.models import TimmConfig, VisionTransformerConfig, create_model, model_from_config
from vit.models.checks import CHOICES, RATES, current_names
from vit.models.config import ImageConfig, StackConfig
from vit.models.seq2seq import EncoderDecoderConfig
from vit.run.config.checked import checked
from vit.run.config.composing import ConfigError, stated
from vit.run.parts.init_from import Initial
from vit.run.parts.preprocessing import as_size

log = logging.getLogger("vit")

NAMING = ("name", "fallback", "library")  # keys of a model node that say which network, not how it is built
BLOCKS = [field.name for field in dataclasses.fields(StackConfig)  # what a block computes
          if field.name not in ("depth", "layer_scale", "norm_eps", *RATES)]
WHERE = {  # who decides what a network must fit
    "image_size": "data.image_size decides",
    "in_chans": "data.preprocessing.mode decides: L has 1 channel, RGB 3",
    "num_classes": "the data decides",
}


def build_model(
    model: dict, patch_size, preprocessing: Preprocessing, classes: list[str], initial: Initial | None
) -> nn.Module:
    """The network of `model`, for these pixels and classes.

    `model=adopt` takes the architecture of `init_from` where that tells it; a resumed run's config holds it whole.
    """
    if model.get("kind"):
        return checked("model", model_from_config, model)
    fits = {"image_size": preprocessing.size, "in_chans": preprocessing.channels}
    fits |= {"num_classes": len(classes)} if classes else {}  # what is pre-trained has none
    stated = {key: value for key, value in model.items() if value is not None and key not in NAMING}
    for key, value in fits.items():
        if key in stated and (as_size(stated[key]) if key == "image_size" else stated[key]) != value:
            raise ConfigError(f"model.{key}={stated[key]}, but the data has {key} {_listed(fits)[key]}; {WHERE[key]}")
    if model["name"] is None and initial is not None and initial.model is not None:
        return checked("model", model_from_config, {**initial.classifier, **_listed(fits), **_listed(stated)})
    if model["name"] is None and initial is not None and initial.untold:
        raise ConfigError(f"init_from={initial.name}: {initial.untold}; or choose a model, such as model=small")
    name = model_name(model)
    if not name.startswith("timm/") and "_patch" not in name:
        stated.setdefault("patch_size", patch_size)
    return checked("model", partial(create_model, name), {**fits, **stated}, spread=True)


def text_model(config: dict, fits: dict, cls: type, initial: Initial | None) -> nn.Module:
    """A network on texts: what fits the data, what the command line names, what `init_from` is, what the config says.
    """
    model = config["model"]
    if model.get("kind"):
        return checked("model", model_from_config, model)
    values = {key: value for key, value in model.items() if value is not None and key not in (*NAMING, "vectors")}
    named = {key: value for key, value in stated_values(config).items() if key in values}
    names = {field.name for field in dataclasses.fields(cls)}
    known = (initial.model or {}) if initial is not None else {}
    known = {key: value for key, value in known.items() if key in names and key not in fits}
    return checked("model", model_from_config, {"kind": cls.kind, **values, **known, **named, **fits})


def stated_values(config: dict) -> dict:
    """What the command line names of the model; a null names nothing."""
    model = config["model"]
    return {key: model[key] for key in stated(config["words"], "model") if model.get(key) is not None}


def reader(config: dict, initial: Initial) -> Initial:
    """A classifier of images as that which a model with a decoder reads with: what makes its embedding and its blocks.

    Words may name another embedding, fewer blocks or other rates; of other blocks its weights would mean nothing.

    Raises:
        ConfigError: no classifier of ours, one with a part that no decoder has, an override that names other blocks.
    """
    known, named = initial.classifier, current_names(stated_values(config))
    if known is None:
        raise ConfigError(f"init_from={initial.name}: {initial.untold}")
    if known["kind"] == TimmConfig.kind:
        raise ConfigError(f"init_from={initial.name} is timm's own network, whose weights a reader cannot take; where "
                          f"it can be one of ours, python -m vit convert {initial.name} FOLDER makes it one")
    known = VisionTransformerConfig.from_dict(known).to_dict()
    for key in BLOCKS:
        if named.get(key, known[key]) != known[key]:
            raise ConfigError(f"model.{key}={named[key]}, but the classifier of init_from={initial.name} has blocks "
                              f"with {key}={known[key]}; leave it out, or set init_from=null")
    choices = {**CHOICES, **EncoderDecoderConfig.choices}
    for key in ("block", "positions"):
        if key not in named and known[key] not in choices[key]:
            raise ConfigError(f"init_from={initial.name} is a classifier with {key}={known[key]}, but a model that "
                              f"writes has one of {', '.join(choices[key])}; take another classifier")
    names = [field.name for field in dataclasses.fields(ImageConfig) if field.name not in RATES]
    return dataclasses.replace(initial, model={key: known[key] for key in names})


def start_from_vectors(model: nn.Module, path: str | None, tokenizer: Tokenizer) -> None:
    """`model.vectors`: word vectors (GloVe, word2vec text form) for the tokens that are whole words in them."""
    if not path:
        return
    words = [token.strip() for token in tokenizer.tokens(range(tokenizer.vocab_size))]
    matrix, found = read_vectors(path, words)
    starting = partial(model.embed.load_vectors, torch.from_numpy(matrix))
    checked(f"model.vectors={path}", starting, torch.from_numpy(found))
    log.info("vectors from %s: %d of %d tokens", path, int(found.sum()), len(found))
    if not found.any():
        log.warning(
            "no token is a word of model.vectors=%s, so it is of no use here: take a file of this language, and "
            "data.tokenizer.lower=true where its words are lower case",
            path,
        )


def model_name(model: dict, initial: Initial | None = None) -> str:
    """What `create_model` and people call the network of a `model` node."""
    if model["name"] is None and initial is not None and initial.model is not None:
        return initial.model.get("name") or initial.name
    name = model["name"] or model["fallback"]
    return f"timm/{name.removeprefix('timm/')}" if model.get("library") == "timm" else name


def _listed(values: dict) -> dict:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}


def matrix_flops(model: nn.Module) -> float:
    """Operations per token of a text: each weight of a matrix takes part in two; attention's own products are left out.
    """
    return 2.0 * sum(parameter.numel() for parameter in model.parameters() if parameter.ndim == 2)
