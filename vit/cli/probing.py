"""`vit probe`: what a frozen model's features are worth, and the features themselves."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vit.cli.data_sets import data_config, measured_source
from vit.cli.terminal import (
    ConfigDir,
    Device,
    Model,
    Precision,
    check_writable,
    list_left_out,
    list_unreadable,
    progress,
    stderr,
)

if TYPE_CHECKING:
    from vit.bundle import Bundle
    from vit.data import Source
    from vit.evaluation.embeddings import Embeddings
    from vit.inference.features import Featurizer

SPLITS = ("train", "val", "test")
KS = (1, 5, 10, 20, 100)


def probe(
    model: Model,
    words: Annotated[list[str] | None, typer.Argument(
        metavar="[KEY=VALUE | PATH]...", show_default=False,
        help="Config words, such as data=folder data.root=photos; or images and folders without labels.")] = None,
    k: Annotated[str | None, typer.Option("--k", help="Neighbours that vote: by default 1,5,10,20,100.")] = None,
    save: Annotated[Path | None, typer.Option(help="Write the features to this file: .npz or .parquet.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all numbers to this file.")] = None,
    batch_size: Annotated[int, typer.Option(min=1)] = 64,
    precision: Precision = Precision.full,
    device: Device = None,
    config_dir: ConfigDir = None,
) -> None:
    """Tell classes by a model's frozen features: k nearest neighbours and logistic regression, no training of it."""
    check_files(save, json_file)
    ks = [number(word) for word in k.split(",")] if k else None
    paths = [word for word in words or [] if "=" not in word or Path(word).exists()]
    if paths and len(paths) < len(words):
        raise typer.BadParameter(f"give config words or images, not both: {paths[0]} is no key=value")
    if paths and save is None:
        raise typer.BadParameter("images without labels tell no accuracy; add --save FILE for their features")
    from vit.evaluation import embeddings
    from vit.inference import best_device
    from vit.inference.features import Featurizer
    from vit.run.config.composing import with_config_dir

    bundle = opened(model)
    featurizer = Featurizer(bundle.model, bundle.preprocessing, best_device(device), str(precision))
    if paths:
        parts, classes = {"": embedded_files(featurizer, paths, batch_size)}, []
    else:
        data = data_config(with_config_dir(words or [], config_dir), bundle)
        source = measured_source(data, bundle)
        check_source(source, bundle)
        ks = fitting(ks, len(source.splits["train"]))
        parts, classes = embedded_source(bundle, featurizer, source, data, batch_size), source.classes
    if save is not None:
        embeddings.save(save, parts, classes)
        rows, width = sum(map(len, parts.values())), parts[next(iter(parts))].features.shape[1]
        stderr().print(f"wrote {rows:,} vectors of {width} numbers to {save}", markup=False, soft_wrap=True)
    if not paths:
        show(measured(parts, ks), source, json_file, str(model))


def check_files(save: Path | None, json_file: Path | None) -> None:
    """Say before the long work that a result could not be written."""
    check_writable(save)
    check_writable(json_file)
    if save is not None and save.suffix not in (".npz", ".parquet"):
        raise typer.BadParameter(f"--save {save}: features are written as .npz or .parquet")


def number(word: str) -> int:
    if not word.strip().isdigit() or int(word) < 1:
        raise typer.BadParameter(f"--k {word}: must be numbers of neighbours with commas, such as 1,5,20")
    return int(word)


def fitting(ks: list[int] | None, rows: int) -> list[int]:
    """The numbers of neighbours asked for, or those of the usual ones that so many training samples have."""
    if ks and max(ks) > rows:
        raise typer.BadParameter(f"--k {max(ks)}: there are {rows:,} training samples")
    return ks or [k for k in KS if k <= rows]


def opened(model: Path) -> "Bundle":
    """A model of ours of any kind, or somebody else's, with a head or without."""
    from vit.bundle import Bundle, load_bundle
    from vit.exchange.importing import take
    from vit.exchange.opening import format_of, is_foreign, prepared
    from vit.exchange.read import read

    if not is_foreign(model):
        return load_bundle(model)
    found = read(model)
    network, report = take(found)
    preprocessing = prepared(found, format_of(report), network.config)
    return Bundle(Path(found.name), network, [], preprocessing, {}, {}, {}, {})


def check_source(source: "Source", bundle: "Bundle") -> None:
    from vit.data import Source, TextSplit

    if not isinstance(source, Source) or source.multi_label:
        raise ValueError(f"{source.name} has not one class name per sample, which nearest neighbours and logistic "
                         "regression are measured by")
    reads = "texts" if "source" in bundle.tokenizers else "images"
    if (holds := "texts" if isinstance(source.splits["train"], TextSplit) else "images") != reads:
        raise ValueError(f"{source.name} holds labelled {holds}, but the model reads {reads}; name its kind of data")
    if "val" not in source.splits:
        raise ValueError(f"{source.name} has no val split, by which the regression's strength is chosen")


def embedded_files(featurizer: "Featurizer", paths: list[str], batch_size: int) -> "Embeddings":
    from vit.evaluation.embeddings import embed_files
    from vit.inference import named_images

    if featurizer.preprocessing is None:
        raise ValueError("this model reads texts; name a data set of texts, data=text_table data.path=FILE")
    left_out = []
    files = [path for _, path in named_images(paths, left_out)]
    with progress() as bar:
        task = bar.add_task("features", total=len(files))
        found = embed_files(featurizer, files, batch_size, "skip", lambda count: bar.advance(task, count))
    list_unreadable(found.unreadable, len(files))
    list_left_out(left_out, len(files))
    return found


def embedded_source(
    bundle: "Bundle", featurizer: "Featurizer", source: "Source", data: dict, batch_size: int
) -> dict[str, "Embeddings"]:
    """The features of every split that there is."""
    from vit.data import TextDataset
    from vit.evaluation.embeddings import embed_split, embed_texts

    splits = {key: source.splits[key] for key in SPLITS if key in source.splits}
    parts = {}
    with progress() as bar:
        task = bar.add_task("features", total=sum(map(len, splits.values())))

        def done(count: int) -> None:
            bar.advance(task, count)

        for key, split in splits.items():
            if bundle.tokenizers:
                texts = TextDataset(split, bundle.tokenizer("source"), bundle.model.config.max_len, data["on_long"])
                parts[key] = embed_texts(featurizer, texts, batch_size, done)
            else:
                parts[key] = embed_split(featurizer, split, batch_size, data["on_bad_sample"], done)
    for key, part in parts.items():
        list_unreadable(part.unreadable, len(splits[key]))
    return parts


def measured(parts: dict[str, "Embeddings"], ks: list[int]) -> list[dict]:
    """A row per probe: its name, its setting, and the accuracy on each split that it did not learn from."""
    from vit.evaluation import probe as probes

    labelled = {key: probes.Labelled(part.features, part.labels) for key, part in parts.items()}
    train, judged = labelled["train"], {key: part for key, part in labelled.items() if key != "train"}
    with progress() as bar:
        task = bar.add_task("interleaved", total=len(judged))
        voted = {}
        for key, part in judged.items():
            voted[key] = probes.nearest_neighbours(train, part.features, ks)
            bar.advance(task)
        task = bar.add_task("logistic regression", total=len(probes.STRENGTHS))
        regression = probes.logistic_regression(train, judged["val"], progress=lambda: bar.advance(task))
    answers = {("nearest neighbours", f"k={k}"): {key: voted[key][k] for key in judged} for k in ks}
    said = {key: regression.classify(part.features) for key, part in judged.items()}
    answers["logistic regression", f"C={regression.C:g}"] = said
    return [
        {"probe": name, "setting": setting}
        | {f"{key}/accuracy": probes.accuracy(told, judged[key].labels) for key, told in by_split.items()}
        for (name, setting), by_split in answers.items()
    ]


def show(rows: list[dict], source: "Source", json_file: Path | None, model: str) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from vit.files.strict_json import json_text

    judged = [key for key in rows[0] if "/" in key]
    table = Table(title=f"{source.name}, frozen features", title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    table.add_column("probe")
    table.add_column("setting")
    for key in judged:
        table.add_column(key.replace("/", " "), justify="right")
    best = max(row[judged[0]] for row in rows)
    for row in rows:
        style = "bold" if row[judged[0]] == best else None
        table.add_row(row["probe"], row["setting"], *(f"{row[key]:.2%}" for key in judged), style=style)
    Console().print(table)
    if json_file is not None:
        sizes = {key: len(split) for key, split in source.splits.items()}
        facts = {"model": model, "data": source.name, "samples": sizes, "probes": rows}
        json_file.write_text(json_text(facts) + "\n", encoding="utf-8")
