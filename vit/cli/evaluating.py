"""`vit evaluate`: a saved model measured on labelled data."""

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vit.cli.data_sets import composed, measured_source
from vit.cli.terminal import ConfigDir, Device, Model, Precision, Words, check_writable, list_unreadable, progress

if TYPE_CHECKING:
    from vit.bundle import Bundle
    from vit.data import PairSource, Source
    from vit.evaluation import Evaluation
    from vit.inference import LabelSetPredictor, Predictor, TextPredictor, Writer


SETS = "images with several labels each"


def evaluate(
    model: Model,
    words: Words = None,
    split: Annotated[str | None, typer.Option(help="By default test, or val where there is no test.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="By default that of the training run's test.")] = None,
    precision: Annotated[Precision | None, typer.Option(help="By default that of the training run's test.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all numbers to this file.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A folder for answers and pictures.")] = None,
    device: Device = None,
    config_dir: ConfigDir = None,
) -> None:
    """Measure a model on labelled data: by default the test split of the data set it was trained on."""
    check_writable(json_file)
    from vit.cli.evaluating_masked import evaluate_masked, is_masked
    from vit.inference import Writer, load
    from vit.run.config.composing import with_config_dir

    words = with_config_dir(words or [], config_dir)
    if is_masked(model):
        found = evaluate_masked(model, words, split, batch_size, precision, device)
        return write_json(found, json_file)
    predictor = load(model, device)
    config = composed(words, predictor.bundle, "task.decode")
    if isinstance(predictor, Writer):
        decode_by(predictor, config, words)
    data = config["data"]
    source, split = measured(data, predictor.bundle, split)
    tested = predictor.bundle.extra.get("evaluation", {})
    predictor.precision = str(precision or tested.get("precision", "32-true"))
    rows = batch_size or tested.get("batch_size") or 64
    reads = kind_of_model(predictor)
    if (holds := kind_of_data(source)) != reads:
        raise ValueError(f"{source.name} holds {holds}, but the model is for {reads}; name its kind of data, data=...")
    measure = {"labelled images": images, SETS: label_sets, "labelled texts": texts}.get(reads, pairs)
    write_json(measure(predictor, source, split, rows, data, output), json_file)


def measured(data: dict, bundle: "Bundle", split: str | None) -> "tuple[Source | PairSource, str]":
    """The data set, and the split that is measured: by default test, or val where there is no test."""
    source = measured_source(data, bundle, split or "test")
    if split is None and "test" not in source.splits:
        return measured_source(data, bundle, "val"), "val"
    return source, split or "test"


def write_json(found: dict, file: Path | None) -> None:
    from vit.files.strict_json import json_text

    if file is not None:
        file.write_text(json_text(found) + "\n", encoding="utf-8")


def decode_by(writer: "Writer", config: dict, words: list[str]) -> None:
    """Let it write by what `words` say of task.decode, and for the rest as it was saved."""
    from vit.run.config.checked import checked
    from vit.run.config.composing import stated

    decode = config["task"].get("decode", {})  # none where the words name data of another kind, which is refused next
    said = {key: decode[key] for key in stated(words, "task.decode") if decode[key] is not None}
    writer.settings = checked("task.decode", partial(replace, writer.settings), said, spread=True)


def kind_of_model(predictor: "Predictor | TextPredictor | Writer") -> str:
    """What a model must be given to be measured."""
    from vit.inference import LabelSetPredictor, TextPredictor, Writer

    if isinstance(predictor, Writer):
        return "images and their texts" if predictor.reads_images else "pairs of texts"
    if isinstance(predictor, LabelSetPredictor):
        return SETS
    return "labelled texts" if isinstance(predictor, TextPredictor) else "labelled images"


def kind_of_data(source: "Source | PairSource") -> str:
    from vit.data import PairSource, Source, TextSplit

    if isinstance(source, PairSource):
        return "images and their texts" if source.images else "pairs of texts"
    if not isinstance(source, Source):
        return "running text"
    if source.multi_label:
        return SETS
    return "labelled texts" if isinstance(source.splits["train"], TextSplit) else "labelled images"


def images(
    predictor: "Predictor", source: "Source", split: str, batch_size: int, data: dict, output: Path | None
) -> dict:
    from vit.evaluation import evaluate as measure
    from vit.evaluation import matched_split
    from vit.report.evaluation import write_evaluation

    samples = matched_split(source, predictor.classes, split)
    with progress() as bar:
        task = bar.add_task("evaluate", total=len(samples))
        evaluation = measure(
            predictor.model, predictor.preprocessing, samples, predictor.classes, batch_size, predictor.precision,
            data["on_bad_sample"], predictor.device, lambda count: bar.advance(task, count),
        )
    list_unreadable(evaluation.unreadable, len(samples))
    show_evaluation(evaluation, f"{source.name}, {split}", "images")
    if output is not None:
        write_evaluation(output, evaluation, samples, predictor.preprocessing, f"{source.name}, {split}")
    return {**numbers(evaluation, split, "images"), "unreadable": [str(error) for error in evaluation.unreadable]}


def label_sets(
    predictor: "LabelSetPredictor", source: "Source", split: str, batch_size: int, data: dict, output: Path | None
) -> dict:
    from rich.console import Console

    from vit.evaluation import evaluate_label_sets, matched_split
    from vit.report.label_sets import label_table, write_label_sets
    from vit.report.summary import summary_table

    samples = matched_split(source, predictor.classes, split)
    with progress() as bar:
        task = bar.add_task("evaluate", total=len(samples))
        found = evaluate_label_sets(
            predictor.model, predictor.preprocessing, samples, predictor.classes, predictor.bundle.thresholds,
            batch_size, predictor.precision, data["on_bad_sample"], predictor.device,
            lambda count: bar.advance(task, count),
        )
    list_unreadable(found.unreadable, len(samples))
    facts = {name: repr(value) for name, value in found.metrics.items()} | {"images": f"{len(found.rows):,}"}
    Console().print(summary_table(facts, f"{source.name}, {split}"))
    Console().print(label_table(found.class_scores()))
    if output is not None:
        write_label_sets(output, found, samples, predictor.preprocessing, f"{source.name}, {split}")
    metrics = {f"{split}/{name}": value for name, value in found.metrics.items()}
    scores = [asdict(score) | ({} if score.images else {"average_precision": None}) for score in found.scores]
    unreadable = [str(error) for error in found.unreadable]
    return {**metrics, "images": len(found.rows), "classes": scores, "unreadable": unreadable}


def texts(
    predictor: "TextPredictor", source: "Source", split: str, batch_size: int, data: dict, output: Path | None
) -> dict:
    from vit.evaluation import matched_split
    from vit.evaluation.text_classes import evaluate_texts
    from vit.report.evaluation import write_text_evaluation
    from vit.run.parts.data_source import truncates

    predictor.cuts = truncates(data)
    samples = matched_split(source, predictor.classes, split)
    with progress() as bar:
        task = bar.add_task("evaluate", total=len(samples))
        evaluation = evaluate_texts(predictor, samples, batch_size, lambda count: bar.advance(task, count))
    show_evaluation(evaluation, f"{source.name}, {split}", "texts")
    if output is not None:
        write_text_evaluation(output, evaluation, samples, f"{source.name}, {split}")
    return numbers(evaluation, split, "texts")


def pairs(writer: "Writer", source: "PairSource", split: str, batch_size: int, data: dict, output: Path | None) -> dict:
    from rich.console import Console

    from vit.evaluation import bleu_signature
    from vit.evaluation.pairs import evaluate_pairs
    from vit.report.pairs import write_pairs
    from vit.report.summary import summary_table
    from vit.run.parts.data_source import truncates

    if split not in source.splits:
        raise ValueError(f"{source.name} has no {split} split; it has {', '.join(source.splits)}")
    chosen, writer.cuts = source.splits[split], truncates(data)
    with progress() as bar:
        task = bar.add_task("evaluate", total=len(chosen))
        evaluation = evaluate_pairs(
            writer, chosen, batch_size, data["on_bad_sample"], lambda count: bar.advance(task, count)
        )
    list_unreadable(evaluation.unreadable, len(chosen))
    facts = {name: repr(value) for name, value in evaluation.metrics.items()} | {"BLEU is": bleu_signature()}
    Console().print(summary_table({**facts, "pairs": f"{len(evaluation.rows):,}"}, f"{source.name}, {split}"))
    if output is not None:
        write_pairs(output, evaluation, chosen, writer.preprocessing)
    metrics = {f"{split}/{name}": value for name, value in evaluation.metrics.items()}
    unreadable = [str(error) for error in evaluation.unreadable]
    facts = {f"{split}/bleu_signature": bleu_signature(), "pairs": len(evaluation.rows), "unreadable": unreadable}
    return metrics | facts


def show_evaluation(evaluation: "Evaluation", title: str, unit: str) -> None:
    from rich.console import Console

    from vit.report.summary import class_table, summary_table

    facts = {name: repr(value) for name, value in evaluation.metrics.items()}
    console = Console()
    console.print(summary_table({**facts, unit: f"{len(evaluation.rows):,}"}, title))
    console.print(class_table(evaluation.class_scores(), unit))


def numbers(evaluation: "Evaluation", split: str, unit: str) -> dict:
    metrics = {f"{split}/{name}": value for name, value in evaluation.metrics.items()}
    scores = [asdict(score) for score in evaluation.class_scores()]
    return {**metrics, unit: len(evaluation.rows), "classes": scores, "confusion": evaluation.confusion.tolist()}
