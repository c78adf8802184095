"""`init_from`: weights to start from, with the architecture and preprocessing they came with where the source tells
them.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from vit.bundle import BundleError
from vit.data import Preprocessing
from vit.data.text.tokenizers import Tokenizer
from vit.exchange import Source, SourceError, pixels
from vit.exchange.importing import ContradictionError, architecture, recognised
from vit.exchange.read import TIMM, from_module, read
from vit.models import MaskedImageConfig, TimmConfig, VisionTransformerConfig
from vit.models.seq2seq import EncoderDecoderConfig
from vit.run.config.checked import checked
from vit.run.config.composing import ConfigError
from vit.weights import KeyReport, load_weights

log = logging.getLogger("vit")

IMAGE_KINDS = {cls.kind: cls for cls in (VisionTransformerConfig, MaskedImageConfig)}


@dataclass(frozen=True)
class Initial:
    """Weights, and what else the source says: the model's config, the preprocessing.

    Args:
        state: under names that `load_weights` knows.
        untold: why there is no `model`, where the weights alone do not tell it.
    """

    name: str
    state: Mapping[str, Tensor]
    model: dict | None = None
    preprocessing: Preprocessing | None = None
    classes: list[str] | None = None
    tokenizers: dict[str, Tokenizer] | None = None
    untold: str = ""

    @property
    def grid(self) -> tuple[int, int] | None:
        """(rows, columns) in patches, where the source says it."""
        config = IMAGE_KINDS.get((self.model or {}).get("kind"))
        return None if config is None else config.from_dict(self.model).grid

    @property
    def image_size(self) -> tuple[int, int] | None:
        """(height, width) in pixels that the source was made for, where it says it."""
        config = IMAGE_KINDS.get((self.model or {}).get("kind"))
        return None if config is None else config.from_dict(self.model).image_size

    @property
    def writes(self) -> bool:
        """Whether this is a model that writes texts; where the source does not say it, its decoder does."""
        if self.model is None:
            return any(name.startswith("decoder.") for name in self.state)
        return self.model["kind"] == EncoderDecoderConfig.kind

    @property
    def classifier(self) -> dict | None:
        """The config of an image classifier that takes the weights over: that of the source, or what it began for.

        Raises:
            ConfigError: the source reads no images.
        """
        if self.model is not None and self.model["kind"] not in (*IMAGE_KINDS, TimmConfig.kind):
            raise ConfigError(f"init_from={self.name}: a model of kind {self.model['kind']} does not classify images; "
                              "take the weights of one that does, or data that it reads")
        if self.model is None or self.model["kind"] != MaskedImageConfig.kind:
            return self.model
        return MaskedImageConfig.from_dict(self.model).classifier()


def load_weights_of(initial: Initial | None, model: nn.Module, **options: Any) -> KeyReport | None:
    """Loads the weights of `init_from` into the model and logs the report; None where there are no weights.

    Args:
        options: of `vit.weights.load_weights`.

    Raises:
        ConfigError: the weights do not fit.
    """
    if initial is None:
        return None
    report = checked(f"init_from={initial.name}", partial(load_weights, model, **options), initial.state)
    log.info("weights from %s: %s", initial.name, report.table())
    return report


def load_initial(config: dict, checkpoint: Path | None, stated: Mapping[str, Any] | None = None) -> Initial | None:
    """What `init_from` names, None where it names nothing: whatever `import_weights` takes, which is a bundle, a run, a
    checkpoint, somebody's file or folder, timm:NAME, hub:NAME.

    Args:
        checkpoint: from which the run is resumed; it has all weights, so nothing is loaded beside it.
        stated: a `model` node, whose `num_heads` and `activation` tell what tensors cannot.

    Raises:
        ConfigError: nothing there, or nothing that is understood; says what is.
    """
    source = config["init_from"]
    if not source or checkpoint is not None:
        return None
    try:
        found = read(source)
    except (SourceError, BundleError) as error:
        text = str(error).removeprefix(source).lstrip(": ")
        hint = ", or train from nothing with data=folder data.root=PHOTOS" if source.startswith(TIMM) else ""
        raise ConfigError(f"init_from={source}: {text}{hint}") from None
    if source.startswith(TIMM):
        return of_timm(source.removeprefix(TIMM), found.config["module"])
    model, preprocessing, untold = found.model, found.preprocessing, ""
    if model is None:
        model, preprocessing, untold = told(found, stated or {})
    if preprocessing is None and stated and stated.get("library") == "timm":
        preprocessing = usual_of_timm(stated["name"])
    return Initial(source, found.state, model, preprocessing, found.classes or None, found.tokenizers, untold)


def told(source: Source, stated: Mapping[str, Any]) -> tuple[dict | None, Preprocessing | None, str]:
    """The config that somebody's weights tell, how their images are prepared, and why there is no config."""
    try:
        known = recognised(source)
        model, _ = architecture(source, known, stated.get("num_heads"), stated.get("activation"))
    except ContradictionError as error:
        raise ConfigError(f"init_from={error}") from None
    except SourceError as error:
        return None, source.preprocessing, str(error).removeprefix(source.name).lstrip(": ")
    preprocessing = source.preprocessing
    if preprocessing is None and model["kind"] == VisionTransformerConfig.kind:
        preprocessing = pixels.usual(known.format.name, VisionTransformerConfig.from_dict(model).image_size)
    return model, preprocessing, ""


def usual_of_timm(name: str) -> Preprocessing | None:
    """How timm's published weights of a model want their images: a bare file of weights does not tell."""
    from timm.models import get_pretrained_cfg, is_model

    cfg = get_pretrained_cfg(name.removeprefix("timm/")) if is_model(name.removeprefix("timm/")) else None
    if cfg is None or not cfg.mean:
        return None
    found = pixels.of_timm(cfg.to_dict())
    mean, std = (" ".join(f"{value:g}" for value in values) for values in (found.mean, found.std))
    log.info("images are prepared as for timm's published weights of %s: %dx%d pixels, crop_pct %g, mean %s, std %s",
             name, *found.size, found.crop_pct, mean, std)
    return found


def of_timm(name: str, source: nn.Module) -> Initial:
    """A timm model with the preprocessing that it was made for; it trains as the timm model it is."""
    prepared = from_module(source).preprocessing
    model = {
        "kind": "timm",
        "name": name.split(".")[0],
        "image_size": list(prepared.size),
        "in_chans": source.pretrained_cfg["input_size"][0],
        "num_classes": source.num_classes,
    }
    return Initial(f"{TIMM}{name}", source.state_dict(), model, prepared)
