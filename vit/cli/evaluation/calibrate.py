"""`vit calibrate`: a copy of a saved classifier, calibrated on labelled data."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vit.cli.data.data_sets import ALL, compose_data, evaluation_source, open_source
from vit.cli.file_checks import check_new_folder
from vit.cli.shared_options import (
    BatchSize,
    ConfigDir,
    Device,
    ForwardPrecision,
    Model,
    Overrides,
    Precision,
    check_split,
)
from vit.cli.terminal import check_classes, print_without_effect, print_written, staged
from vit.messages import ArgumentError, number_of

if TYPE_CHECKING:
    from vit.bundle import Bundle, Calibration, LabelCalibration
    from vit.data import Source
    from vit.inference import Predictor, Seq2SeqPredictor, TextPredictor

    AnyPredictor = Predictor | TextPredictor | Seq2SeqPredictor


def calibrate(
    model: Model,
    overrides: Overrides = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="A new folder for the calibrated copy.",
                                         show_default=False)] = ...,
    split: Annotated[str, typer.Option(
        help="Split with labelled samples that the model was not trained on.", callback=check_split)] = "val",
    temperature_only: Annotated[bool, typer.Option(
        "--temperature-only", help="Fit the temperature only, without prediction sets and unknown score.")] = False,
    batch_size: BatchSize = 64,
    precision: ForwardPrecision = Precision.full,
    device: Device = None,
    config_dir: ConfigDir = None,
) -> None:
    """Calibrate a classifier, by default on the validation split of the data set that it was trained on.

    Writes a copy with a temperature, prediction sets and an unknown score; if inputs have several labels, with a
    temperature per label. The model itself is unchanged.
    """
    check_new_folder(output)
    from vit.bundle import save_bundle
    from vit.bundle.label_calibration import calibrated_thresholds, raw_thresholds
    from vit.bundle.loading import CALIBRATED_ON
    from vit.evaluation.calibration.fitting import FULL, TEMPERATURE
    from vit.inference import load
    from vit.run.config.hydra_interface import with_config_dir

    predictor = load(model, device, str(precision))
    bundle = check_classifier(predictor)
    if temperature_only and bundle.thresholds:
        print_without_effect("--temperature-only has no effect: models that assign several labels have "
                             "temperatures only")
    source = matched_source(compose_data(with_config_dir(overrides or [], config_dir), bundle), bundle, split)
    choice = TEMPERATURE if temperature_only else FULL
    found = fit(predictor, source, split, choice, batch_size)
    thresholds = ()
    if bundle.thresholds:
        thresholds = calibrated_thresholds(raw_thresholds(bundle.thresholds, bundle.calibration), found)
    save_bundle(output, bundle.model, bundle.classes, bundle.preprocessing, bundle.metrics,
                {**bundle.extra, CALIBRATED_ON: {"data": source.name, "split": split}},
                tokenizers=bundle.tokenizers, thresholds=thresholds, calibration=found)
    typer.echo(f"{found.temperature_text} from {number_of(found.samples, f'{split} sample')} of {source.name}")
    typer.echo(f"log loss {found.loss[0]:.4f} -> {found.loss[1]:.4f}, expected calibration error {found.ece[0]:.4f} -> "
               f"{found.ece[1]:.4f}")
    print_written(f"the calibrated copy to {output}")


def check_classifier(predictor: "AnyPredictor") -> "Bundle":
    """The bundle of a classifier.

    Raises:
        ValueError: the model is of another kind, or has no head.
    """
    from vit.inference import MaskedTextPredictor, Seq2SeqPredictor

    bundle = predictor.bundle
    if isinstance(predictor, MaskedTextPredictor):
        raise ValueError(f"{bundle.path} predicts masked words; calibration is for classifiers")
    if isinstance(predictor, Seq2SeqPredictor):
        raise ValueError(f"{bundle.path} generates text; calibration is for classifiers")
    check_classes(predictor)
    return bundle


def matched_source(config: dict, bundle: "Bundle", split: str) -> "Source":
    """The data set with the labels of the model: the split to calibrate on, and train, whose class means are computed.

    Raises:
        DataError: there is no such split, or it has a class that the model does not have.
        ValueError: the data is of another kind, or the split is the training split or all of them.
    """
    from vit.cli.evaluation.evaluations import IMAGES, MULTI_LABEL, TEXTS, kind_of_data
    from vit.evaluation import matched_split, named_classes

    if split == ALL:
        splits = [name for name in open_source(config["data"]).splits if name != "train"]
        raise ArgumentError("--split all includes train, whose samples are needed for the class means of the unknown "
                            "score: a calibration on them would not hold for new samples; choose one split: "
                            f"{', '.join(splits)}")
    source = evaluation_source(config["data"], bundle, split)
    wanted = TEXTS if bundle.preprocessing is None else IMAGES
    if bundle.thresholds:
        wanted = MULTI_LABEL
    if (holds := kind_of_data(source)) != wanted:
        raise ValueError(f"{source.name} holds {holds}, but the model is for {wanted}; choose another data set with "
                         "data=NAME")
    if split == "train":
        raise ArgumentError("--split train: a model is more confident about samples that it was trained on, so the "
                            "calibration would not hold for new samples; use val or test")
    names = {split, "train"} if "train" in source.splits else {split}
    classes = named_classes(bundle.classes, source)
    return replace(source, classes=bundle.classes,
                   splits={name: matched_split(source, classes, name) for name in sorted(names)})


def fit(
    predictor: "Predictor | TextPredictor", source: "Source", split: str, choice: str, batch_size: int
) -> "Calibration | LabelCalibration":
    """The calibration of a predictor on one split of a source with its classes."""
    from vit.evaluation.calibration.outputs import label_outputs
    from vit.evaluation.classification import RunOptions
    from vit.evaluation.progress import as_stage
    from vit.inference import MultiLabelPredictor, TextPredictor
    from vit.run.parts.calibration import calibrate_images, calibrate_labels, calibrate_texts

    with staged("calibration") as progress:
        if isinstance(predictor, TextPredictor):
            predictor.truncate = True
            return calibrate_texts(predictor, source, choice, batch_size, split, progress)
        samples = source.splits[split]
        advance = as_stage(progress, "calibration", len(samples))
        options = RunOptions(batch_size, predictor.precision, "error", predictor.device, advance)
        if isinstance(predictor, MultiLabelPredictor):
            outputs = label_outputs(predictor.model, predictor.preprocessing, samples, source.classes, options)
            return calibrate_labels(outputs, source.classes, choice)
        return calibrate_images(predictor.model, predictor.preprocessing, source, choice, options, split, progress)
