"""The calibration of a trained model on the validation samples, as `calibrate` selects."""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from vit.bundle import Calibration, LabelCalibration
from vit.data import Preprocessing, Source, Split
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
    model: nn.Module, preprocessing: Preprocessing, source: Source, choice: str, options: RunOptions, val: str = "val"
) -> Calibration | None:
    """The calibration of an image classifier with the classes of `source`, on its split `val`.

    Raises:
        BadImage: an image cannot be read, and the options do not skip it.
        DataError: the split is empty or has other labels.
    """
    def outputs(split: Split, with_logits: bool) -> Outputs:
        return image_outputs(model, preprocessing, split, source.classes, options, with_logits)

    return calibrate(source, choice, outputs, val)


def calibrate_labels(outputs: LabelOutputs, classes: list[str], choice: str) -> LabelCalibration | None:
    """The calibration of a multi-label classifier by its outputs for validation images."""
    return None if choice == NONE else fit_label_calibration(classes, outputs.logits, outputs.truth)


def calibrate_texts(
    predictor: TextPredictor, source: Source, choice: str, batch_size: int, val: str = "val"
) -> Calibration | None:
    """The calibration of a text classifier, as `calibrate_images`.

    Raises:
        BadText, DataError: a text is too long, the split is empty or has other labels.
    """
    return calibrate(source, choice, partial(text_outputs, predictor, batch_size=batch_size), val)


def calibrate(
    source: Source, choice: str, outputs: Callable[..., Outputs], val: str
) -> Calibration | None:
    """The calibration by the outputs for the split `val`; `full` also uses those for training samples, for the means
    of the features.

    Args:
        outputs: `outputs(split, with_logits=...)` computes the outputs for a split.
    """
    if choice == NONE:
        return None
    samples, train = sample_for_logits(source.splits[val], source.num_classes), None
    found = outputs(samples, with_logits=True)
    if choice == FULL and "train" in source.splits and has_class_means(source.num_classes, found.features):
        train = outputs(sample_for_means(source.splits["train"], source.num_classes), with_logits=False)
    return fit_calibration(source.classes, found, train, choice)
