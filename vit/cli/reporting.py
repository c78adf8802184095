"""`vit report`: everything about a trained classifier in one HTML file."""

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vit.cli.data_sets import ALL, compose_data, evaluation_split
from vit.cli.terminal import (
    ConfigDir,
    Device,
    Model,
    Overrides,
    Precision,
    check_writable,
    print_written,
    staged,
)

if TYPE_CHECKING:
    from vit.cli.measuring import Measurement
    from vit.inference import Predictor, Seq2SeqPredictor, TextPredictor
    from vit.report.sections.run_record import RunRecord


def report(
    context: typer.Context,
    model: Model,
    overrides: Overrides = None,
    split: Annotated[str | None, typer.Option(
        help="train, val, test, or all for a whole held-out data set; by default test, or val if there is no test "
             "split.", show_default=False)] = None,
    output: Annotated[Path, typer.Option(
        "--output", "-o", help="The page; the same numbers are in the .json file of this name.")] = Path("report.html"),
    attention: Annotated[int, typer.Option(min=0, max=12, help="Images with attention maps.")] = 4,
    seconds: Annotated[float | None, typer.Option(
        min=0, help="Time limit for decoding in the audit of the data.")] = 10.0,
    corruptions: Annotated[bool, typer.Option(
        "--corruptions", help="Also evaluate under 15 kinds of corruption in each severity, which takes 75 further "
                              "evaluations.")] = False,
    severity: Annotated[list[int] | None, typer.Option(
        min=1, max=5, help="With --corruptions: only this severity; may be repeated.", show_default=False)] = None,
    batch_size: Annotated[int | None, typer.Option(
        min=1, help="By default that of the test after training.", show_default=False)] = None,
    precision: Annotated[Precision | None, typer.Option(
        help="By default that of the test after training.", show_default=False)] = None,
    device: Device = None,
    config_dir: ConfigDir = None,
) -> None:
    """Write a page about an image classifier: accuracy with intervals, errors, calibration, attention, data.

    One HTML file that needs no network, and a JSON file beside it. By default the test split of the data set that the
    model was trained on; data=folder data.root=photos chooses another one.
    """
    check_output(output)
    if severity and not corruptions:
        raise ValueError("--severity belongs to --corruptions; add it, or leave --severity out")
    from vit.cli.measuring import Measurement, evaluate_images
    from vit.inference import load
    from vit.report.model_report import write_report
    from vit.report.sections.subject import Subject
    from vit.run.config.composing import with_config_dir

    predictor = check_reported(load(model, device))
    bundle, run = predictor.bundle, run_of(predictor)
    config = compose_data(with_config_dir(overrides or [], config_dir), bundle)
    source, split = evaluation_split(config["data"], bundle, split)
    tested = bundle.extra.get("evaluation", {})
    predictor.precision = str(precision or tested.get("precision", "32-true"))
    batch_size = batch_size or tested.get("batch_size") or 64
    task = Measurement(source, split, config["data"], batch_size, predictor.precision, None)
    check_images(predictor, task)
    evaluation, samples = evaluate_images(predictor, task)
    facts = header_facts(context.obj["arguments"], predictor.precision, batch_size)
    audited = replace(source, splits={name: each for name, each in source.splits.items() if name != ALL})
    subject = Subject(predictor, evaluation, samples, audited, split, task.title, facts, run, batch_size, seconds,
                      attention, tuple(sorted(set(severity or range(1, 6)))) if corruptions else ())
    with staged("report") as progress:
        files = write_report(output, subject, progress)
    for file in files:
        print_written(str(file))


def check_output(output: Path) -> None:
    """Check before the computation that both files can be written.

    Raises:
        ValueError: another extension than .html, a file that cannot be written, or a JSON file of another kind, such as
            metrics.json of a run, that would be overwritten.
    """
    if output.suffix != ".html":
        raise ValueError(f"--output {output} must end with .html")
    check_writable(output)
    beside = output.with_suffix(".json")
    check_writable(beside)
    if beside.exists():
        from vit.report.model_report import is_report

        if not is_report(beside):
            raise ValueError(f"{beside} exists and is not the JSON file of a report; choose another --output")


def check_reported(predictor: "Predictor | TextPredictor | Seq2SeqPredictor") -> "Predictor":
    """The predictor, if reports exist for its kind of model.

    Raises:
        ValueError: they do not.
    """
    from vit.cli.measuring import IMAGES, kind_of_model

    if (kind := kind_of_model(predictor)) != IMAGES:
        raise ValueError(f"{predictor.bundle.path} is a model for {kind}; reports exist for classifiers of images with "
                         "one label per image; vit evaluate MODEL --output FOLDER writes figures of the others")
    return predictor


def check_images(predictor: "Predictor", task: "Measurement") -> None:
    """Check the kind of the data.

    Raises:
        ValueError: the data does not consist of labelled images.
    """
    from vit.cli.measuring import IMAGES, kind_of_data

    if (holds := kind_of_data(task.source)) != IMAGES:
        raise ValueError(f"{task.source.name} holds {holds}, but the model is for {IMAGES}; choose another data set "
                         "with data=NAME")


def run_of(predictor: "Predictor") -> "RunRecord | None":
    """The record of the run that a model is from; None outside a run folder.

    Raises:
        ConfigError: the folder has links that lead out of it, or its config is damaged.
        ValueError: another file of it is damaged.
    """
    from vit.report.sections.run_record import read_run
    from vit.run.records import record_beside

    record = record_beside(predictor.bundle.path)
    return None if record is None else read_run(record.path)


def header_facts(arguments: list[str], precision: str, batch_size: int) -> dict[str, str]:
    """The lines of the header about this report itself."""
    from vit import __version__
    from vit.run.console import command
    from vit.run.environment import environment

    found = environment()
    versions = {"vit": __version__, "python": found["python"], **found["versions"]}
    return {
        "date": datetime.now().astimezone().isoformat(sep=" ", timespec="seconds"),
        "command": command(*arguments),
        "evaluated with": f"batches of {batch_size}, precision {precision}",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "processor": found["processor"],
    }
