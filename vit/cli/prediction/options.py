"""The options of `vit predict`, in groups."""

import sys
from dataclasses import dataclass, fields
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vit.cli.file_checks import check_table
from vit.cli.shared_options import (
    BatchSize,
    Device,
    ForwardPrecision,
    Precision,
    check_model,
    current_value,
    former_option,
)

if TYPE_CHECKING:
    from vit.inference import MaskedTextPredictor, Predictor, Seq2SeqPredictor, TextPredictor

STDIN = "-"


class Format(StrEnum):
    csv = "csv"
    json = "json"
    jsonl = "jsonl"
    parquet = "parquet"
    xlsx = "xlsx"
    text = "text"


ENDINGS = {f".{each}": each for each in Format if each is not Format.text}  # lower-case extension -> format
FILES = {Format.parquet: "a Parquet", Format.xlsx: "an Excel"}  # formats that cannot be printed
ONE_CELL = (Format.csv, Format.xlsx)  # formats that have several values in one cell of text


@dataclass(frozen=True)
class Request:
    """What is predicted: the inputs, the number of predictions per input, and the format of the rows."""

    inputs: Annotated[list[str] | None, typer.Argument(
        help="Images: files, folders, .zip archives, or - for one image from standard input. Texts: files with one "
             "text per line; by default, or with -, standard input. Masked language models also take texts, such as "
             "\"ann has [MASK] coins\".",
        show_default=False)] = None
    top_k: Annotated[int | None, typer.Option(
        "--top-k", "-k", min=1, show_default=False,
        help="Number of predictions per input. By default the best one; of a multi-label model, all labels that reach "
             "their thresholds; of a masked language model, five per mask.")] = None
    format: Annotated[Format | None, typer.Option(
        "--format", "-f", show_default=False,
        help="Format of the predictions. By default inferred from the extension of --output (.csv, .json, .jsonl, "
             ".parquet or .xlsx); otherwise text for generated lines, and csv for other predictions.")] = None
    output: Annotated[Path | None, typer.Option(
        "--output", "-o", help="Write to this file instead of standard output.")] = None
    set_level: Annotated[float | None, typer.Option(
        "--set", metavar="LEVEL", show_default=False,
        help="Calibrated classifiers: also predict a set of labels that contains the true label with this probability, "
             "such as 0.9, on average over inputs like the validation data.")] = None
    abstain: Annotated[float | None, typer.Option(
        metavar="RATE", show_default=False,
        help="Calibrated classifiers: predict unsure instead of a label if this error rate, such as 0.05, cannot be "
             "guaranteed, or if the input is unlike the validation data.")] = None
    batch_size: BatchSize = 64
    tta: Annotated[int | None, typer.Option(
        min=1, help="Test-time augmentation. Image classifiers: 2 averages the probabilities of an image and its "
                    "mirror image. Image-to-text models: number of versions of an image; by default as saved.",
        show_default=False)] = None
    views: Annotated[int | None, former_option("--views", "--tta")] = None

    @property
    def augmentations(self) -> int | None:
        """The value of --tta, or of its former name --views."""
        return self.tta or self.views

    @property
    def stated_format(self) -> Format | None:
        """The value of --format, otherwise the format of the extension of --output; None if neither is given."""
        return self.format or ENDINGS.get(self.ending)

    @property
    def ending(self) -> str:
        """The extension of --output, in lower case."""
        return "" if self.output is None else self.output.suffix.lower()

    def check(self, is_table: bool = True) -> None:
        """Raises BadParameter for options that contradict each other; `is_table` is false for the tree of --explain."""
        if is_table:
            check_table("--output", self.output, ENDINGS)
        if self.stated_format is not ENDINGS.get(self.ending, self.stated_format):
            raise typer.BadParameter(f"--format {self.format} contradicts the ending of --output {self.output}; leave "
                                     "--format out for the format of the ending, or choose another name")
        if self.format in FILES and self.output is None:
            raise typer.BadParameter(f"{FILES[self.format]} file cannot be printed; add --output FILE")
        if self.stated_format is Format.xlsx and find_spec("openpyxl") is None:
            raise typer.BadParameter(f"{self.output}: Excel files require openpyxl: pip install 'vitwright[xlsx]', or "
                                     "choose a name that ends with .csv")
        current_value(self.tta, self.views, "--tta", "--views")
        for option, value, example in (("--set", self.set_level, 0.9), ("--abstain", self.abstain, 0.05)):
            if value is not None and not 0 < value < 1:
                raise typer.BadParameter(f"{option} {value:g} must be between 0 and 1, such as {example}")

    @property
    def is_stdin(self) -> bool:
        return self.inputs in (None, [], [STDIN])

    @property
    def calibrated_outputs(self) -> dict[str, float | None]:
        """What a calibrated classifier predicts besides probabilities, as arguments of `stream`."""
        return {"set": self.set_level, "abstain": self.abstain}

    @property
    def line_batch_size(self) -> int:
        """1 if a person types the lines and expects the prediction after each."""
        return 1 if self.is_stdin and sys.stdin.isatty() else self.batch_size


SAMPLING_TOP_K = "sampling_top_k"  # the option of `Generation.top_k`, since --top-k is the number of predictions


class LengthPenaltyForm(StrEnum):
    power = "power"
    gnmt = "gnmt"


References = Annotated[Path | None, typer.Option(
    help="Instead of generating texts, score those of this file, one line per input: the log-probability of each text "
         "and of each of its tokens.", show_default=False, rich_help_panel="Text generation")]


def generation_option(help: str, *names: str, **limits: float) -> typer.models.OptionInfo:
    """An option in the group "Text generation" of --help; without it the saved setting holds."""
    return typer.Option(*names, help=help, show_default=False, rich_help_panel="Text generation", **limits)


@dataclass(frozen=True)
class GenerationOptions:
    """Options of models that generate text: fields of `vit.generation.Generation`, by default as saved."""

    beam: Annotated[int | None, generation_option("Beam width; 1 for greedy search.", min=1)] = None
    max_len: Annotated[int | None, generation_option(
        "Maximum number of generated tokens, the end token included.", min=1)] = None
    min_len: Annotated[int | None, generation_option(
        "Minimum number of generated tokens before the end token.", min=0)] = None
    length_penalty: Annotated[float | None, generation_option(
        "Divide scores by the length to this power; above 1 it favours longer texts.")] = None
    length_penalty_form: Annotated[LengthPenaltyForm | None, generation_option(
        "The power is that of the length, or, as in GNMT, of (5 + length) / 6.")] = None
    no_repeat_ngram: Annotated[int | None, generation_option(
        "Size of n-grams of tokens that may not occur twice in a text; 0 for no limit.", min=0)] = None
    ctc: Annotated[float | None, generation_option(
        "Weight of the CTC score, for image-to-text models that were trained with a CTC loss.", min=0, max=1)] = None
    prefix: Annotated[str | None, generation_option("Start every text with this one.")] = None
    sample: Annotated[bool, generation_option(
        "Sample tokens instead of searching; -k K prints K samples.", "--sample")] = False
    temperature: Annotated[float | None, generation_option(
        "With --sample: divide the logits by this number; below 1 it favours probable tokens.")] = None
    sampling_top_k: Annotated[int | None, generation_option(
        "With --sample: sample from this number of most probable tokens; 0 for all.", min=0)] = None
    top_p: Annotated[float | None, generation_option(
        "With --sample: sample from the most probable tokens with this total probability.")] = None
    seed: Annotated[int | None, generation_option("With --sample: seed; the same seed gives the same texts.")] = None

    def settings(self) -> dict[str, object]:
        """The options that were given, by their names in `Generation`."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        given = {name: value for name, value in values.items() if value is not None and value is not False}
        return {"top_k" if name == SAMPLING_TOP_K else name: value for name, value in given.items()}


@dataclass(frozen=True)
class ExplanationOptions:
    """Options of --explain, which shows the search instead of the table."""

    explain: Annotated[bool, typer.Option(
        "--explain", help="Text generation: show the search as a tree, with the log-probability of each hypothesis. "
                          "An input that is not a file is a text. --output FILE.svg, .png or .pdf draws the tree.")
    ] = False
    dark: Annotated[bool, typer.Option("--dark", help="With --explain: draw the figure for dark slides.")] = False

    def check(self) -> None:
        """Raises BadParameter for --dark without --explain."""
        if self.dark and not self.explain:
            raise typer.BadParameter("--dark belongs to --explain; add it, or leave --dark out")


@dataclass(frozen=True)
class LoadingOptions:
    """How the model is loaded and run."""

    ensemble: Annotated[list[Path] | None, typer.Option(
        help="Text generation: average the probabilities with those of this model; may be repeated.",
        show_default=False, callback=check_model)] = None
    precision: ForwardPrecision = Precision.full
    fast: Annotated[bool, typer.Option(
        "--fast", help="Image classifiers: use bf16, channels last or int8 if it is faster on this machine and gives "
                       "the same predictions for 64 of the images. Text generation: use a decoding step in C++ if it "
                       "is faster and gives the same texts for the first batch.")] = False
    device: Device = None
    max_pixels: Annotated[int | None, typer.Option(
        min=1, show_default=False,
        help="Most pixels of an image; by default the limit of the model.")] = None

    def load(self, model: Path) -> "Predictor | TextPredictor | MaskedTextPredictor | Seq2SeqPredictor":
        """The predictor of a saved model.

        Raises:
            BadParameter: --max-pixels, but the model reads texts.
            ValueError: as `vit.load`.
        """
        from vit.inference import load

        predictor = load(model, self.device, self.precision, self.ensemble or (), fast=self.fast)
        if self.max_pixels is not None:
            preprocessing = getattr(predictor, "preprocessing", None)
            if preprocessing is None:
                raise typer.BadParameter("--max-pixels is for models that read images, but this model reads texts")
            predictor.preprocessing = preprocessing.replace(max_pixels=self.max_pixels)
        return predictor
