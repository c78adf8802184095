"""`init_from`: the checkpoint that a run starts from, with the architecture and preprocessing that it states."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from vit.bundle import BundleError
from vit.bundle.files import SourceError
from vit.data import Preprocessing
from vit.data.text.tokenizers import Tokenizer
from vit.exchange.checkpoint import Checkpoint, ConfigMismatchError
from vit.exchange.imagenet_classes import are_wordnet_ids, imagenet_synsets
from vit.exchange.options import Hints
from vit.exchange.preprocessing import from_timm
from vit.exchange.read import read_checkpoint
from vit.exchange.source_names import TIMM, TIMM_SLASH
from vit.exchange.timm_networks import check_timm_source
from vit.models import EnsembleConfig, MaskedImageConfig, TimmConfig, VisionTransformerConfig
from vit.models.seq2seq import EncoderDecoderConfig
from vit.run.config.composing import ConfigError
from vit.run.config.overrides import checked
from vit.weights import KeyReport, load_weights

log = logging.getLogger("vit")

IMAGE_KINDS = {cls.kind: cls for cls in (VisionTransformerConfig, MaskedImageConfig)}


@dataclass(frozen=True)
class Initial:
    """The checkpoint that a run starts from, with the model and preprocessing that the run adopts by default.

    Args:
        model: config of the source's model; None where it cannot be inferred, for the `reason`.
    """

    checkpoint: Checkpoint
    model: dict | None = None
    preprocessing: Preprocessing | None = None

    @property
    def name(self) -> str:
        return self.checkpoint.name

    @property
    def classes(self) -> list[str] | None:
        return self.checkpoint.class_names or None

    @property
    def tokenizers(self) -> dict[str, Tokenizer]:
        return self.checkpoint.tokenizers

    @property
    def reason(self) -> str:
        """Why the model cannot be inferred; "" where it is."""
        error = self.checkpoint.architecture.error
        return "" if error is None else error.reason

    @property
    def image_config(self) -> VisionTransformerConfig | MaskedImageConfig | None:
        """The config of a source that is one of our image encoders."""
        config = IMAGE_KINDS.get((self.model or {}).get("kind"))
        return None if config is None else config.from_dict(self.model)

    @property
    def grid(self) -> tuple[int, int] | None:
        """(rows, columns) of the source's positions, in patches, where they are known."""
        return None if self.image_config is None else self.image_config.grid

    @property
    def image_size(self) -> tuple[int, int] | None:
        """(height, width) of the source's images, in pixels, where it is known."""
        return None if self.image_config is None else self.image_config.image_size

    @property
    def generates_text(self) -> bool:
        """Whether the source is a seq2seq model; without a config, its parameter names decide."""
        if self.model is None:
            return any(name.startswith("decoder.") for name in self.checkpoint.state)
        return self.model["kind"] == EncoderDecoderConfig.kind

    def check_classifies(self) -> None:
        """Checks that the source, where its model is known, has the weights of one model of images.

        Raises:
            ConfigError: it does not.
        """
        if self.model is not None and self.model["kind"] == EnsembleConfig.kind:
            raise ConfigError(f"init_from={self.name}: an ensemble has the weights of several models; use one of its "
                              f"members, or distill=soft distill.teacher={self.name} to train one model on its "
                              "predictions")
        if self.model is not None and self.model["kind"] not in (*IMAGE_KINDS, TimmConfig.kind):
            raise ConfigError(f"init_from={self.name}: a model of kind {self.model['kind']} does not classify images; "
                              "use the weights of one that does, or other data")

    @property
    def classifier(self) -> dict | None:
        """The config of an image classifier with the source's encoder; None where it is unknown.

        Raises:
            ConfigError: the source is not a model of images.
        """
        self.check_classifies()
        if self.model is None or self.model["kind"] != MaskedImageConfig.kind:
            return self.model
        return MaskedImageConfig.from_dict(self.model).classifier()


def load_initial(source: str, stated: Mapping[str, Any] | None = None) -> Initial:
    """The checkpoint that `init_from` names: any source that `import_weights` accepts.

    Args:
        stated: a `model` node, whose `num_heads` and `activation` are hints for the architecture.

    Raises:
        ConfigError: no such source, or one that is not understood; names what was found.
    """
    stated = stated or {}
    try:
        found = read_checkpoint(source, Hints(stated.get("num_heads"), stated.get("activation")))
        if isinstance(found.architecture.error, ConfigMismatchError):
            raise found.architecture.error
    except (SourceError, BundleError) as error:
        raise source_error("init_from", source, error) from None
    preprocessing = found.preprocessing
    name = stated.get("name")
    if preprocessing is None and stated.get("library") == "timm" and isinstance(name, str):  # another is an error later
        preprocessing = published_timm_preprocessing(name)
    return Initial(found, found.architecture.config, preprocessing)


def check_source_name(key: str, source: str) -> None:
    """Checks that timm has the model that a key names, before the data is read.

    Raises:
        ConfigError: it has none; names the nearest ones.
    """
    if source.startswith((TIMM, TIMM_SLASH)) and not Path(source).exists():
        try:
            check_timm_source(source[len(TIMM):])
        except SourceError as error:
            raise source_error(key, source, error) from None


def source_error(key: str, source: str, error: Exception) -> ConfigError:
    """A ConfigError for the key that names a source; the source is named once."""
    of_timm = key == "init_from" and source.startswith((TIMM, TIMM_SLASH))
    hint = "; to train without pretrained weights: data=folder data.root=PHOTOS" if of_timm else ""
    named = isinstance(error, SourceError) and error.source == source
    return ConfigError(f"{key}={error}{hint}" if named else f"{key}={source}: {error}{hint}")


def load_initial_weights(
    initial: Initial, model: nn.Module, *, classes: list[str] | None = None, parts: tuple[str, ...] = ("",)
) -> KeyReport:
    """Load the weights of `init_from` into the model and log the report.

    Args:
        classes: classes of the model's head, if it has one; the source's head is loaded if its classes are the same.
        parts: as for `vit.weights.load_weights`.

    Raises:
        ConfigError: the weights do not fit.
    """
    inferred = initial.model is not None and initial.model["kind"] != TimmConfig.kind
    weights = initial.checkpoint.weights if inferred else initial.checkpoint.state
    known = initial.classes or imagenet_classes(initial, classes or [])
    order = None if classes is None else class_order(known, classes)
    load = partial(load_weights, model, head=classes is None or order is not None, source_grid=initial.grid,
                   class_order=None if known == classes else order, parts=parts)
    report = checked(f"init_from={initial.name}", load, weights)
    assumed = initial.checkpoint.architecture.notes if inferred else []
    report = KeyReport(report.rows, [*initial.checkpoint.notes, *report.notes, *assumed])
    log.info("weights from %s: %s", initial.name, report.table())
    if order is not None and not initial.classes:
        log.info("head: %s does not name its %s classes; they are those of ImageNet in the order of their WordNet ids, "
                 "as the data", initial.name, f"{len(known):,}")
    return report


def imagenet_classes(initial: Initial, classes: Sequence[str]) -> list[str]:
    """The WordNet ids of the classes of a source without class names, if it has as many as a variant of ImageNet and
    the data has such ids; otherwise [].
    """
    count = (initial.model or {}).get("num_classes")
    return imagenet_synsets(count) if count == len(classes) and are_wordnet_ids(classes) else []


def class_order(known: Sequence[str], classes: Sequence[str]) -> list[int] | None:
    """The index of each class among the known ones; None if they are not the same classes."""
    if sorted(known) != sorted(classes):
        return None
    indices = {name: index for index, name in enumerate(known)}
    return [indices[name] for name in classes]


def published_timm_preprocessing(name: str) -> Preprocessing | None:
    """The preprocessing of timm's published weights of a model, for a bare file of weights, which states none."""
    from timm.models import get_pretrained_cfg, is_model

    name = name.removeprefix(TIMM).removeprefix(TIMM_SLASH)
    cfg = get_pretrained_cfg(name) if is_model(name) else None
    if cfg is None or not cfg.mean:
        return None
    found = from_timm(cfg.to_dict())
    mean, std = (" ".join(f"{value:g}" for value in values) for values in (found.mean, found.std))
    log.info("images are prepared as for timm's published weights of %s: %dx%d pixels, crop_pct %g, mean %s, std %s",
             name, *found.size, found.crop_pct, mean, std)
    return found
