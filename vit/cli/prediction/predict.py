"""`vit predict`: predictions of a saved model for files or lines of text."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vit.cli.prediction.prediction_rows import Format, Request, Rows, generated_rows, image_rows, masked_rows, text_rows
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
    from vit.inference import BadInput, Predictor, Seq2SeqPredictor, TextPredictor


def predict(
    model: Model,
    inputs: Annotated[list[str] | None, typer.Argument(
        help="Images: files, folders and .zip archives. Texts: files with one text per line; by default, or with -, "
             "standard input. Masked language models also take texts, such as \"ann has [MASK] coins\".",
        show_default=False)] = None,
    top_k: Annotated[int | None, typer.Option(
        "--top-k", "-k", min=1, show_default=False,
        help="Predictions per input: by default the best one, or for a multi-label model all labels that reach their "
             "thresholds; per mask the best five words.")] = None,
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
        min=1, help="Test-time augmentation. Image classifiers: 2 averages over the image and its mirror image. "
                    "Image-to-text models: the number of versions of an image.", show_default=False)] = None,
    views: Annotated[int | None, former_option("--views", "--tta")] = None,
    ensemble: Annotated[list[Path] | None, typer.Option(
        help="Another text generation model whose probabilities are averaged; repeatable.", show_default=False)] = None,
    precision: Precision = Precision.full,
    fast: Annotated[bool, typer.Option(
        "--fast", help="Image classifiers: bf16, channels last or int8 where faster on this machine, with the same "
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
    from vit.inference import MaskedTextPredictor, Predictor, Seq2SeqPredictor, TextPredictor, load

    predictor, tta = load(model, device, precision, ensemble or (), fast=fast), tta or views
    if max_pixels is not None:
        set_max_pixels(predictor, max_pixels)
    request = Request([Path(each) for each in inputs or []], top_k, batch_size, format, set_level, abstain, tta or 1)
    check_statements(predictor, request)
    options = {"beam": beam, "tta": tta, "length_penalty": length_penalty, "prefix": prefix, "sample": sample or None,
               "temperature": temperature, "seed": seed}
    options = {key: value for key, value in options.items() if value is not None}
    if isinstance(predictor, Predictor):
        options.pop("tta", None)  # of images, and in the request
    if isinstance(predictor, Seq2SeqPredictor):
        rows = generated_rows(predictor, request, options)
    elif options:
        raise typer.BadParameter(f"--{next(iter(options)).replace('_', '-')} is for models that generate text, but "
                                 f"{model} is not such a model")
    elif isinstance(predictor, MaskedTextPredictor):
        rows = masked_rows(predictor, request, inputs or [])
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
        BadParameter: the model is no classifier.
        ValueError: as `Calibrator`.
    """
    from vit.inference import MaskedTextPredictor, Seq2SeqPredictor
    from vit.inference.calibrated import Calibrator

    asked = [f"--{name}" for name, value in request.statements.items() if value is not None]
    if isinstance(predictor, Seq2SeqPredictor | MaskedTextPredictor):
        if asked:
            does = "generates text" if isinstance(predictor, Seq2SeqPredictor) else "predicts masked words"
            raise typer.BadParameter(f"{asked[0]} is for classifiers, but this model {does}")
        return
    Calibrator(predictor.bundle, request.set_level, request.abstain)
    if record := predictor.bundle.calibration:
        values = getattr(record, "temperatures", None)  # one per label
        used = f"temperatures {min(values):.3g} to {max(values):.3g}" if values else f"temperature {record.temperature:.3g}"
        stderr().print(f"probabilities are calibrated on {record.samples:,} validation samples ({used})", style="dim",
                       highlight=False, soft_wrap=True)


def set_max_pixels(predictor: "Predictor | TextPredictor | Seq2SeqPredictor", max_pixels: int) -> None:
    """Change the limit on the size of images.

    Raises:
        BadParameter: the model reads texts.
    """
    preprocessing = getattr(predictor, "preprocessing", None)
    if preprocessing is None:
        raise typer.BadParameter("--max-pixels is for models that read images, but this model reads texts")
    predictor.preprocessing = preprocessing.replace(max_pixels=max_pixels)


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
