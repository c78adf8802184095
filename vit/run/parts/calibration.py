"""The calibration of a trained model on the validation samples, as `calibrate` selects."""

from collections.abc import Callable

from torch import Tensor, nn

from vit.bundle import Calibration, LabelCalibration
from vit.data import Preprocessing, Source, Split, TextSplit
from vit.data.threads import StageProgress
from vit.evaluation.calibration.fitting import FULL, NONE, Outputs, fit_calibration, has_class_means
from vit.evaluation.calibration.labels import fit_label_calibration
from vit.evaluation.calibration.outputs import (
    LabelOutputs,
    image_outputs,
    sample_for_logits,
    sample_for_means,
    text_outputs,
)
from vit.evaluation.classification import RunOptions
from vit.evaluation.progress import Progress, as_stage
from vit.inference import TextPredictor
from vit.models import model_from_config


def calibration_choice(config: dict) -> str:
    """The value of `calibrate`, in lower case."""
    return str(config["calibrate"]).lower()


def trained_copy(model: nn.Module, weights: dict[str, Tensor]) -> nn.Module:
    """A model of the same config with these weights."""
    copy = model_from_config(model.config.to_dict())
    copy.load_state_dict(weights)
    return copy.eval()


def calibrate_images(
    model: nn.Module, preprocessing: Preprocessing, source: Source, choice: str, options: RunOptions, val: str = "val",
    progress: StageProgress | None = None, most: int | None = None,
) -> Calibration | None:
    """The calibration of an image classifier with the classes of `source`, on its split `val`; `progress` replaces
    that of the options, `most` as in `calibrate`.

    Raises:
        BadImage: an image cannot be read, and the options do not skip it.
        DataError: the split is empty or has other labels.
    """
    def outputs(split: Split, with_logits: bool, advance: Progress | None) -> Outputs:
        each = options._replace(progress=advance)
        return image_outputs(model, preprocessing, split, source.classes, each, with_logits)

    return calibrate(source, choice, outputs, val, progress, most)


def calibrate_labels(outputs: LabelOutputs, classes: list[str], choice: str) -> LabelCalibration | None:
    """The calibration of a multi-label classifier by its outputs for validation images."""
    return None if choice == NONE else fit_label_calibration(classes, outputs.logits, outputs.truth)


def calibrate_texts(
    predictor: TextPredictor, source: Source, choice: str, batch_size: int, val: str = "val",
    progress: StageProgress | None = None, most: int | None = None,
) -> Calibration | None:
    """The calibration of a text classifier, as `calibrate_images`.

    Raises:
        BadText, DataError: a text is too long, the split is empty or has other labels.
    """
    def outputs(split: TextSplit, with_logits: bool, advance: Progress | None) -> Outputs:
        return text_outputs(predictor, split, batch_size, with_logits, advance)

    return calibrate(source, choice, outputs, val, progress, most)


def calibrate(
    source: Source, choice: str, outputs: Callable[..., Outputs], val: str, progress: StageProgress | None = None,
    most: int | None = None,
) -> Calibration | None:
    """The calibration by the outputs for the split `val`; `full` also uses those for training samples, for the means
    of the features.

    Args:
        outputs: `outputs(split, with_logits, progress)` computes the outputs for a split.
        most: the most training samples that are used, if fewer than usual.
    """
    if choice == NONE:
        return None
    samples, train = sample_for_logits(source.splits[val], source.num_classes), None
    found = outputs(samples, True, as_stage(progress, "calibration", len(samples)))
    if choice == FULL and "train" in source.splits and has_class_means(source.num_classes, found.features):
        of_means = sample_for_means(source.splits["train"], source.num_classes, most)
        train = outputs(of_means, False, as_stage(progress, "class means", len(of_means)))
    return fit_calibration(source.classes, found, train, choice)
