"""`vit predict`: answers from a saved model for files of one's own."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vit.cli.terminal import Device, Model, Precision, check_writable, list_unreadable, progress, stderr

if TYPE_CHECKING:
    from vit.inference import LabelSet, Predictor, TextPredictor, Writer


class Format(StrEnum):
    csv = "csv"
    json = "json"
    parquet = "parquet"
    text = "text"


def predict(
    model: Model,
    inputs: Annotated[list[Path] | None, typer.Argument(
        help="Image files and folders, or for a model that reads text files of lines; - or nothing is standard input.",
        show_default=False)] = None,
    top_k: Annotated[int | None, typer.Option(
        "--top-k", "-k", min=1, show_default=False,
        help="Answers per input: by default the best one, or all labels above their thresholds.")] = None,
    format: Annotated[Format | None, typer.Option(
        "--format", "-f", help="By default text for translated lines, else csv.", show_default=False)] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file, instead of standard output.")] = None,
    batch_size: Annotated[int, typer.Option(min=1)] = 64,
    beam: Annotated[int | None, typer.Option(min=1, help="Texts followed at once while writing one.")] = None,
    ensemble: Annotated[list[Path] | None, typer.Option(
        help="Another model that writes, whose probabilities count as much; again for more.")] = None,
    precision: Precision = Precision.full,
    device: Device = None,
) -> None:
    """Answer for each image or line, in order: its best classes and their probabilities, or the text written for it."""
    if format is Format.parquet and output is None:
        raise typer.BadParameter("a Parquet file cannot be printed; add --output FILE")
    check_writable(output)
    from vit.inference import LabelSetPredictor, TextPredictor, Writer, load

    predictor = load(model, device, precision, ensemble or ())
    if isinstance(predictor, Writer):
        write_texts(predictor, inputs or [], top_k or 1, format, output, batch_size, beam)
    elif isinstance(predictor, TextPredictor):
        name_texts(predictor, inputs or [], top_k or 1, format or Format.csv, output, batch_size)
    elif isinstance(predictor, LabelSetPredictor) and top_k is None:
        name_images(predictor, inputs or [], None, format or Format.csv, output, batch_size)
    else:
        name_images(predictor, inputs or [], top_k or 1, format or Format.csv, output, batch_size)


def name_images(
    predictor: "Predictor", inputs: list[Path], top_k: int | None, format: Format, output: Path | None, batch_size: int
) -> None:
    """One line per image with its best classes and their probabilities; with top_k None all labels it is given."""
    from vit.data import BadImage
    from vit.inference import named_images
    from vit.report.tables import TABLES, open_table, prediction_cells, prediction_columns

    if not inputs or format is Format.text:
        text = "--format text is for texts that are written; take csv, json or parquet"
        raise typer.BadParameter(text if inputs else "this model names images; give some")
    paths = [path for _, path in named_images(inputs)]
    top_k = None if top_k is None else min(top_k, len(predictor.classes))
    unreadable: list[BadImage] = []
    columns = ["file", *(["labels", "probabilities"] if top_k is None else prediction_columns(top_k))]
    with open_table(output, columns, TABLES[format]) as table, progress() as bar:
        task = bar.add_task("predict", total=len(paths))
        for answer in predictor.stream(paths, top_k, batch_size):
            if isinstance(answer, BadImage):
                unreadable.append(answer)
            elif top_k is None:
                table.write({"file": answer.source, **label_cells(answer, predictor.classes, format)})
            else:
                table.write({"file": answer.source, **prediction_cells(answer.names, answer.probabilities)})
            bar.advance(task)
    list_unreadable(unreadable, len(paths))
    if output is not None:
        stderr().print(f"wrote {len(paths) - len(unreadable)} predictions to {output}", markup=False, soft_wrap=True)
    raise typer.Exit(1 if len(unreadable) == len(paths) else 0)


def label_cells(answer: "LabelSet", classes: list[str], format: Format) -> dict[str, str | list]:
    """The labels and their probabilities: lists, which in CSV are one cell each."""
    from vit.report.label_sets import joined

    if format is Format.csv:
        values = [f"{value:.6f}" for value in answer.probabilities]
        return {"labels": joined(answer.names, classes), "probabilities": joined(values, classes)}
    return {"labels": list(answer.names), "probabilities": list(answer.probabilities)}


def name_texts(
    predictor: "TextPredictor", inputs: list[Path], top_k: int, format: Format, output: Path | None, batch_size: int
) -> None:
    """One line per text, or per pair with a tab between its texts, with its best classes and their probabilities."""
    from vit.report.tables import TABLES, open_table, prediction_cells, prediction_columns

    if format is Format.text:
        raise typer.BadParameter("--format text is for texts that are written; take csv, json or parquet")
    top_k = min(top_k, len(predictor.classes))
    texts = (tuple(line.split("\t")) for line in lines(inputs))
    with open_table(output, ["text", *prediction_columns(top_k)], TABLES[format]) as table, progress() as bar:
        task = bar.add_task("predict", total=None)
        for answer in predictor.stream(texts, top_k, batch_size):
            table.write({"text": answer.source, **prediction_cells(answer.names, answer.probabilities)})
            bar.advance(task)


def write_texts(
    writer: "Writer",
    inputs: list[Path],
    top_k: int,
    format: Format | None,
    output: Path | None,
    batch_size: int,
    beam: int | None,
) -> None:
    """A text for each line, or for each image; with top_k above 1 the best ones with their scores."""
    from vit.report.tables import TABLES, open_table

    beam = max(beam or writer.settings.beam, top_k)
    ctc = writer.settings.ctc if beam > 1 else 0.0  # a single text is in no order
    settings = replace(writer.settings, beam=beam, n_best=top_k, ctc=ctc)
    images = writer.reads_images
    format = format or (Format.csv if images or top_k > 1 else Format.text)
    sources = image_paths(inputs) if images else lines(inputs)
    total = len(sources) if isinstance(sources, list) else None
    columns = ["file" if images else "source", *text_columns(top_k)]
    with open_table(output, columns, TABLES[format]) as table, progress() as bar:
        task = bar.add_task("predict", total=total)
        batch_size = batch_size if total is not None or not sys.stdin.isatty() else 1  # who types a line waits for it
        for answer in writer.stream(sources, settings, batch_size):
            cells = [cell for pair in zip(answer.texts, answer.scores, strict=True) for cell in pair]
            table.write(dict(zip(columns, [answer.source, *cells], strict=False)))
            bar.advance(task)


def text_columns(top_k: int) -> list[str]:
    """text, score, text_2, score_2, ..."""
    return [f"{name}{f'_{k}' if k > 1 else ''}" for k in range(1, top_k + 1) for name in ("text", "score")]


def image_paths(inputs: list[Path]) -> list[Path]:
    from vit.inference import named_images

    if not inputs:
        raise typer.BadParameter("this model reads images; give image files or folders")
    return [path for _, path in named_images(inputs)]


def lines(inputs: list[Path]) -> list[str] | Iterator[str]:
    """The lines of the files; those of standard input as they come."""
    from vit.data.lines import read_lines

    if not inputs or inputs == [Path("-")]:
        return (line.rstrip("\r\n") for line in sys.stdin)
    return [line for path in inputs for line in read_lines(path)]
