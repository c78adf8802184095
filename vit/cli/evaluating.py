"""`vit evaluate`: a saved model measured on labelled data."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vit.cli.data_sets import data_config, data_words
from vit.cli.data_sets import source as data_source
from vit.cli.terminal import Device, Model, Precision, Words, check_writable, list_unreadable, progress

if TYPE_CHECKING:
    from vit.evaluation import Evaluation


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
    check_writable(json_file)
    from vit.evaluation import evaluate as measure
    from vit.evaluation import matched_split
    from vit.inference import load

    predictor = load(model, device)
    data = data_config(data_words(predictor.bundle.extra, words or []))
    source = data_source(data)
    split = split or ("test" if "test" in source.splits else "val")
    samples = matched_split(source, predictor.classes, split)
    tested = predictor.bundle.extra.get("evaluation", {})
    with progress() as bar:
        task = bar.add_task("evaluate", total=len(samples))
        evaluation = measure(
            predictor.model, predictor.preprocessing, samples, predictor.classes,
            batch_size or tested.get("batch_size", 64), precision or tested.get("precision", "32-true"),
            data["on_bad_sample"], predictor.device, lambda count: bar.advance(task, count),
        )
    list_unreadable(evaluation.unreadable, len(samples))
    show_evaluation(evaluation, f"{source.name}, {split}")
    if json_file is not None:
        json_file.write_text(json.dumps(numbers(evaluation, split), indent=2) + "\n", encoding="utf-8")
    if output is not None:
        from vit.report.evaluation import write_evaluation

        write_evaluation(output, evaluation, samples, predictor.preprocessing, f"{source.name}, {split}")


def show_evaluation(evaluation: "Evaluation", title: str) -> None:
    from rich.console import Console

    from vit.report.summary import class_table, summary_table

    facts = {name: repr(value) for name, value in evaluation.metrics.items()}
    console = Console()
    console.print(summary_table({**facts, "images": f"{len(evaluation.rows):,}"}, title))
    console.print(class_table(evaluation.class_scores()))


def numbers(evaluation: "Evaluation", split: str) -> dict:
    metrics = {f"{split}/{name}": value for name, value in evaluation.metrics.items()}
    scores = [asdict(score) for score in evaluation.class_scores()]
    return {**metrics, "images": len(evaluation.rows), "classes": scores, "confusion": evaluation.confusion.tolist(),
            "unreadable": [str(error) for error in evaluation.unreadable]}
