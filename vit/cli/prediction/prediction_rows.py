"""The rows of `vit predict`: what is predicted for images, texts and text generation, as one table each."""

import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

from vit.cli.file_checks import check_not_an_input
from vit.cli.prediction.options import ONE_CELL, SAMPLING_TOP_K, STDIN, Format, Request
from vit.cli.terminal import print_table_as_lines, print_without_effect
from vit.files.strict_json import json_text
from vit.messages import agree, number_of

if TYPE_CHECKING:
    from vit.data.formats.lines import Line
    from vit.data.image_sources.files import LeftOut
    from vit.generation import Generation
    from vit.inference import (
        BadInput,
        GeneratedText,
        MaskedTextPredictor,
        MaskedWord,
        Predictor,
        ScoredText,
        Seq2SeqPredictor,
        TextPredictor,
    )
    from vit.inference import MultiLabelPrediction as Labels
    from vit.inference import Prediction as Classes
    from vit.inference.image_inputs import File

Prediction = TypeVar("Prediction")
OF_GIVEN_TEXTS = ("length_penalty", "length_penalty_form", "tta")  # settings of generation for --references


@dataclass(frozen=True)
class Rows:
    """A table of predictions: the predictions in order, the columns, and the row of one prediction.

    Args:
        is_first: whether a prediction is the first one of its input; an input may have several.
    """

    predictions: Iterable
    columns: list[str]
    row: Callable[[Prediction], dict]
    format: Format
    unit: str = "line"
    total: int | None = None
    left_out: "list[LeftOut] | tuple" = ()
    is_first: Callable[[Prediction], bool] = lambda prediction: True


def image_rows(predictor: "Predictor", request: Request) -> Rows:
    """Per image the best classes with their probabilities, or the labels of a multi-label model.

    Raises:
        BadParameter: there are no inputs, or the format is text.
        FileNotFoundError: a folder has no image.
        ValueError: another number of augmentations than 1 or 2.
    """
    from vit.inference import MultiLabelPredictor
    from vit.inference.tta import check_tta
    from vit.report.tables import prediction_columns

    if not request.inputs:
        raise typer.BadParameter("this model classifies images; pass image files or folders")
    format, top_k = table_format(request), request.top_k or 1
    paths, left_out = image_paths(request)
    if isinstance(predictor, MultiLabelPredictor) and request.top_k is None:
        def row(prediction: "Labels") -> dict:
            cells = label_cells(prediction, predictor.classes, format)
            return {"file": prediction.source, **cells, **dict.fromkeys(stated, "yes")}

        top_k, stated = None, statement_columns(predictor, request)
        columns = ["labels", "probabilities", *stated]
    else:
        def row(prediction: "Classes") -> dict:
            return {"file": prediction.source, **class_cells(prediction, predictor.classes, stated, format)}

        stated = statement_columns(predictor, request)
        columns = [*prediction_columns(min(top_k, len(predictor.classes))), *stated]
    tta = request.augmentations or 1
    check_tta(tta)
    predictions = predictor.stream(paths, top_k, request.batch_size, **request.calibrated_outputs, tta=tta)
    return Rows(predictions, ["file", *columns], row, format, "file", len(paths), left_out)


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
    predictions = predictor.stream(read_lines(request), top_k, request.line_batch_size, **request.calibrated_outputs)
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
    settings = generation_settings(predictor, request, options)
    columns = ["file" if images else "source", *text_columns(top_k)]

    def row(prediction: "GeneratedText") -> dict:
        cells = [cell for pair in zip(prediction.texts, prediction.scores, strict=True) for cell in pair]
        return dict(zip(columns, [prediction.source, *cells], strict=False))

    format = request.stated_format or (Format.csv if images or top_k > 1 else Format.text)
    if format is Format.text and top_k > 1:
        print_without_effect(f"--format text has only the first of {top_k} texts; csv, json and parquet have all")
    if images:
        paths, left_out = image_paths(request)
        predictions = predictor.stream(paths, settings, request.batch_size)
        return Rows(predictions, columns, row, format, "file", len(paths), left_out)
    predictions = predictor.stream(read_lines(request), settings, request.line_batch_size)
    return Rows(predictions, columns, row, format)


def scored_rows(predictor: "Seq2SeqPredictor", request: Request, options: dict, references: Path) -> Rows:
    """Per line or image the text of the same line of `references`, with its log-probabilities.

    Args:
        options: settings that differ from the saved ones.

    Raises:
        BadParameter: an option that is for generated texts, or as `generation_settings` and `table_format`.
        DataError, FileNotFoundError: a file cannot be read, or a folder has no image.
        ValueError: the numbers of inputs and of lines differ.
    """
    from vit.data.formats.lines import iterate_lines

    others = [name.replace("top_k", SAMPLING_TOP_K) for name in options if name not in OF_GIVEN_TEXTS]
    others += ["top_k"] if request.top_k else ["format text"] if request.format is Format.text else []
    if others:
        raise typer.BadParameter(f"--{others[0].replace('_', '-')} is for generated texts, but --references scores "
                                 "given ones; leave it out")
    settings, format = generation_settings(predictor, request, options), table_format(request)
    texts = list(iterate_lines(references))
    sources, left_out = image_paths(request) if predictor.is_image_to_text else (list(read_lines(request)), ())
    if len(sources) != len(texts):
        raise ValueError(f"--references {references} has {number_of(len(texts), 'line')}, but there "
                         f"{agree(len(sources), 'is', 'are')} {number_of(len(sources), 'input')}; write one line per "
                         "input")
    unit = "file" if predictor.is_image_to_text else "source"

    def row(scored: "ScoredText") -> dict:
        tokens, values = list(scored.tokens), list(scored.log_probs)
        if format in ONE_CELL:
            tokens = json_text(tokens, indent=None, ascii_only=False)
            values = json_text([round(value, 6) for value in values], indent=None)
        return {unit: scored.source, "reference": scored.text, "score": scored.score, "log_prob": scored.log_prob,
                "tokens": tokens, "log_probs": values}

    columns = [unit, "reference", "score", "log_prob", "tokens", "log_probs"]
    predictions = predictor.stream_scores(sources, texts, settings, request.batch_size)
    return Rows(predictions, columns, row, format, "file" if unit == "file" else "line", len(sources), left_out)


def generation_settings(predictor: "Seq2SeqPredictor", request: Request, options: dict) -> "Generation":
    """The settings of generation with the options of the command.

    Args:
        options: settings that differ from the saved ones.

    Raises:
        BadParameter: an image-to-text model without inputs, or an option that the model or another option excludes.
    """
    top_k = request.top_k or 1
    if options.get("tta") and not predictor.is_image_to_text:
        raise typer.BadParameter("--tta is for models that read images, but this model reads texts; leave it out")
    if predictor.is_image_to_text and not request.inputs:
        raise typer.BadParameter("this model reads images; pass image files or folders")
    if not options.get("sample"):
        if "seed" in options:
            print_without_effect("--seed has no effect: only --sample draws tokens")
        options = options | {"beam": max(options.get("beam") or predictor.settings.beam, top_k)}
    try:
        settings = predictor.changed_settings(n_best=top_k, **options)
        predictor.check_settings(settings)
    except ValueError as error:
        raise typer.BadParameter(str(error).replace("top_k", SAMPLING_TOP_K)) from None
    return settings


def masked_rows(predictor: "MaskedTextPredictor", request: Request) -> Rows:
    """Per mask of a text the most probable words; by default five. Inputs are files with one text per line, and texts
    that contain a mask.

    Raises:
        BadParameter: the format is text.
        FileNotFoundError: an input file does not exist.
    """
    from vit.data.text.tokenizers import SPECIALS
    from vit.inference import BadInput
    from vit.report.tables import prediction_cells, prediction_columns

    format, words_in_all = table_format(request), predictor.tokenizer.vocab_size - len(SPECIALS)
    top_k = min(request.top_k or 5, words_in_all)
    texts = [[each] if is_masked_text(each) else read_lines(replace(request, inputs=[each]))
             for each in request.inputs or []]
    predictions = predictor.stream(chain.from_iterable(texts or [read_lines(request)]), top_k, request.line_batch_size)

    def row(prediction: "MaskedWord") -> dict:
        cells = prediction_cells(prediction.names, prediction.probabilities)
        named = {key.replace("label", "word"): value for key, value in cells.items()}
        return {"text": prediction.source, "mask": prediction.mask, **named, "next": prediction.next}

    def words() -> "Iterator[MaskedWord | BadInput]":
        for text in predictions:
            yield from (text,) if isinstance(text, BadInput) else text.masks

    columns = [name.replace("label", "word") for name in prediction_columns(top_k)]
    return Rows(words(), ["text", "mask", *columns, "next"], row, format, is_first=lambda word: word.mask == 1)


def is_masked_text(argument: str) -> bool:
    """Whether an argument is a text with a mask, and not the name of a file."""
    from vit.inference.masked_text import PATTERN

    return bool(PATTERN.search(argument)) and not os.path.exists(argument)  # Path.exists raises for long names


def statement_columns(predictor: "Predictor | TextPredictor", request: Request) -> list[str]:
    """The columns of what a calibrated classifier states besides probabilities."""
    record = predictor.bundle.calibration
    columns = [] if record is None else ["calibrated"]
    columns += ["unknown", "p_value"] if getattr(record, "unknown", None) is not None else []
    columns += ["set"] if request.set_level is not None else []
    return columns + (["unsure"] if request.abstain is not None else [])


def class_cells(prediction: "Classes", classes: list[str], columns: list[str], format: Format) -> dict:
    """The best classes and their probabilities, with the label "unsure" where the model abstains, and the cells of
    `columns`, which are `statement_columns`.
    """
    from vit.report.tables import join_cell, prediction_cells

    labels = prediction.set
    if labels is not None:
        labels = join_cell(labels, classes) if format in ONE_CELL else list(labels)
    stated = {"calibrated": "yes", "unknown": prediction.unknown, "p_value": prediction.p_value, "set": labels,
              "unsure": prediction.unsure}
    cells = prediction_cells(prediction.names, prediction.probabilities)
    if prediction.unsure:
        cells["label"] = prediction.label
    return cells | {name: stated[name] for name in columns}


def label_cells(prediction: "Labels", classes: list[str], format: Format) -> dict[str, str | list]:
    """The labels and their probabilities as lists, which CSV joins into one cell each."""
    from vit.report.tables import join_cell

    if format in ONE_CELL:
        values = [f"{value:.6f}" for value in prediction.probabilities]
        return {"labels": join_cell(prediction.names, classes), "probabilities": join_cell(values, classes)}
    return {"labels": list(prediction.names), "probabilities": list(prediction.probabilities)}


def table_format(request: Request) -> Format:
    """The format of classes and probabilities.

    Raises:
        BadParameter: the format is text.
    """
    if request.format is Format.text:
        raise typer.BadParameter("--format text is for generated text, but this model is a classifier; use csv, json, "
                                 "jsonl, parquet or xlsx")
    return request.stated_format or Format.csv


def text_columns(top_k: int) -> list[str]:
    """text, score, text_2, score_2, ..."""
    return [f"{name}{f'_{k}' if k > 1 else ''}" for k in range(1, top_k + 1) for name in ("text", "score")]


def image_paths(request: Request) -> "tuple[list[File | bytes], list[LeftOut]]":
    """The image files, folders and archives listed, the image of standard input for -, and the other files in these.

    Raises:
        BadParameter: an input is a URL.
        FileNotFoundError: a folder has no image.
        ValueError: the output is one of the images.
    """
    from vit.inference import named_images

    if url := next((each for each in request.inputs or [] if "://" in each), None):
        raise typer.BadParameter(f"{url} is a URL, but images are read from files or from standard input: "
                                 f"curl -s {shlex.quote(url)} | vit predict MODEL -")
    inputs = [sys.stdin.buffer.read() if each == STDIN else Path(each) for each in request.inputs or []]
    left_out = []
    paths = [path for _, path in named_images(inputs, left_out)]
    check_not_an_input(request.output, (path for path in paths if isinstance(path, Path)))  # those in folders, too
    return paths, left_out


def read_lines(request: Request) -> Iterator["Line"]:
    """The lines of the input files, and of standard input as they arrive: for -, or without any input.

    Raises:
        FileNotFoundError: a file does not exist; before the first line is read.
        ValueError: an input is a folder.
    """
    from vit.data.formats.lines import iterate_lines, number_lines

    if request.is_stdin:
        return number_lines(sys.stdin.buffer)
    for text in request.inputs:
        if os.path.isdir(text):
            raise ValueError(f"{text} is a folder, but this model reads texts; pass files with one text per line")
        if text != STDIN and not os.path.exists(text) and not Path(text).suffix:
            raise FileNotFoundError(f"the file {text} does not exist; a text itself comes from standard input: echo "
                                    f"{shlex.quote(text)} | vit predict MODEL")
        print_table_as_lines(text)
    return chain.from_iterable([number_lines(sys.stdin.buffer) if each == STDIN else iterate_lines(Path(each))
                                for each in request.inputs])
