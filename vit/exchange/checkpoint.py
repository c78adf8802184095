"""`Checkpoint`: weights from any source, everything that the source states about itself, and the inferred network."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from vit.bundle import Bundle
from vit.bundle.calibration import Calibration
from vit.bundle.files import SourceError
from vit.bundle.label_calibration import LabelCalibration
from vit.data import AnyPreprocessing
from vit.data.image_sources.npz import are_image_arrays
from vit.data.text.tokenizers import Tokenizer
from vit.exchange.options import Hints
from vit.exchange.preprocessing import published_preprocessing
from vit.exchange.timm_networks import OTHER_NETWORK, find_timm_config
from vit.messages import override_for_shell
from vit.models import TimmConfig, VisionTransformerConfig, model_from_config
from vit.weights import (
    FORMATS,
    DetectedWeights,
    WeightFormat,
    detect_format,
    infer_config,
    published_num_heads,
)
from vit.weights.config_inference import ConfigMismatch, check_declared
from vit.weights.formats.timm import TIMM
from vit.weights.formats.torchvision import TORCHVISION


class ConfigMismatchError(SourceError):
    """Weights that differ from what the config beside them describes, such as a truncated file."""


@dataclass(frozen=True)
class Architecture:
    """The network that a checkpoint's tensors belong to.

    Args:
        config: config of the model of this project, with its `kind`; None if it cannot be inferred.
        notes: assumptions that a report must name.
        error: why there is no config.
    """

    config: dict[str, Any] | None
    notes: list[str] = field(default_factory=list)
    error: SourceError | None = None


@dataclass(frozen=True)
class Checkpoint:
    """Weights from any source, and everything that the source states about itself.

    Args:
        state: tensors under the source's own names.
        source_config: `config.json` of timm, transformers or OpenCLIP; `{"module": model}` for a model in memory; {}.
        model_config: config of the model, if the source is of this project.
        stated_preprocessing: None if the source does not state any.
        calibration: calibration of the probabilities, if the source is a calibrated bundle.
        extra: what a bundle or checkpoint of this project records about the use of its model.
        notes: remarks on the reading for the report.
        from_training: whether the source is a training checkpoint of this project, which is saved before calibration.
        shared: whether a model in memory uses these tensors, so that they must be copied.
        bundle: the source itself, if it is a bundle.
    """

    name: str
    state: dict[str, Tensor]
    source_config: Mapping[str, Any] = field(default_factory=dict)
    model_config: dict[str, Any] | None = None
    stated_preprocessing: AnyPreprocessing | None = None
    class_names: list[str] = field(default_factory=list)
    tokenizers: dict[str, Tokenizer] = field(default_factory=dict)
    thresholds: tuple[float, ...] = ()
    calibration: Calibration | LabelCalibration | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    from_training: bool = False
    shared: bool = False
    hints: Hints = Hints()
    bundle: Bundle | None = None

    @cached_property
    def weights(self) -> DetectedWeights:
        """The tensors with their format.

        Raises:
            SourceError: the format is unknown.
        """
        return detect_weights(self)

    @property
    def format(self) -> WeightFormat:
        """The format of the tensors' names.

        Raises:
            SourceError: the format is unknown.
        """
        return self.weights.format

    @cached_property
    def architecture(self) -> Architecture:
        """The network, inferred from tensors, config and hints; or the `error` that prevents it."""
        try:
            return infer_architecture(self)
        except SourceError as error:
            return Architecture(None, error=error.with_traceback(None))  # whose frames hold tensors

    @cached_property
    def config(self) -> dict[str, Any]:
        """The config of our model that these tensors belong to.

        Raises:
            SourceError: it cannot be inferred.
        """
        if self.architecture.error is not None:
            raise self.architecture.error
        return self.architecture.config

    @cached_property
    def preprocessing(self) -> AnyPreprocessing | None:
        """The stated preprocessing, or the preprocessing of all published models of the format; None if there is
        neither.
        """
        model = self.architecture.config
        if self.stated_preprocessing is not None or model is None or model["kind"] != VisionTransformerConfig.kind:
            return self.stated_preprocessing
        return published_preprocessing(self.format.name, VisionTransformerConfig.from_dict(model).image_size)

    def error(self, reason: str) -> SourceError:
        """A SourceError about this source."""
        return SourceError(reason, self.name)


def detect_weights(checkpoint: Checkpoint) -> DetectedWeights:
    """The tensors with their format; a network that only timm computes has `OTHER_NETWORK`.

    Raises:
        SourceError: the format is unknown, or not the one that the config describes.
    """
    state, config = checkpoint.state, checkpoint.source_config
    if (found := detect_format(state)) is not None:
        kind = config.get("model_type")
        if kind is not None and found.format in (TIMM, TORCHVISION) and "architecture" not in config:
            raise checkpoint.error(f"its config describes a {kind} of transformers, but the tensors have the names of "
                                   f"{found.format.name}; remove the config, or use other weights")
        return found
    own = (checkpoint.model_config or {}).get("kind") == TimmConfig.kind
    if own or ({"architecture", "module"} & set(config) and find_timm_config(config) is not None):
        return DetectedWeights(OTHER_NETWORK, state)
    names = ", ".join(list(state)[:3])
    if checkpoint.name.endswith(".npz") and are_image_arrays(state):
        raise checkpoint.error(f"it holds the arrays of a data set ({names}), not weights; data=table "
                               f"{override_for_shell('data.path', checkpoint.name)} reads it as data")
    resnet = " (the names of a ResNet)" if "layer1.0.conv1.weight" in state else ""
    known = ", ".join(each.name for each in FORMATS)
    raise checkpoint.error(f"its {len(state)} tensors, such as {names}{resnet}, are not those of a known Vision "
                           f"Transformer; accepted: {known}; a file of another network of timm must be called "
                           "NAME.safetensors or NAME.pth after timm's model, or have a config.json with architecture "
                           "and num_classes beside it")


def infer_architecture(checkpoint: Checkpoint) -> Architecture:
    """The network that the tensors belong to. A timm model with a part that ours lack stays timm's own network.

    Raises:
        SourceError: a value that nothing states, or statements that contradict each other.
    """
    if checkpoint.model_config is not None:
        check_saved_values(checkpoint.hints, checkpoint.model_config, checkpoint.name)
        return Architecture(dict(checkpoint.model_config))
    found, config, hints = checkpoint.weights, checkpoint.source_config, checkpoint.hints
    try:
        values = found.format.config_values(found.state, config)
        notes = check_hints(checkpoint, values)
        stated = {"num_heads": hints.num_heads, "activation": hints.activation}
        values |= {key: value for key, value in stated.items() if value is not None}
        if hints.image_size is not None and "embed.pos_embed" not in found.converted and "image_size" not in values:
            values["image_size"] = hints.image_size
        model = infer_config(found.converted, values)
        check_declared(model, found.format.declared_config(found.state, config))
    except SourceError:
        raise
    except ConfigMismatch as error:
        raise ConfigMismatchError(str(error), checkpoint.name) from None
    except ValueError as error:
        if (own := find_timm_config(config)) is not None:
            return Architecture(own.to_dict(), [f"it stays timm's own network: {error}"])
        raise checkpoint.error(str(error)) from None
    if config:
        check_all_tensors(checkpoint, model)
    else:
        notes += found.format.assumptions(found.state)
    if "num_heads" not in values and published_num_heads(model["dim"], model["depth"]) == model["num_heads"]:
        notes.append(f"num_heads {model['num_heads']} is that of the published models of dim {model['dim']} and "
                     f"depth {model['depth']}; give num_heads= for another")
    return Architecture(model, notes)


def check_saved_values(hints: Hints, model: Mapping[str, Any], name: str) -> None:
    """Checks hints about a model whose config is complete.

    Raises:
        SourceError: a hint contradicts the config.
    """
    for key in ("num_heads", "activation"):
        hint = getattr(hints, key)
        if hint is not None and key in model and hint != model[key]:
            raise SourceError(f"{key}={hint} was given, but the saved model has {model[key]}; leave it out", name)


def check_hints(checkpoint: Checkpoint, values: Mapping[str, Any]) -> list[str]:
    """Notes on values that are only usual for the format.

    Raises:
        SourceError: a hint contradicts the source's config.
    """
    hints, heads, described = checkpoint.hints, values.get("num_heads"), bool(checkpoint.source_config)
    if described and hints.num_heads is not None and heads not in (None, hints.num_heads):
        raise checkpoint.error(f"num_heads={hints.num_heads} was given, but the source's config has {heads}")
    if described and hints.activation is not None and values.get("activation") not in (None, hints.activation):
        raise checkpoint.error(f"activation={hints.activation} was given, but the source's config has "
                               f"{values['activation']}")
    if heads is not None and hints.num_heads is None and not described:
        return [f"num_heads {heads} is what this format usually has; give num_heads= for another"]
    return []


def check_all_tensors(checkpoint: Checkpoint, model: Mapping[str, Any]) -> None:
    """Raises ConfigMismatchError where a tensor is missing of the network that the source's config describes."""
    with torch.device("meta"):
        needed = model_from_config(model).state_dict()
    if missing := [name for name in needed if name not in checkpoint.weights.converted]:
        first, more = missing[0], f" and {len(missing) - 1} others" if len(missing) > 1 else ""
        raise ConfigMismatchError(f"the config beside the weights describes a network with {first} "
                                 f"{tuple(needed[first].shape)}, but the file has no tensor for it{more}; the file is "
                                 "truncated", checkpoint.name)
