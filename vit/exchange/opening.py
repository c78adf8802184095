"""Any source of weights as a `Bundle`, ready for prediction: a saved model, or foreign weights."""

import warnings
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from vit.bundle import CONFIG, WEIGHTS, Bundle, Calibration, LabelCalibration, load_bundle
from vit.bundle.files import read_json
from vit.data import Preprocessing
from vit.exchange.checkpoint import Checkpoint, check_saved_values
from vit.exchange.importing import IMAGE_KINDS, at_stated_size, import_checkpoint
from vit.exchange.options import Hints
from vit.exchange.preprocessing import assumed_preprocessing, with_channels
from vit.exchange.read import read_checkpoint
from vit.exchange.source_names import HUB, TIMM, TIMM_SLASH
from vit.exchange.sources import WEIGHT_FILES, WeightSource
from vit.messages import number_of, override_for_shell
from vit.models import TimmConfig
from vit.weights import KeyReport

# parameters of CLIP that project into the space that images and texts share
PROJECTIONS = ("visual_projection.weight", "visual.proj", "proj", "visual.head.proj.weight")


def open_model(source: WeightSource, hints: Hints | None = None, *, features_only: bool = False) -> Bundle:
    """Open a bundle of this project with `load_bundle`, any other source with `open_foreign`. Warns about hints for a
    network of timm, whose name already determines these values.

    Raises:
        SourceError, BundleError, FileNotFoundError: as `load_bundle` and `open_foreign`; or a hint contradicts the
            bundle.
    """
    bundle = open_foreign(source, hints, features_only=features_only) if is_foreign(source) else load_bundle(source)
    if hints is not None:
        name = str(source) if isinstance(source, str | PathLike) else str(bundle.path)
        config = bundle.model.config.to_dict()
        config = config.get("member", config)  # all members of an ensemble have it
        check_saved_values(hints, config, name)
        for key in ("num_heads", "activation"):
            if getattr(hints, key) is not None and key not in config:
                warnings.warn(f"{name}: {key}={getattr(hints, key)} has no effect on a model of kind {config['kind']}; "
                              "leave it out", stacklevel=3)
    return bundle


def is_foreign(source: WeightSource) -> bool:
    """Whether this is neither a bundle nor a run folder of this project; a missing path counts as not foreign."""
    if not isinstance(source, str | PathLike):
        return True
    name, path = str(source), Path(source).expanduser()
    if name.startswith((TIMM, HUB)) or name.startswith(TIMM_SLASH) and not path.exists():
        return True
    if path.is_file():
        if path.name not in (CONFIG, WEIGHTS):
            return True
        path = path.parent
    if (path / CONFIG).is_file():
        return "vit" not in read_json(path / CONFIG)
    return path.is_dir() and not (path / "model" / CONFIG).is_file() and any((path / name).is_file()
                                                                             for name in WEIGHT_FILES)


def open_foreign(source: WeightSource, hints: Hints | None = None, *, features_only: bool = False) -> Bundle:
    """The bundle that foreign weights convert to, or that a model of the hub is.

    A warning names assumptions about class names and preprocessing, and another size of images than that of the model.

    Args:
        features_only: the model is used for its features, so it needs neither a head nor class names.

    Raises:
        SourceError: as `read_checkpoint` and `import_weights`; or the model cannot predict.
    """
    checkpoint = read_checkpoint(source, hints)
    if checkpoint.bundle is not None:
        check_saved_values(checkpoint.hints, checkpoint.model_config, checkpoint.name)
        return replace(checkpoint.bundle, path=Path(checkpoint.name))
    checkpoint = at_stated_size(checkpoint)
    if not features_only:
        check_predicts(checkpoint, checkpoint.model_config)
    model, report = import_checkpoint(checkpoint)
    if not features_only:
        check_predicts(checkpoint, model.config.to_dict())
        check_head(checkpoint, model.config, report)
    stated = checkpoint.stated_preprocessing
    of_images = model.config.kind in (*IMAGE_KINDS, TimmConfig.kind)
    preprocessing = resolve_preprocessing(checkpoint, model.config) if of_images else stated
    if of_images and stated is not None and preprocessing.size != tuple(stated.size):
        (height, width), (rows, columns) = preprocessing.size, stated.size
        warnings.warn(f"{checkpoint.name}: images are resized to {height}x{width}, the size of the model; its "
                      f"preprocessing states {rows}x{columns}", stacklevel=3)
    classes = [] if features_only else resolve_class_names(checkpoint, model.config.num_classes)
    thresholds, calibration = resolve_thresholds(checkpoint, len(classes))
    if checkpoint.from_training and classes:
        warnings.warn(uncalibrated(checkpoint), stacklevel=3)
    return Bundle(Path(checkpoint.name), model, classes, preprocessing, checkpoint.tokenizers, {}, {}, {}, thresholds,
                  calibration)


def uncalibrated(checkpoint: Checkpoint) -> str:
    """The warning about the probabilities of a training checkpoint."""
    several = ", and 0.5 is the threshold of each label" if checkpoint.thresholds else ""
    return (f"{checkpoint.name} is a training checkpoint: its probabilities are not calibrated{several}. A run "
            "calibrates the model that it saves at its end, model/")


def check_predicts(checkpoint: Checkpoint, config: Mapping[str, Any] | None) -> None:
    """Raises SourceError for a kind of model that needs more than weights to predict; None is not known yet."""
    if config is None or config["kind"] in ("vit", "timm"):
        return
    if config["kind"] == "mae":
        raise checkpoint.error("this is a pre-trained model (mae), which makes no predictions; train it for a task "
                               f"with {init_from(checkpoint)}")
    why = ("it needs a tokenizer, which the weights do not include;" if checkpoint.model_config is None else
           "it needs the tokenizers in its run folder; open that folder, or")
    raise checkpoint.error(f"this is a model of kind {config['kind']}: {why} start a run with {init_from(checkpoint)}")


def init_from(checkpoint: Checkpoint) -> str:
    """The override that starts a training from a source; a model in memory must be saved before."""
    return "init_from=FILE (a file of its weights)" if checkpoint.shared else override_for_shell(
        "init_from", checkpoint.name)


def check_head(checkpoint: Checkpoint, config: Any, report: KeyReport) -> None:
    """Raises SourceError for a model without classes; a CLIP's projection is not a classifier."""
    projects = any(row.name == "head.weight" and set(row.sources) & set(PROJECTIONS) for row in report.rows)
    if not config.num_classes or projects:
        raise checkpoint.error("the model has no classes to predict; vit.import_weights opens it for its features, and "
                               f"{init_from(checkpoint)} starts a training from it")


def resolve_preprocessing(checkpoint: Checkpoint, config: Any) -> Preprocessing:
    """The checkpoint's preprocessing at the size and channels of the model; one that is assumed gives a warning."""
    size = tuple(config.image_size)
    if checkpoint.stated_preprocessing is not None:
        return with_channels(checkpoint.stated_preprocessing.replace(size=size), config.in_chans)
    published = checkpoint.preprocessing  # of the image size of the source
    assumed = (assumed_preprocessing(checkpoint.format.name, size, config.in_chans) if published is None else
               with_channels(published.replace(size=size), config.in_chans))
    warnings.warn(f"{checkpoint.name} does not state its preprocessing; assumed: {assumed.resize} to "
                  f"{size[0]}x{size[1]}, crop_pct {assumed.crop_pct}, {assumed.interpolation}, mean {assumed.mean}, "
                  f"std {assumed.std}", stacklevel=4)
    return assumed


def resolve_thresholds(
    checkpoint: Checkpoint, count: int
) -> tuple[tuple[float, ...], Calibration | LabelCalibration | None]:
    """The thresholds and the calibration of a model with `count` labels per image.

    If the source has thresholds for another number of labels, all thresholds are one half and there is no calibration.
    If a model of another library has a single output, it is the logit of one label with the threshold one half, as in
    transformers. Both cases are warned about.

    Raises:
        SourceError: the outputs are numbers of a regression.
    """
    found = checkpoint.thresholds
    if checkpoint.source_config.get("problem_type") == "regression" and count == len(checkpoint.class_names) > 0:
        raise checkpoint.error("its outputs are numbers (problem_type=regression), not scores of classes; "
                               f"{init_from(checkpoint)} starts a training of a classifier")
    if not found and count == 1 and checkpoint.model_config is None:
        warnings.warn(f"{checkpoint.name} has one output: the sigmoid of it is the probability of the label, which is "
                      "assigned from 0.5 on", stacklevel=4)
        return (0.5,), checkpoint.calibration
    if not found or not count:
        return (), checkpoint.calibration
    if len(found) == count:
        return found, checkpoint.calibration
    dropped = "" if checkpoint.calibration is None else " and its calibration is not used"
    warnings.warn(f"{checkpoint.name} has thresholds of {number_of(len(found), 'label')}, but the model has {count}: "
                  f"0.5 is the threshold of each{dropped}", stacklevel=4)
    return (0.5,) * count, None


def resolve_class_names(checkpoint: Checkpoint, count: int) -> list[str]:
    """The class names of the source, or numbers, with a warning."""
    names = checkpoint.class_names
    if len(names) == count and len(set(names)) == count:
        return names
    named, classes = number_of(len(set(names)), "class"), number_of(count, "class")
    found = f"names {named}, but has {count}" if names else f"does not name its {classes}"
    warnings.warn(f"{checkpoint.name} {found}; numbers are used as names", stacklevel=4)
    return [str(i) for i in range(count)]
