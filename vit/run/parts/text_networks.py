"""The networks of runs on texts and on images of text, from the `model` node, the data, and the weights that they start
from.
"""

import dataclasses
import logging
from collections.abc import Mapping
from functools import partial

import torch
from torch import nn

from vit.data import LinePreprocessing, read_vectors
from vit.data.text.tokenizers import Tokenizer
from vit.models import TimmConfig, VisionTransformerConfig, model_from_config
from vit.models.checks import CHOICES, DROPPING, current_names
from vit.models.classifier import Classifier
from vit.models.config import ImageConfig, StackConfig
from vit.models.seq2seq import EncoderDecoderConfig, ImageToTextConfig
from vit.run.config.composing import ConfigError
from vit.run.config.overrides import checked, key_of, yaml_text
from vit.run.parts.init_from import Initial
from vit.run.parts.networks import INITIAL, NAMING, check_required, listed, stated_values

log = logging.getLogger("vit")

BLOCK_KEYS = [field.name for field in dataclasses.fields(StackConfig)  # the keys that a block's weights depend on
              if field.name not in ("depth", "layer_scale", "norm_eps", *DROPPING)]


def check_text_model(config: dict, cls: type, required: dict) -> None:
    """Checks the values of a new network of texts before the data is read. Those of one that starts from other weights
    follow from these.

    Args:
        required: values that the data determines; those that are not known yet are replaced by valid ones.

    Raises:
        ConfigError: the network rejects a value.
    """
    model = config["model"]
    if model.get("kind") or config["init_from"]:
        return
    values = {key: value for key, value in model.items() if value is not None and key not in (*NAMING, *INITIAL)}
    checked("model", cls.from_dict, {**values, **required}, names=model)


def text_model(config: dict, required: dict, cls: type, initial: Initial | None) -> nn.Module:
    """A network on texts. Its values come from, in this order of precedence, the data, overrides, `init_from` and the
    config. With sin-cos positions, embeddings are scaled by sqrt(dim) unless the config sets `scale_embed`.

    Raises:
        ConfigError: a value that the model rejects, or that differs from what the data requires.
    """
    model = config["model"]
    values = {key: value for key, value in model.items() if value is not None and key not in (*NAMING, *INITIAL)}
    check_required(values, required)
    if model.get("kind"):
        return checked("model", model_from_config, model)
    named = {key: value for key, value in stated_values(config).items() if key in values}
    names = {field.name for field in dataclasses.fields(cls)}
    source = (initial.model or {}) if initial is not None else {}
    if "kind" in source and "vocab_size" not in source:
        raise ConfigError(f"init_from={initial.name}: a model of kind {source['kind']} does not read texts; use the "
                          "weights of one that does")
    known = {key: value for key, value in source.items() if key in names}
    if known:
        warn_of_other_architecture(config, {key: (value, known.get(key, value)) for key, value in values.items()
                                            if key not in named})
    complete = {"kind": cls.kind, **values, **known, **named, **required}
    if "kind" not in source:  # no model of texts, whose config has the value
        complete.setdefault("scale_embed", complete.get("positions", cls.positions) == "sincos")  # null in the config
    return checked("model", model_from_config, complete, names=model)


def warn_of_other_architecture(config: dict, values: Mapping[str, tuple]) -> None:
    """Logs how the option of `model` that an override chooses differs from `init_from`, whose architecture is used.

    Args:
        values: key -> its value in that option and in `init_from`.
    """
    option = next((each for each in config["overrides"] if key_of(each) == "model"), None)
    other = {key: both for key, both in values.items() if both[0] != both[1]}
    if option and other:
        key, (chosen, _) = min(other.items())
        log.warning("%s: the architecture is that of init_from=%s, with %s; keys such as model.%s=%s change it", option,
                    config["init_from"], listed(other), key, yaml_text(chosen))


def seq2seq_model(
    config: dict, preprocessing: LinePreprocessing | None, tokenizers: Mapping[str, Tokenizer], initial: Initial | None
) -> nn.Module:
    """The encoder-decoder of `model`, or that of `init_from`, for these tokens and, for images of text, these pixels.

    Raises:
        ConfigError: `init_from` is not a model that can start this one.
    """
    data = config["data"]
    if initial is not None and not initial.generates_text:
        if preprocessing is None:
            raise ConfigError(f"init_from={initial.name} is not a seq2seq model, but a translator can start only from "
                              "a seq2seq model; use init_from=null")
        initial = as_image_encoder(config, initial)
    limits = [data[key] for key in ("max_source_len", "max_target_len") if data[key]]
    required = {"vocab_size": tokenizers["target"].vocab_size, **({"max_len": max(limits)} if limits else {})}
    if preprocessing is None:
        required |= {"source": "text", "source_vocab": tokenizers["source"].vocab_size}
        return text_model(config, required, EncoderDecoderConfig, initial)
    required |= {
        "source": "image",
        "in_chans": preprocessing.channels,
        "image_size": [preprocessing.height, preprocessing.max_width],
        "patch_size": list(preprocessing.patch_size),
    }
    return text_model(config, required, ImageToTextConfig, initial)


def as_image_encoder(config: dict, initial: Initial) -> Initial:
    """An image classifier as the encoder of an image-to-text model: the keys of its embedding and its blocks.

    Overrides may name another embedding, fewer blocks or other dropout rates, but not other blocks, which the weights
    would not fit.

    Raises:
        ConfigError: not a classifier of this project, one with blocks that decoders do not have, or an override that
            names other blocks.
    """
    known, named = initial.classifier, current_names(stated_values(config))
    if known is None:
        raise ConfigError(f"init_from={initial.name}: {initial.reason}")
    if known["kind"] == TimmConfig.kind:
        raise ConfigError(f"init_from={initial.name} is a network that only timm computes, and an image-to-text model "
                          "cannot start from it; use a Vision Transformer listed in docs/guides/weights-of-others.md")
    known = VisionTransformerConfig.from_dict(known).to_dict()
    for key in BLOCK_KEYS:
        if named.get(key, known[key]) != known[key]:
            raise ConfigError(f"model.{key}={named[key]}, but the classifier of init_from={initial.name} has blocks "
                              f"with {key}={known[key]}; leave it out, or set init_from=null")
    choices = {**CHOICES, **ImageToTextConfig.choices}
    for key in ("block", "positions"):
        if key not in named and known[key] not in choices[key]:
            raise ConfigError(f"init_from={initial.name} is a classifier with {key}={known[key]}, but a decoder has "
                              f"one of {', '.join(choices[key])}; use another classifier")
    names = [field.name for field in dataclasses.fields(ImageConfig) if field.name not in DROPPING]
    return dataclasses.replace(initial, model={key: known[key] for key in names})


def start_from_vectors(model: nn.Module, path: str | None, tokenizer: Tokenizer) -> None:
    """Load `model.vectors`, word vectors (GloVe, word2vec as text), into the embeddings of tokens that are whole words.
    """
    if not path:
        return
    words = [token.strip() for token in tokenizer.tokens(range(tokenizer.vocab_size))]
    matrix, found = read_vectors(path, words)
    starting = partial(model.embed.load_vectors, torch.from_numpy(matrix))
    checked(f"model.vectors={path}", starting, torch.from_numpy(found))
    log.info("vectors from %s: %d of %d tokens", path, int(found.sum()), len(found))
    if not found.any():
        log.warning(
            "no token is a word of model.vectors=%s, so nothing was loaded from it: use a file of this language, and "
            "data.tokenizer.lower=true where its words are lower case",
            path,
        )


def matrix_flops(model: nn.Module) -> float:
    """Operations per token of a text: two per weight of a matrix; products of queries, keys and values are not counted.

    The embeddings of a classifier are looked up; those of other models of texts are the matrix of the logits too.
    """
    tables = [part.weight for part in model.modules() if isinstance(part, nn.Embedding)]
    looked_up = set(map(id, tables)) if isinstance(model, Classifier) else set()
    matrices = (parameter for name, parameter in model.named_parameters()  # also stacks of matrices and kernels
                if parameter.ndim in (2, 3) and not name.endswith("pos_embed") and id(parameter) not in looked_up)
    return 2.0 * sum(parameter.numel() for parameter in matrices)
