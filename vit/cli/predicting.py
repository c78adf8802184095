"""`vit predict`: answers from a saved model for files of one's own."""

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from vit.cli.terminal import Device, Model, Precision, check_writable, list_left_out, list_unreadable, progress, stderr

if TYPE_CHECKING:
    from vit.data.formats.lines import Line
    from vit.data.images.files import LeftOut
    from vit.inference import Bad, LabelSet, Prediction, Predictor, TextPredictor, Writer, Written
    from vit.inference.images import File

Answer = TypeVar("Answer")
Counts = tuple[int, int]  # inputs that were answered, inputs that could not be read
STDIN = Path("-")
NO_TEXTS = "--format text is for texts that are written; take csv, json or parquet"


class Format(StrEnum):
    csv = "csv"
    json = "json"
    parquet = "parquet"
    text = "text"


def predict(
    model: Model,
    inputs: Annotated[list[Path] | None, typer.Argument(
        help="Image files, folders and .zip archives, or for a model that reads text files of lines; "
             "- or nothing is standard input.",
        show_default=False)] = None,
    top_k: Annotated[int | None, typer.Option(
        "--top-k", "-k", min=1, show_default=False,
        help="Answers per input: by default the best one, or all labels above their thresholds.")] = None,
    format: Annotated[Format | None, typer.Option(
        "--format", "-f", help="By default text for translated lines, else csv.", show_default=False)] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file, instead of standard output.")] = None,
    batch_size: Annotated[int, typer.Option(min=1)] = 64,
    beam: Annotated[int | None, typer.Option(min=1, help="Texts followed at once while writing one.")] = None,
    views: Annotated[int | None, typer.Option(
        min=1, help="So many views of an image of writing count together.")] = None,
    ensemble: Annotated[list[Path] | None, typer.Option(
        help="Another model that writes, whose probabilities count as much; again for more.")] = None,
    precision: Precision = Precision.full,
    device: Device = None,
    max_pixels: Annotated[int | None, typer.Option(
        min=1, show_default=False,
        help="Read images of up to so many pixels, where these are more than the model's own limit.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1, not 3, when an input cannot be read.")] = False,
) -> None:
    """Answer for each image or line, in order: its best classes and their probabilities, or the text written for it.

    An input that cannot be read has a row with the reason under `error`. The exit code is then 3; 1 if none was read.
    """
    if format is Format.parquet and output is None:
        raise typer.BadParameter("a Parquet file cannot be printed; add --output FILE")
    check_writable(output)
    from vit.inference import LabelSetPredictor, TextPredictor, Writer, load

    predictor = load(model, device, precision, ensemble or ())
    if max_pixels is not None:
        raise_max_pixels(predictor, max_pixels)
    if (beam or views) and not isinstance(predictor, Writer):
        raise typer.BadParameter(f"--{'beam' if beam else 'views'} is for models that write texts, and {model} is none")
    if isinstance(predictor, Writer):
        counts = write_texts(predictor, inputs or [], top_k or 1, format, output, batch_size, beam, views)
    elif isinstance(predictor, TextPredictor):
        counts = name_texts(predictor, inputs or [], top_k or 1, format or Format.csv, output, batch_size)
    elif isinstance(predictor, LabelSetPredictor) and top_k is None:
        counts = name_images(predictor, inputs or [], None, format or Format.csv, output, batch_size)
    else:
        counts = name_images(predictor, inputs or [], top_k or 1, format or Format.csv, output, batch_size)
    raise typer.Exit(exit_code(*counts, strict))


def exit_code(good: int, unreadable: int, strict: bool) -> int:
    """0: every input was answered; 3: some could not be read; 1: none could, or, with `strict`, not all."""
    if not unreadable:
        return 0
    return 1 if strict or not good else 3


def raise_max_pixels(predictor: "Predictor | TextPredictor | Writer", max_pixels: int) -> None:
    preprocessing = getattr(predictor, "preprocessing", None)
    if preprocessing is None:
        raise typer.BadParameter("--max-pixels is for models that read images, and this one reads texts")
    predictor.preprocessing = preprocessing.replace(max_pixels=max_pixels)


def name_images(
    predictor: "Predictor", inputs: list[Path], top_k: int | None, format: Format, output: Path | None, batch_size: int
) -> Counts:
    """One line per image with its best classes and their probabilities; with top_k None all labels it is given."""
    from vit.report.tables import prediction_cells, prediction_columns

    if not inputs or format is Format.text:
        text = NO_TEXTS if inputs else "this model names images; give some"
        raise typer.BadParameter(text)
    paths, left_out = image_paths(inputs)
    top_k = None if top_k is None else min(top_k, len(predictor.classes))
    columns = ["file", *(["labels", "probabilities"] if top_k is None else prediction_columns(top_k))]

    def row(answer: "Prediction") -> dict:
        if top_k is None:
            return {"file": answer.source, **label_cells(answer, predictor.classes, format)}
        return {"file": answer.source, **prediction_cells(answer.names, answer.probabilities)}

    return write_answers(predictor.stream(paths, top_k, batch_size), row, columns, format, output, left_out, len(paths))


def label_cells(answer: "LabelSet", classes: list[str], format: Format) -> dict[str, str | list]:
    """The labels and their probabilities: lists, which in CSV are one cell each."""
    from vit.report.label_sets import joined

    if format is Format.csv:
        values = [f"{value:.6f}" for value in answer.probabilities]
        return {"labels": joined(answer.names, classes), "probabilities": joined(values, classes)}
    return {"labels": list(answer.names), "probabilities": list(answer.probabilities)}


def name_texts(
    predictor: "TextPredictor", inputs: list[Path], top_k: int, format: Format, output: Path | None, batch_size: int
) -> Counts:
    """One line per text, or per pair with a tab between its texts, with its best classes and their probabilities."""
    from vit.report.tables import prediction_cells, prediction_columns

    if format is Format.text:
        raise typer.BadParameter(NO_TEXTS)
    top_k = min(top_k, len(predictor.classes))
    answers = predictor.stream(lines(inputs), top_k, 1 if typed(inputs) else batch_size)

    def row(answer: "Prediction") -> dict:
        return {"text": answer.source, **prediction_cells(answer.names, answer.probabilities)}

    return write_answers(answers, row, ["text", *prediction_columns(top_k)], format, output)


def write_texts(
    writer: "Writer",
    inputs: list[Path],
    top_k: int,
    format: Format | None,
    output: Path | None,
    batch_size: int,
    beam: int | None,
    views: int | None,
) -> Counts:
    """A text for each line, or for each image; with top_k above 1 the best ones with their scores."""
    beam = max(beam or writer.settings.beam, top_k)
    ctc = writer.settings.ctc if beam > 1 else 0.0  # a single text is in no order
    images = writer.reads_images
    if views and not images:
        raise typer.BadParameter("--views is for images of writing, but this model reads texts")
    settings = replace(writer.settings, beam=beam, n_best=top_k, ctc=ctc, views=views or writer.settings.views)
    if images and not inputs:
        raise typer.BadParameter("this model reads images; give image files or folders")
    sources, left_out = image_paths(inputs) if images else (lines(inputs), None)
    columns = ["file" if images else "source", *text_columns(top_k)]

    def row(answer: "Written") -> dict:
        cells = [cell for pair in zip(answer.texts, answer.scores, strict=True) for cell in pair]
        return dict(zip(columns, [answer.source, *cells], strict=False))

    answers = writer.stream(sources, settings, 1 if not images and typed(inputs) else batch_size)
    format = format or (Format.csv if images or top_k > 1 else Format.text)
    return write_answers(answers, row, columns, format, output, left_out, len(sources) if images else None)


def write_answers(
    answers: Iterable["Answer | Bad"],
    row: Callable[[Answer], dict],
    columns: list[str],
    format: Format,
    output: Path | None,
    left_out: "list[LeftOut] | None" = None,
    total: int | None = None,
) -> Counts:
    """A row per answer as it comes; the row of an input that could not be read has the reason under `error`.

    In --format text an empty line stands for it, so that lines stay beside their answers. `left_out` is None for lines.
    """
    from vit.inference import Bad
    from vit.report.tables import TABLES, open_table

    unreadable, good = [], 0
    with open_table(output, [*columns, "error"], TABLES[format]) as table, progress() as bar:
        task = bar.add_task("predict", total=total)
        for answer in answers:
            if isinstance(answer, Bad):
                unreadable.append(answer)
                table.write({"text": ""} if format is Format.text else error_row(answer))
            else:
                good += 1
                table.write(row(answer))
            bar.advance(task)
    list_unreadable(unreadable, good + len(unreadable), "lines" if left_out is None else "files")
    list_left_out(left_out or [], good + len(unreadable))
    if output is not None:
        errors = f" and {len(unreadable)} errors" if unreadable else ""
        stderr().print(f"wrote {good} predictions{errors} to {output}", markup=False, soft_wrap=True)
    return good, len(unreadable)


def error_row(error: "Bad") -> dict[str, str]:
    from vit.data import BadImage

    return {"file": error.name, "error": error.reason} if isinstance(error, BadImage) else {"error": str(error)}


def text_columns(top_k: int) -> list[str]:
    """text, score, text_2, score_2, ..."""
    return [f"{name}{f'_{k}' if k > 1 else ''}" for k in range(1, top_k + 1) for name in ("text", "score")]


def image_paths(inputs: list[Path]) -> "tuple[list[File], list[LeftOut]]":
    """The image files, those of folders and archives included, and what these hold besides."""
    from vit.inference import named_images

    left_out = []
    return [path for _, path in named_images(inputs, left_out)], left_out


def lines(inputs: list[Path]) -> Iterator["Line"]:
    """The lines of the files, all of which must be there; those of standard input as they come."""
    from vit.data.formats.delimited import lines_of
    from vit.data.formats.lines import numbered

    if not inputs or inputs == [STDIN]:
        return numbered(sys.stdin.buffer)
    return chain.from_iterable([lines_of(path) for path in inputs])


def typed(inputs: list[Path]) -> bool:
    """Whether somebody types the lines, and waits for the answer to each."""
    return (not inputs or inputs == [STDIN]) and sys.stdin.isatty()
