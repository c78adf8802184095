"""`vit predict`: predictions of a saved model for files or lines of text."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vit.cli.file_checks import check_not_an_input, check_order, check_writable, files_of_model
from vit.cli.option_groups import with_option_groups
from vit.cli.prediction.options import (
    SAMPLING_TOP_K,
    ExplanationOptions,
    Format,
    GenerationOptions,
    LoadingOptions,
    References,
    Request,
)
from vit.cli.prediction.prediction_rows import Rows, generated_rows, image_rows, masked_rows, scored_rows, text_rows
from vit.cli.prediction.search_trees import show_searches
from vit.cli.shared_options import Model
from vit.cli.terminal import check_classes, counted, print_skipped, print_without_effect, print_written, stderr
from vit.messages import number_of

if TYPE_CHECKING:
    from vit.inference import BadInput, MaskedTextPredictor, Predictor, Seq2SeqPredictor, TextPredictor


@with_option_groups
def predict(
    model: Model,
    request: Request,
    generation: GenerationOptions,
    explanation: ExplanationOptions,
    loading: LoadingOptions,
    references: References = None,
    strict: Annotated[bool, typer.Option(
        "--strict", help="Exit with 1 instead of 3 if an input cannot be read.")] = False,
) -> None:
    """Predict classes with probabilities, or generate texts, for images or texts: one row per input, in order.

    The column calibrated states whether the probabilities are calibrated. The column unknown is higher for inputs less
    like the validation samples, and p_value is the share of validation samples with at least this score.

    The row of an input that cannot be read has the reason in the column error.

    The exit code is then 3, or 1 if no input could be read.
    """
    given = [*(request.inputs or []), *([references] if references else [])]
    check_not_an_input(request.output, [*given, *files_of_model(model)])
    request.check(is_table=not explanation.explain)
    explanation.check()
    if references and (explanation.explain or loading.fast):
        raise typer.BadParameter(f"--{'explain' if explanation.explain else 'fast'} is for the search of a text, but "
                                 "--references scores given texts; leave one of them out")
    check_writable(request.output)
    check_order(model, request.inputs or [])
    predictor = loading.load(model)
    check_classes(predictor)
    check_calibrated_outputs(predictor, request)
    if explanation.explain:
        if loading.fast:
            print_without_effect("--fast has no effect: --explain records the search step by step")
        show_searches(predictor, request, generation.settings(), explanation.dark)
        return
    rows = predicted_rows(predictor, request, generation.settings(), model, references)
    counts = write_rows(rows, request.output)
    if loading.fast:
        print_fast_mode(predictor)
    raise typer.Exit(exit_code(*counts, strict))


def predicted_rows(
    predictor: "Predictor | TextPredictor | MaskedTextPredictor | Seq2SeqPredictor", request: Request, settings: dict,
    model: Path, references: Path | None = None,
) -> Rows:
    """The rows of this kind of model.

    Args:
        settings: settings of text generation that differ from the saved ones.
        model: its folder, for errors.
        references: a file of texts that are scored instead of generating texts.

    Raises:
        BadParameter: settings of text generation for another kind of model, test-time augmentation of texts, or as the
            function of the kind.
    """
    from vit.inference import MaskedTextPredictor, Predictor, Seq2SeqPredictor, TextPredictor

    if isinstance(predictor, Seq2SeqPredictor):
        settings = {**settings, "tta": request.augmentations} if request.augmentations else settings
        return scored_rows(predictor, request, settings, references) if references else \
            generated_rows(predictor, request, settings)
    if references:
        raise typer.BadParameter(f"--references is for models that generate text, but {model} is not such a model")
    if settings:
        option = next(iter(settings)).replace("top_k", SAMPLING_TOP_K).replace("_", "-")
        raise typer.BadParameter(f"--{option} is for models that generate text, but {model} is not such a model")
    if request.augmentations and not isinstance(predictor, Predictor):
        raise typer.BadParameter(f"--tta is for models that read images, but {model} reads texts; leave it out")
    if isinstance(predictor, MaskedTextPredictor):
        return masked_rows(predictor, request)
    return (text_rows if isinstance(predictor, TextPredictor) else image_rows)(predictor, request)


def print_fast_mode(predictor: "Predictor | Seq2SeqPredictor") -> None:
    """Print which mode --fast chose and what was measured."""
    from vit.inference.fast import IMAGES

    few = f"fast: 32-true, since other modes are compared on {IMAGES} images, and fewer were read"
    stderr().print(str(predictor.fast_mode or few), markup=False, highlight=False, soft_wrap=True)


def exit_code(predicted: int, unreadable: int, strict: bool) -> int:
    """0 if all inputs were read; 3 if some could not be read; 1 if none could, or with `strict` not all."""
    if not unreadable:
        return 0
    return 1 if strict or not predicted else 3


def check_calibrated_outputs(predictor: "Predictor | TextPredictor | Seq2SeqPredictor", request: Request) -> None:
    """Check that the model has what --set and --abstain request, and print how it is calibrated.

    Raises:
        BadParameter: the model is not a classifier.
        ValueError: as `Calibrator`.
    """
    from vit.inference import MaskedTextPredictor, Seq2SeqPredictor
    from vit.inference.calibrated import Calibrator

    requested = [f"--{name}" for name, value in request.calibrated_outputs.items() if value is not None]
    if isinstance(predictor, Seq2SeqPredictor | MaskedTextPredictor):
        if requested:
            does = ("generates text; --top-k 5 -f csv gives the best texts with their scores" if
                    isinstance(predictor, Seq2SeqPredictor) else "predicts masked words")
            raise typer.BadParameter(f"{requested[0]} is for classifiers, but this model {does}")
        return
    Calibrator(predictor.bundle, request.set_level, request.abstain)
    if record := predictor.bundle.calibration:
        split = predictor.bundle.calibrated_on.get("split", "val")
        kind = "validation" if split == "val" else split
        stderr().print(f"probabilities are calibrated on {record.samples:,} {kind} samples: "
                       f"{record.temperature_text}", style="dim", highlight=False, soft_wrap=True)


def write_rows(rows: Rows, output: Path | None) -> tuple[int, int]:
    """Write each row as soon as it is predicted; return the numbers of readable and of unreadable inputs.

    The row of an unreadable input has the reason in the column error. In --format text it is an empty line, so that
    outputs stay aligned with input lines.
    """
    from vit.inference import BadInput
    from vit.report.tables import TABLES, open_table

    unreadable, inputs, predicted = [], 0, 0
    with named_if_incomplete(output) as count_row, \
            open_table(output, [*rows.columns, "error"], TABLES[rows.format]) as table, \
            counted("predict", rows.total) as progress:
        for prediction in rows.predictions:
            if isinstance(prediction, BadInput):
                unreadable.append(prediction)
                table.write({"text": ""} if rows.format is Format.text else error_row(prediction))
            else:
                predicted += 1
                inputs += rows.is_first(prediction)
                table.write(rows.row(prediction))
            count_row()
            progress(1)
    print_skipped(unreadable, rows.left_out, inputs + len(unreadable), rows.unit)
    if output is not None:
        errors = f" and {number_of(len(unreadable), 'error')}" if unreadable else ""
        print_written(f"{number_of(predicted, 'prediction')}{errors} to {output}")
    return inputs, len(unreadable)


@contextmanager
def named_if_incomplete(output: Path | None) -> Iterator[Callable[[], None]]:
    """Yields a function to call after each row; an error or Ctrl-C after the first one prints which file has the rows.
    A file without rows is removed.
    """
    rows = 0

    def count_row() -> None:
        nonlocal rows
        rows += 1

    try:
        yield count_row
    except BaseException as error:
        if output is not None:
            print_incomplete(output, rows, error)
        raise


def print_incomplete(output: Path, rows: int, error: BaseException) -> None:
    """Print which file has the first `rows` rows of a table that was not completed."""
    from vit.files.atomic import CheckpointError
    from vit.files.outputs import streamed_file

    if isinstance(error, CheckpointError | FileExistsError | PermissionError):  # nothing was opened
        return
    streamed = streamed_file(output)
    if streamed != output and not rows:
        streamed.unlink(missing_ok=True)
    if not rows:
        return
    most = "at most " if isinstance(error, OSError) else ""  # a full disk has no space for the last ones
    there = f"; {output} is the earlier file, unchanged" if streamed != output and output.exists() else ""
    stderr().print(f"{streamed} is incomplete: it has {most}the first {number_of(rows, 'row')}{there}",
                   style="yellow", markup=False, highlight=False, soft_wrap=True)


def error_row(error: "BadInput") -> dict[str, str]:
    from vit.data import BadImage

    return {"file": error.name, "error": error.reason} if isinstance(error, BadImage) else {"error": str(error)}
