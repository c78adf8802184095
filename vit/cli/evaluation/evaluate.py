"""`vit evaluate`: metrics of a saved model on labelled data."""

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vit.cli.data.data_sets import compose_data, evaluation_split
from vit.cli.file_checks import (
    check_folder,
    check_not_an_input,
    check_table,
    check_writable,
    files_of_model,
    is_of_model_or_run,
)
from vit.cli.shared_options import (
    ClassesToRank,
    ConfigDir,
    Device,
    EvaluatedSplit,
    EvaluationBatchSize,
    EvaluationPrecision,
    Model,
    Overrides,
)
from vit.cli.terminal import print_without_effect, write_json

if TYPE_CHECKING:
    from vit.bundle import Bundle
    from vit.cli.evaluation.evaluations import AnyPredictor
    from vit.inference import Seq2SeqPredictor


def evaluate(
    model: Model,
    overrides: Overrides = None,
    split: EvaluatedSplit = None,
    batch_size: EvaluationBatchSize = None,
    precision: EvaluationPrecision = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all metrics to this file.")] = None,
    output: Annotated[Path | None, typer.Option(
        "--output", "-o", help="Write predictions and figures to this folder.")] = None,
    tta: Annotated[int, typer.Option(
        min=1, max=2, help="Image classifiers: 2 averages the probabilities of an image and its mirror image.")] = 1,
    classes: Annotated[ClassesToRank, typer.Option(
        help="Image classifiers: data chooses among the classes that occur in the data, as is usual for data with some "
             "of the classes of ImageNet; model among all classes of the model.")] = ClassesToRank.model,
    real_labels: Annotated[Path | None, typer.Option(
        help="Validation images of ImageNet: real.json of ImageNet-ReaL, whose labels are a further metric.")] = None,
    device: Device = None,
    config_dir: ConfigDir = None,
) -> None:
    """Evaluate a model on labelled data, by default on the test split of the data set that it was trained on."""
    check_writable(json_file)
    check_not_an_input(json_file, [*(overrides or []), *files_of_model(model)], "--json")
    check_folder(output)
    if output is not None and is_of_model_or_run(output / "predictions.csv"):
        raise ValueError(f"--output {output} is the folder of a run, whose predictions.csv would be replaced; choose "
                          "another folder")
    check_table("--json", json_file, (".json",))
    from vit.cli.evaluation.evaluations import Measurement
    from vit.cli.evaluation.measurements import calibration_note, measure, measure_reconstruction
    from vit.inference import MaskedTextPredictor, Seq2SeqPredictor
    from vit.run.config.composing import ConfigError, stated
    from vit.run.config.hydra_interface import with_config_dir

    overrides = with_config_dir(overrides or [], config_dir)
    labels = None
    if real_labels is not None:
        from vit.evaluation import read_real_labels

        labels = read_real_labels(real_labels)
    bundle, predictor = open_model(model, device, tta, classes.value, labels is not None)
    generates = isinstance(predictor, Seq2SeqPredictor)
    if not generates and (keys := sorted(stated(overrides, "task.decode"))):
        raise ConfigError(f"task.decode.{keys[0]} is for models that generate text, but {bundle.path} does not; leave "
                          "it out")
    config = compose_data(overrides, bundle, "task.decode" if generates else None)
    if generates:
        override_decoding(predictor, config, overrides)
    source, split = evaluation_split(config["data"], bundle, split)
    tested = bundle.extra.get("evaluation", {})
    precision = str(precision or tested.get("precision", "32-true"))
    batch_size = batch_size or tested.get("batch_size") or 64
    task = Measurement(source, split, config["data"], batch_size, precision, output, tta, classes.value, labels)
    if output is not None and (predictor is None or isinstance(predictor, MaskedTextPredictor)):
        print_without_effect(f"{bundle.path} predicts no labels and no texts, so --output writes nothing; --json FILE "
                             "writes the metrics")
    found = measure_reconstruction(bundle, task, device) if predictor is None else measure(predictor, task)
    if note := calibration_note(bundle, task):
        found |= {"calibrated_on_these_samples": True, "calibration_samples": note[1]}
    write_json(found, json_file)


def open_model(
    model: str, device: str | None, tta: int, classes: str, real: bool
) -> "tuple[Bundle, AnyPredictor | None]":
    """The bundle of a model and its predictor; None for a masked autoencoder, which predicts nothing.

    Raises:
        typer.BadParameter: `tta`, `classes` or ReaL labels (`real`) with a masked autoencoder.
    """
    from vit.exchange.opening import open_model as open_bundle
    from vit.inference.loading import predictor_of

    bundle = open_bundle(model)
    if bundle.model.config.kind != "mae":
        return bundle, predictor_of(bundle, device)
    for option, is_set in (("--tta", tta != 1), ("--classes", classes != "model"), ("--real-labels", real)):
        if is_set:
            raise typer.BadParameter(f"{option} is for classifiers of images, but {model} reconstructs masked patches")
    return bundle, None


def override_decoding(predictor: "Seq2SeqPredictor", config: dict, overrides: list[str]) -> None:
    """Change the decoding settings that overrides set; the others remain as saved.

    Raises:
        ConfigError: a value is out of range, or the model does not support it.
    """
    from vit.run.config.composing import stated
    from vit.run.config.overrides import checked

    decode = config["task"].get("decode", {})  # missing for another kind of data, which is rejected afterwards
    values = {key: decode[key] for key in stated(overrides, "task.decode") if decode[key] is not None}
    predictor.settings = checked("task.decode", partial(replace, predictor.settings), values, unpack=True)
    checked("task.decode", predictor.check_settings, predictor.settings, names=asdict(predictor.settings))
