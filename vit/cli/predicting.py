"""`vit predict`: predictions of a saved model for files or lines of text."""

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from vit.cli.terminal import (
    Device,
    Model,
    Precision,
    check_writable,
    counted,
    former_option,
    print_left_out,
    print_unreadable,
    print_written,
    stderr,
)

if TYPE_CHECKING:
    from vit.data.formats.lines import Line
    from vit.data.images.files import LeftOut
    from vit.inference import BadInput, GeneratedText, Predictor, Seq2SeqPredictor, TextPredictor
    from vit.inference import MultiLabelPrediction as Labels
    from vit.inference import Prediction as Classes
    from vit.inference.images import File

Prediction = TypeVar("Prediction")
STDIN = Path("-")


class Format(StrEnum):
    csv = "csv"
    json = "json"
    parquet = "parquet"
    text = "text"


@dataclass(frozen=True)
class Request:
    """What is predicted: the inputs, the number of predictions per input, and the format of the rows."""

    inputs: list[Path]
    top_k: int | None
    batch_size: int
    format: Format | None
    set_level: float | None = None
    abstain: float | None = None

    @property
    def is_stdin(self) -> bool:
        return self.inputs in ([], [STDIN])

    @property
    def statements(self) -> dict[str, float | None]:
        """What is asked of a calibrated classifier besides probabilities, as arguments of `stream`."""
        return {"set": self.set_level, "abstain": self.abstain}

    @property
    def line_batch_size(self) -> int:
        """1 if a person types the lines and expects the prediction after each."""
        return 1 if self.is_stdin and sys.stdin.isatty() else self.batch_size


@dataclass(frozen=True)
class Rows:
    """A table of predictions: the predictions in order, the columns, and the row of one prediction."""

    predictions: Iterable
    columns: list[str]
    row: Callable[[Prediction], dict]
    format: Format
    unit: str = "lines"
    total: int | None = None
    left_out: "list[LeftOut] | tuple" = ()


def predict(
    model: Model,
    inputs: Annotated[list[Path] | None, typer.Argument(
        help="Images: files, folders and .zip archives. Texts: files with one text per line; by default, or with -, "
             "standard input.",
        show_default=False)] = None,
    top_k: Annotated[int | None, typer.Option(
        "--top-k", "-k", min=1, show_default=False,
        help="Predictions per input: by default the best one, or for a multi-label model all labels that reach their "
             "thresholds.")] = None,
    format: Annotated[Format | None, typer.Option(
        "--format", "-f", help="By default text for generated lines, else csv.", show_default=False)] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file, instead of standard output.")] = None,
    set_level: Annotated[float | None, typer.Option(
        "--set", metavar="LEVEL", show_default=False,
        help="Also the labels that contain the true one with this probability, such as 0.9; averaged over inputs like "
             "the validation data.")] = None,
    abstain: Annotated[float | None, typer.Option(
        metavar="RATE", show_default=False,
        help="The label is unsure where the model cannot keep this error rate, such as 0.05, or where the input is "
             "unlike the validation data.")] = None,
    batch_size: Annotated[int, typer.Option(min=1)] = 64,
    beam: Annotated[int | None, typer.Option(
        min=1, help="Beam width of text generation; by default as saved.", show_default=False)] = None,
    length_penalty: Annotated[float | None, typer.Option(
        help="Text generation: scores are divided by length to this power; above 1 it favours longer texts.",
        show_default=False)] = None,
    prefix: Annotated[str | None, typer.Option(
        help="Text generation: every text starts with this one.", show_default=False)] = None,
    sample: Annotated[bool, typer.Option(
        "--sample", help="Text generation: sample tokens instead of searching; -k K prints K samples.")] = False,
    temperature: Annotated[float | None, typer.Option(
        help="Of --sample: below 1 it favours probable tokens.", show_default=False)] = None,
    seed: Annotated[int | None, typer.Option(help="Of --sample.", show_default=False)] = None,
    tta: Annotated[int | None, typer.Option(
        min=1, help="Test-time augmentation of image-to-text models: views per image.", show_default=False)] = None,
    views: Annotated[int | None, former_option("--views", "--tta")] = None,
    ensemble: Annotated[list[Path] | None, typer.Option(
        help="Another text generation model whose probabilities are averaged; repeatable.", show_default=False)] = None,
    precision: Precision = Precision.full,
    fast: Annotated[bool, typer.Option(
        "--fast", help="Image classifiers: bf16 and channels last where faster on this machine, with the same "
                       "predictions for 64 of the images.")] = False,
    device: Device = None,
    max_pixels: Annotated[int | None, typer.Option(
        min=1, show_default=False,
        help="Largest accepted image in pixels, instead of the model's limit.")] = None,
    strict: Annotated[bool, typer.Option(
        "--strict", help="Exit with 1 instead of 3 if an input cannot be read.")] = False,
) -> None:
    """Predict classes with probabilities, or generate texts, for images or texts: one row per input, in order.

    The probabilities of a calibrated model are calibrated, and the column calibrated says so; the column unknown is
    higher for stranger inputs, and p_value is the share of validation samples that are at least as strange.

    The row of an input that cannot be read has the reason in the column error.

    The exit code is then 3, or 1 if no input could be read.
    """
    if format is Format.parquet and output is None:
        raise typer.BadParameter("a Parquet file cannot be printed; add --output FILE")
    check_writable(output)
    from vit.inference import Seq2SeqPredictor, TextPredictor, load

    predictor, tta = load(model, device, precision, ensemble or (), fast=fast), tta or views
    if max_pixels is not None:
        set_max_pixels(predictor, max_pixels)
    request = Request(inputs or [], top_k, batch_size, format, set_level, abstain)
    check_statements(predictor, request)
    options = {"beam": beam, "tta": tta, "length_penalty": length_penalty, "prefix": prefix, "sample": sample or None,
               "temperature": temperature, "seed": seed}
    options = {key: value for key, value in options.items() if value is not None}
    if isinstance(predictor, Seq2SeqPredictor):
        rows = generated_rows(predictor, request, options)
    elif options:
        raise typer.BadParameter(f"--{next(iter(options)).replace('_', '-')} is for models that generate text, but "
                                 f"{model} is a classifier")
    elif isinstance(predictor, TextPredictor):
        rows = text_rows(predictor, request)
    else:
        rows = image_rows(predictor, request)
    counts = write_rows(rows, output)
    if fast:
        print_fast_mode(predictor)
    raise typer.Exit(exit_code(*counts, strict))


def print_fast_mode(predictor: "Predictor") -> None:
    """Print which mode --fast chose and what was measured."""
    from vit.inference.fast import IMAGES

    few = f"fast: 32-true, since other modes are compared on {IMAGES} images, and fewer were read"
    stderr().print(str(predictor.fast_mode or few), markup=False, highlight=False, soft_wrap=True)


def exit_code(predicted: int, unreadable: int, strict: bool) -> int:
    """0 if all inputs were read; 3 if some could not be read; 1 if none could, or with `strict` not all."""
    if not unreadable:
        return 0
    return 1 if strict or not predicted else 3


def check_statements(predictor: "Predictor | TextPredictor | Seq2SeqPredictor", request: Request) -> None:
    """Check that the model can make the statements that are asked for, and print what its probabilities are.

    Raises:
        BadParameter: the model generates text.
        ValueError: as `Calibrator`.
    """
    from vit.inference import Seq2SeqPredictor
    from vit.inference.calibrated import Calibrator

    asked = [f"--{name}" for name, value in request.statements.items() if value is not None]
    if isinstance(predictor, Seq2SeqPredictor):
        if asked:
            raise typer.BadParameter(f"{asked[0]} is for classifiers, but this model generates text")
        return
    Calibrator(predictor.bundle, request.set_level, request.abstain)
    if record := predictor.bundle.calibration:
        stderr().print(f"probabilities are calibrated on {record.samples:,} validation samples (temperature "
                       f"{record.temperature:.3g})", style="dim", highlight=False, soft_wrap=True)


def statement_columns(predictor: "Predictor | TextPredictor", request: Request) -> list[str]:
    """The columns of what a calibrated classifier states besides probabilities."""
    record = predictor.bundle.calibration
    columns = [] if record is None else ["calibrated"]
    columns += ["unknown", "p_value"] if record is not None and record.unknown is not None else []
    columns += ["set"] if request.set_level is not None else []
    return columns + (["unsure"] if request.abstain is not None else [])


def class_cells(prediction: "Classes", classes: list[str], columns: list[str], format: Format) -> dict:
    """The best classes and their probabilities, with the label "unsure" where the model abstains, and the cells of
    `columns`, which are `statement_columns`.
    """
    from vit.report.multi_label import join_cell
    from vit.report.tables import prediction_cells

    labels = prediction.set
    if labels is not None:
        labels = join_cell(labels, classes) if format is Format.csv else list(labels)
    stated = {"calibrated": "yes", "unknown": prediction.unknown, "p_value": prediction.p_value, "set": labels,
              "unsure": prediction.unsure}
    cells = prediction_cells(prediction.names, prediction.probabilities) | {"label": prediction.label}
    return cells | {name: stated[name] for name in columns}


def set_max_pixels(predictor: "Predictor | TextPredictor | Seq2SeqPredictor", max_pixels: int) -> None:
    """Change the limit on the size of images.

    Raises:
        BadParameter: the model reads texts.
    """
    preprocessing = getattr(predictor, "preprocessing", None)
    if preprocessing is None:
        raise typer.BadParameter("--max-pixels is for models that read images, but this model reads texts")
    predictor.preprocessing = preprocessing.replace(max_pixels=max_pixels)


def image_rows(predictor: "Predictor", request: Request) -> Rows:
    """Per image the best classes with their probabilities, or the labels of a multi-label model.

    Raises:
        BadParameter: there are no inputs, or the format is text.
        FileNotFoundError: a folder has no image.
    """
    from vit.inference import MultiLabelPredictor
    from vit.report.tables import prediction_columns

    if not request.inputs:
        raise typer.BadParameter("this model classifies images; pass image files or folders")
    format, top_k = table_format(request), request.top_k or 1
    paths, left_out = image_paths(request.inputs)
    if isinstance(predictor, MultiLabelPredictor) and request.top_k is None:
        def row(prediction: "Labels") -> dict:
            return {"file": prediction.source, **label_cells(prediction, predictor.classes, format)}

        top_k, columns = None, ["labels", "probabilities"]
    else:
        def row(prediction: "Classes") -> dict:
            return {"file": prediction.source, **class_cells(prediction, predictor.classes, stated, format)}

        stated = statement_columns(predictor, request)
        columns = [*prediction_columns(min(top_k, len(predictor.classes))), *stated]
    predictions = predictor.stream(paths, top_k, request.batch_size, **request.statements)
    return Rows(predictions, ["file", *columns], row, format, "files", len(paths), left_out)


def label_cells(prediction: "Labels", classes: list[str], format: Format) -> dict[str, str | list]:
    """The labels and their probabilities as lists, which CSV joins into one cell each."""
    from vit.report.multi_label import join_cell

    if format is Format.csv:
        values = [f"{value:.6f}" for value in prediction.probabilities]
        return {"labels": join_cell(prediction.names, classes), "probabilities": join_cell(values, classes)}
    return {"labels": list(prediction.names), "probabilities": list(prediction.probabilities)}


def text_rows(predictor: "TextPredictor", request: Request) -> Rows:
    """Per text, or per pair of texts separated by a tab, the best classes with their probabilities.

    Raises:
        BadParameter: the format is text.
        FileNotFoundError: an input file does not exist.
    """
    from vit.report.tables import prediction_columns

    format, top_k = table_format(request), min(request.top_k or 1, len(predictor.classes))

    def row(prediction: "Classes") -> dict:
        return {"text": prediction.source, **class_cells(prediction, predictor.classes, columns, format)}

    columns = statement_columns(predictor, request)
    predictions = predictor.stream(read_lines(request), top_k, request.line_batch_size, **request.statements)
    return Rows(predictions, ["text", *prediction_columns(top_k), *columns], row, format)


def generated_rows(predictor: "Seq2SeqPredictor", request: Request, options: dict) -> Rows:
    """Per line or image the generated text; with top_k above 1 the best texts with their scores.

    Args:
        options: settings of generation that differ from the saved ones.

    Raises:
        BadParameter: an image-to-text model without inputs, or an option that the model or another option excludes.
        FileNotFoundError: an input file does not exist, or a folder has no image.
    """
    images, top_k = predictor.is_image_to_text, request.top_k or 1
    if options.get("tta") and not images:
        raise typer.BadParameter("--tta is for image-to-text models, but this model reads texts")
    if images and not request.inputs:
        raise typer.BadParameter("this model reads images; pass image files or folders")
    if not options.get("sample"):
        options["beam"] = max(options.get("beam") or predictor.settings.beam, top_k)
    try:
        settings = predictor.changed_settings(n_best=top_k, **options)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    columns = ["file" if images else "source", *text_columns(top_k)]

    def row(prediction: "GeneratedText") -> dict:
        cells = [cell for pair in zip(prediction.texts, prediction.scores, strict=True) for cell in pair]
        return dict(zip(columns, [prediction.source, *cells], strict=False))

    format = request.format or (Format.csv if images or top_k > 1 else Format.text)
    if images:
        paths, left_out = image_paths(request.inputs)
        predictions = predictor.stream(paths, settings, request.batch_size)
        return Rows(predictions, columns, row, format, "files", len(paths), left_out)
    predictions = predictor.stream(read_lines(request), settings, request.line_batch_size)
    return Rows(predictions, columns, row, format)


def table_format(request: Request) -> Format:
    """The format of classes and probabilities.

    Raises:
        BadParameter: the format is text.
    """
    if request.format is Format.text:
        raise typer.BadParameter("--format text is for generated text, but this model is a classifier; use csv, json "
                                 "or parquet")
    return request.format or Format.csv


def write_rows(rows: Rows, output: Path | None) -> tuple[int, int]:
    """Write each row as soon as it is predicted; return the numbers of predictions and of unreadable inputs.

    The row of an unreadable input has the reason in the column error. In --format text it is an empty line, so that
    outputs stay aligned with input lines.
    """
    from vit.inference import BadInput
    from vit.report.tables import TABLES, open_table

    unreadable, predicted = [], 0
    with open_table(output, [*rows.columns, "error"], TABLES[rows.format]) as table, \
            counted("predict", rows.total) as progress:
        for prediction in rows.predictions:
            if isinstance(prediction, BadInput):
                unreadable.append(prediction)
                table.write({"text": ""} if rows.format is Format.text else error_row(prediction))
            else:
                predicted += 1
                table.write(rows.row(prediction))
            progress(1)
    print_unreadable(unreadable, predicted + len(unreadable), rows.unit)
    print_left_out(rows.left_out, predicted + len(unreadable))
    if output is not None:
        print_written(f"{predicted} predictions{f' and {len(unreadable)} errors' if unreadable else ''} to {output}")
    return predicted, len(unreadable)


def error_row(error: "BadInput") -> dict[str, str]:
    from vit.data import BadImage

    return {"file": error.name, "error": error.reason} if isinstance(error, BadImage) else {"error": str(error)}


def text_columns(top_k: int) -> list[str]:
    """text, score, text_2, score_2, ..."""
    return [f"{name}{f'_{k}' if k > 1 else ''}" for k in range(1, top_k + 1) for name in ("text", "score")]


def image_paths(inputs: list[Path]) -> "tuple[list[File], list[LeftOut]]":
    """The image files, folders and archives listed, and the other files in these.

    Raises:
        FileNotFoundError: a folder has no image.
    """
    from vit.inference import named_images

    left_out = []
    return [path for _, path in named_images(inputs, left_out)], left_out


def read_lines(request: Request) -> Iterator["Line"]:
    """The lines of the input files, or of standard input as they arrive.

    Raises:
        FileNotFoundError: a file does not exist; before the first line is read.
    """
    from vit.data.formats.delimited import iterate_lines
    from vit.data.formats.lines import number_lines

    if request.is_stdin:
        return number_lines(sys.stdin.buffer)
    return chain.from_iterable([iterate_lines(path) for path in request.inputs])
