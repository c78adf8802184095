"""`vit train | predict | evaluate | audit | models`: the command line, over the functions that Python code would call.

Heavy imports stand inside the commands, so that help and typing errors are answered at once.
"""

import json
import os
import sys
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from vit.data import BadImage, Source
    from vit.evaluation import Evaluation

app = typer.Typer(
    help="Vision Transformers to train, fine-tune, understand and use.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
EVERYTHING = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


class Format(StrEnum):
    csv = "csv"
    json = "json"
    parquet = "parquet"


class Precision(StrEnum):
    full = "32-true"
    bf16 = "bf16-mixed"
    fp16 = "16-mixed"


Model = Annotated[Path, typer.Argument(help="A saved model's folder, or a run folder.", show_default=False)]
Words = Annotated[list[str] | None, typer.Argument(
    metavar="[KEY=VALUE]...", help="Config words, such as data=folder data.root=photos.", show_default=False)]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...; the GPU where there is one by default.")]


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 failed, 2 not understood, 130 interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments or os.environ.get("VIT_DEBUG", "0") not in ("", "0")
    arguments = [word for word in arguments if word != "--debug"]
    try:
        return app(arguments, prog_name="vit", standalone_mode=False, obj={"debug": debug}) or 0
    except KeyboardInterrupt:
        return _failed("interrupted", 130)
    except typer.Abort:
        return _failed("interrupted", 130)
    except BrokenPipeError:  # the reader of a pipe went away, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if debug:
            raise
        return _failed(_one_line(error), getattr(error, "exit_code", 1))


@app.callback(invoke_without_command=True)
def about(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error (also VIT_DEBUG=1).")] = False,
) -> None:
    if version:
        from vit import __version__

        typer.echo(f"vit {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command(context_settings=EVERYTHING)
def train(context: typer.Context) -> None:
    """Train a model: vit train data=folder data.root=photos model=small."""
    from vit.launch import main as launch

    raise typer.Exit(launch([*context.args, *(["--debug"] if context.obj["debug"] else [])]) or 0)


@app.command()
def predict(
    model: Model,
    images: Annotated[list[Path], typer.Argument(help="Image files and folders.", show_default=False)],
    top_k: Annotated[int, typer.Option("--top-k", "-k", min=1, help="Answers per image.")] = 1,
    format: Annotated[Format, typer.Option("--format", "-f")] = Format.csv,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file, instead of standard output.")] = None,
    batch_size: Annotated[int, typer.Option(min=1)] = 64,
    precision: Precision = Precision.full,
    device: Device = None,
) -> None:
    """Name images: one line per image with its best classes and their probabilities."""
    if format is Format.parquet and output is None:
        raise typer.BadParameter("a Parquet file cannot be printed; add --output FILE")
    _check_writable(output)
    from vit.inference import Prediction, load, named_images
    from vit.report.tables import TABLES, open_table, prediction_cells, prediction_columns

    paths = [path for _, path in named_images(images)]
    predictor = load(model, device, precision)
    top_k = min(top_k, len(predictor.classes))
    unreadable: list[BadImage] = []
    with (
        open_table(output, ["file", *prediction_columns(top_k)], TABLES[format]) as table,
        _progress() as progress,
    ):
        task = progress.add_task("predict", total=len(paths))
        for answer in predictor.stream(paths, top_k, batch_size):
            if isinstance(answer, Prediction):
                table.write({"file": answer.source, **prediction_cells(answer.names, answer.probabilities)})
            else:
                unreadable.append(answer)
            progress.advance(task)
    _list_unreadable(unreadable, len(paths))
    if output is not None:
        _stderr().print(f"wrote {len(paths) - len(unreadable)} predictions to {output}", markup=False, soft_wrap=True)
    raise typer.Exit(1 if len(unreadable) == len(paths) else 0)


@app.command()
def evaluate(
    model: Model,
    words: Words = None,
    split: Annotated[str | None, typer.Option(help="By default test, or val where there is no test.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="By default that of the training run's test.")] = None,
    precision: Annotated[Precision | None, typer.Option(help="By default that of the training run's test.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all numbers to this file.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A folder for answers and pictures.")] = None,
    device: Device = None,
) -> None:
    """Measure a model on labelled images: by default the test split of the data set it was trained on."""
    _check_writable(json_file)
    from vit.evaluation import evaluate as measure
    from vit.evaluation import matched_split
    from vit.inference import load

    predictor = load(model, device)
    data = _data_config(_data_words(predictor.bundle.extra, words or []))
    source = _source(data)
    split = split or ("test" if "test" in source.splits else "val")
    samples = matched_split(source, predictor.classes, split)
    tested = predictor.bundle.extra.get("evaluation", {})
    with _progress() as progress:
        task = progress.add_task("evaluate", total=len(samples))
        evaluation = measure(
            predictor.model, predictor.preprocessing, samples, predictor.classes,
            batch_size or tested.get("batch_size", 64), precision or tested.get("precision", "32-true"),
            data["on_bad_sample"], predictor.device, lambda count: progress.advance(task, count),
        )
    _list_unreadable(evaluation.unreadable, len(samples))
    _show_evaluation(evaluation, f"{source.name}, {split}")
    if json_file is not None:
        json_file.write_text(json.dumps(_numbers(evaluation, split), indent=2) + "\n", encoding="utf-8")
    if output is not None:
        from vit.report.evaluation import write_evaluation

        write_evaluation(output, evaluation, samples, predictor.preprocessing, f"{source.name}, {split}")


@app.command()
def audit(
    words: Words = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the whole report to this file.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0, help="Stop decoding after this time; all by default.")] = None,
) -> None:
    """Look at every file of a data set: unreadable and odd ones, copies across splits, classes, sizes, mean and std."""
    _check_writable(json_file)
    from vit.data import Preprocessing
    from vit.data.audit import audit as inspect

    data = _data_config(words or [])
    stated = {key: value for key, value in data["preprocessing"].items() if value is not None}
    channels = 1 if stated.get("mode") == "L" else 3  # mean and std are what is asked for: any will do
    usual = {"size": data["image_size"] or 224, "mean": [0.5] * channels, "std": [0.5] * channels}
    source = _source(data)
    with _progress() as progress:
        task = progress.add_task("audit", total=None)
        report = inspect(source, Preprocessing.from_dict(usual | stated), seconds,
                         lambda stage, done, of: progress.update(task, description=stage, completed=done, total=of))
    typer.echo(report.text())
    if json_file is not None:
        json_file.write_text(json.dumps(report.to_dict(), indent=2) + "\n", encoding="utf-8")
    raise typer.Exit(1 if report.unreadable else 0)


@app.command()
def models(pattern: Annotated[str, typer.Argument(help="Names with * and ?, such as 'vit_small*'.")] = "*") -> None:
    """List the models that can be made by name."""
    from vit.models import list_models

    names = list_models(pattern)
    if not names:
        raise ValueError(f"no model is named like {pattern!r}; vit models lists all {len(list_models())}")
    typer.echo("\n".join(names))


def _data_words(extra: dict, words: list[str]) -> list[str]:
    """The words that name the data set: those given, after the recorded ones unless another set is chosen."""
    if "data" not in extra and not words:
        raise ValueError("the model does not say which data it was trained on; name some: data=folder data.root=photos")
    recorded = [] if any(word.startswith("data=") for word in words) else extra.get("data", [])
    return [*recorded, *words]


def _data_config(words: list[str]) -> dict:
    """The `data` part of the config that these words compose."""
    from vit.launch.composing import compose, plain

    return plain(compose(words))["data"]


def _source(data: dict) -> "Source":
    from vit.launch.build import build_source

    return build_source(data)


def _show_evaluation(evaluation: "Evaluation", title: str) -> None:
    from rich.console import Console

    from vit.report.summary import class_table, summary_table

    facts = {name: repr(value) for name, value in evaluation.metrics.items()}
    console = Console()
    console.print(summary_table({**facts, "images": f"{len(evaluation.rows):,}"}, title))
    console.print(class_table(evaluation.class_scores()))


def _numbers(evaluation: "Evaluation", split: str) -> dict:
    metrics = {f"{split}/{name}": value for name, value in evaluation.metrics.items()}
    scores = [asdict(score) for score in evaluation.class_scores()]
    return {**metrics, "images": len(evaluation.rows), "classes": scores, "confusion": evaluation.confusion.tolist(),
            "unreadable": [str(error) for error in evaluation.unreadable]}


def _list_unreadable(unreadable: list["BadImage"], total: int) -> None:
    if not unreadable:
        return
    console = _stderr()
    console.print(f"{len(unreadable)} of {total} files could not be read:", style="yellow", markup=False)
    for error in unreadable:
        console.print(f"  {error}", markup=False, highlight=False, soft_wrap=True)


def _check_writable(file: Path | None) -> None:
    """Say before the long work, not after it, that the result could not be written."""
    if file is None:
        return
    if file.is_dir():
        raise ValueError(f"{file} is a folder; give the name of a file")
    if not file.absolute().parent.is_dir():
        raise ValueError(f"{file.parent} is not a folder; make it first, or choose another place for {file.name}")
    if not os.access(file if file.exists() else file.absolute().parent, os.W_OK):
        raise ValueError(f"{file} cannot be written: no permission; choose another place")


def _stderr() -> "Console":
    from rich.console import Console

    return Console(stderr=True)


def _progress() -> "Progress":
    """A bar on standard error with rate and time left; nothing where that is no terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = _stderr()
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _failed(text: str, code: int) -> int:
    console = _stderr()
    console.print("error: ", style="bold red", end="")
    console.print(text, style="red", markup=False, highlight=False, soft_wrap=True)
    return code


def _one_line(error: Exception) -> str:
    if hasattr(error, "format_message"):  # the command line was not understood
        return f"{' '.join(error.format_message().split())} (vit --help lists the commands and options)"
    from vit.launch.console import one_line

    return one_line(error)
