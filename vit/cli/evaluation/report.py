"""`vit report`: everything about a trained model in one HTML file."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vit.cli.data.data_sets import ALL, compose_data, evaluation_split
from vit.cli.file_checks import check_writable
from vit.cli.option_groups import with_option_groups
from vit.cli.shared_options import (
    ConfigDir,
    Device,
    EvaluatedSplit,
    EvaluationBatchSize,
    EvaluationPrecision,
    Model,
    Overrides,
)
from vit.cli.terminal import print_written, staged
from vit.messages import ArgumentError

if TYPE_CHECKING:
    from vit.inference import Predictor, Seq2SeqPredictor, TextPredictor
    from vit.report.sections.run_record import RunRecord
    from vit.report.sections.subject import Subject

    AnyPredictor = Predictor | TextPredictor | Seq2SeqPredictor


@dataclass(frozen=True)
class SectionOptions:
    """What the page shows besides the numbers that every model has."""

    attention: Annotated[int, typer.Option(min=0, max=12, help="Number of images with attention maps.")] = 4
    grad_cam: Annotated[bool, typer.Option(
        "--grad-cam", help="Also show Grad-CAM of these images; requires captum, from the extra report.")] = False
    seconds: Annotated[float | None, typer.Option(
        min=0, help="Time limit in seconds for decoding images in the audit of the data.")] = 10.0
    corruptions: Annotated[bool, typer.Option(
        "--corruptions", help="Also evaluate under 15 kinds of corruption at 5 severities, which takes 75 further "
                              "evaluations.")] = False
    severity: Annotated[list[int] | None, typer.Option(
        min=1, max=5, help="With --corruptions: only this severity; may be repeated.", show_default=False)] = None

    @property
    def severities(self) -> tuple[int, ...]:
        """Severities of the corruptions in ascending order; none without --corruptions."""
        return tuple(sorted(set(self.severity or range(1, 6)))) if self.corruptions else ()

    def check(self, kind: str) -> None:
        """Check that the options fit the kind of model, before the computation.

        Raises:
            ValueError: they do not, captum is not installed, or the model is a masked language model.
        """
        from vit.cli.evaluation.evaluations import IMAGES, MULTI_LABEL, PLAIN_TEXT
        from vit.evaluation.attribution.grad_cam import check_captum

        if kind == PLAIN_TEXT:
            raise ValueError("there is no report about a masked language model; vit evaluate prints its numbers")
        if self.corruptions and kind != IMAGES:
            raise ArgumentError("--corruptions is for classifiers of images with one label per image; leave it out")
        if self.grad_cam and kind not in (IMAGES, MULTI_LABEL):
            raise ArgumentError("--grad-cam is for classifiers of images; leave it out")
        if self.grad_cam:
            check_captum()


@dataclass(frozen=True)
class EvaluationOptions:
    """How the model is evaluated."""

    batch_size: EvaluationBatchSize = None
    precision: EvaluationPrecision = None
    device: Device = None


@with_option_groups
def report(
    context: typer.Context,
    model: Model,
    overrides: Overrides = None,
    split: EvaluatedSplit = None,
    output: Annotated[Path, typer.Option(
        "--output", "-o", help="Page to write; a .json file of the same name gets the numbers.")] = Path("report.html"),
    *,
    sections: SectionOptions,
    options: EvaluationOptions,
    config_dir: ConfigDir = None,
) -> None:
    """Write a page about a model: its numbers with intervals, errors, calibration, attention, training and data.

    One HTML file that needs no network, and a JSON file beside it. By default the test split of the data set that the
    model was trained on; data=folder data.root=photos chooses another one.
    """
    check_output(output)
    if sections.severity and not sections.corruptions:
        raise typer.BadParameter("--severity belongs to --corruptions; add it, or leave --severity out")
    from vit.inference import load
    from vit.report.pages.model_report import write_report
    from vit.run.config.hydra_interface import with_config_dir
    from vit.run.console import command

    predictor = load(model, options.device)
    config = compose_data(with_config_dir(overrides or [], config_dir), predictor.bundle)
    command_line = command(*context.obj["arguments"])
    subject = evaluate_for_report(predictor, config["data"], split, sections, options, command_line)
    with staged("report") as progress:
        files = write_report(output, subject, progress)
    for file in files:
        print_written(str(file))


def evaluate_for_report(
    predictor: "AnyPredictor", data: dict, split: str | None, sections: SectionOptions, options: EvaluationOptions,
    command_line: str,
) -> "Subject":
    """Evaluate the model on a split, for the sections of the report.

    Batch size and precision are by default those of the test after training.

    Args:
        command_line: the command, as the report states it.

    Raises:
        DataError: there is no such split, or the data does not fit the model.
        ValueError: the sections do not fit the model, or a file of its run is damaged.
    """
    from vit.cli.evaluation.evaluations import Measurement, check_kind, evaluate_predictor
    from vit.cli.evaluation.measurements import calibration_note
    from vit.evaluation.attribution.relevance import check_relevance
    from vit.report.sections.subject import Subject
    from vit.run.reporting import header_facts

    source, split = evaluation_split(data, predictor.bundle, split)
    run, tested = find_run_record(predictor), predictor.bundle.extra.get("evaluation", {})
    predictor.precision = str(options.precision or tested.get("precision", "32-true"))
    batch_size = options.batch_size or tested.get("batch_size") or 64
    task = Measurement(source, split, data, batch_size, predictor.precision, None)
    kind = check_kind(predictor, task)
    sections.check(kind)
    if sections.grad_cam:
        check_relevance(predictor.model)
    evaluation, samples = evaluate_predictor(predictor, kind, task)
    facts = header_facts(command_line, predictor.precision, batch_size)
    if note := calibration_note(predictor.bundle, task):
        facts["note"] = note[0]
    audited = replace(source, splits={name: each for name, each in source.splits.items() if name != ALL})
    return Subject(predictor, evaluation, samples, audited, split, task.title, facts, run, batch_size,
                   sections.seconds, sections.attention, sections.severities, grad_cam=sections.grad_cam)


def check_output(output: Path) -> None:
    """Check before the computation that both files can be written.

    Raises:
        BadParameter: the extension is not .html.
        ValueError: a file cannot be written, or the JSON file exists and is not that of a
            report, such as metrics.json of a run.
    """
    if output.suffix != ".html":
        raise typer.BadParameter(f"--output {output} must end with .html")
    check_writable(output)
    beside = output.with_suffix(".json")
    check_writable(beside)
    if beside.exists():
        from vit.report.pages.model_report import is_report

        if not is_report(beside):
            raise ValueError(f"{beside} exists and is not the JSON file of a report; choose another --output")


def find_run_record(predictor: "AnyPredictor") -> "RunRecord | None":
    """The record of the run that trained the model; None if the model is not in a run folder.

    Raises:
        ConfigError: the folder has links that lead out of it, or its config is damaged.
        ValueError: another file of the run is damaged.
    """
    from vit.report.sections.run_record import read_run
    from vit.run.records.splits import record_beside

    record = record_beside(predictor.bundle.path)
    return None if record is None else read_run(record.path)
