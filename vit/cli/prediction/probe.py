"""`vit probe`: features of a frozen model, and the accuracy of simple classifiers on them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vit.cli.data.data_sets import compose_data, evaluation_source
from vit.cli.file_checks import check_different, check_not_an_input, check_table, check_writable, files_of_model
from vit.cli.shared_options import BatchSize, ConfigDir, Device, ForwardPrecision, Model, Precision
from vit.cli.terminal import (
    counted,
    print_skipped,
    print_unreadable,
    print_without_effect,
    print_written,
    staged,
    write_json,
)
from vit.messages import number_of, override_for_shell

if TYPE_CHECKING:
    from vit.bundle import Bundle
    from vit.data import Source
    from vit.evaluation.features.embeddings import Embeddings
    from vit.inference.features import Featurizer

SPLITS = ("train", "val", "test")
KS = (1, 5, 10, 20, 100)


def probe(
    model: Model,
    arguments: Annotated[list[str] | None, typer.Argument(
        metavar="KEY=VALUE | PATH", show_default=False,
        help="Config overrides, such as data=folder data.root=photos; or images and folders without labels.")] = None,
    k: Annotated[str | None, typer.Option(
        "--k", help="Numbers of neighbours, separated by commas; by default 1,5,10,20,100.",
        show_default=False)] = None,
    save: Annotated[Path | None, typer.Option(help="Write the features to this file: .npz or .parquet.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all metrics to this file.")] = None,
    batch_size: BatchSize = 64,
    precision: ForwardPrecision = Precision.full,
    device: Device = None,
    config_dir: ConfigDir = None,
) -> None:
    """Evaluate the frozen features of a model with k nearest neighbours and logistic regression."""
    check_outputs(save, json_file)
    for option, file in (("--save", save), ("--json", json_file)):
        check_not_an_input(file, [*(arguments or []), *files_of_model(model)], option)
    check_table("--json", json_file, (".json",))
    ks = None if k is None else parse_ks(k)
    paths = unlabelled_paths(arguments or [], save)
    if paths and (option := "--json" if json_file is not None else "--k" if ks else None):
        print_without_effect(f"{option} has no effect: images without labels have no accuracy")
    from vit.exchange import open_model
    from vit.inference import best_device
    from vit.inference.features import Featurizer
    from vit.run.config.hydra_interface import with_config_dir

    bundle = open_model(model, features_only=True)
    featurizer = Featurizer(bundle.model, bundle.preprocessing, best_device(device), str(precision))
    if paths:
        save_features(save, {"": embed_paths(featurizer, paths, batch_size)}, [])
        return
    data = compose_data(with_config_dir(arguments or [], config_dir), bundle)["data"]
    source = evaluation_source(data, bundle)
    check_source(source, bundle)
    choose_ks(ks, len(source.splits["train"]))  # an error before the features are computed
    parts = embed_source(bundle, featurizer, source, data, batch_size)
    if save is not None:
        save_features(save, parts, source.classes)
    rows = probe_features(parts, choose_ks(ks, len(parts["train"])))
    print_probes(rows, f"{source.name}, frozen features")
    sizes = {key: len(part) for key, part in parts.items()}  # without unreadable samples
    write_json({"model": str(model), "data": source.name, "samples": sizes, "probes": rows}, json_file)


def unlabelled_paths(arguments: list[str], save: Path | None) -> list[str]:
    """The arguments if they are images and folders, or none if they are overrides.

    Raises:
        BadParameter: they are of both kinds, or images without `save`.
    """
    paths = [argument for argument in arguments if "=" not in argument or Path(argument).exists()]
    if paths and len(paths) < len(arguments):
        raise typer.BadParameter(f"pass either config overrides or images: {paths[0]} is not of the form key=value")
    if paths and save is None:
        raise typer.BadParameter("images without labels have no accuracy; add --save FILE to save their features")
    return paths


def save_features(file: Path, parts: dict[str, "Embeddings"], classes: list[str]) -> None:
    """Save the features of all splits and print their number."""
    from vit.evaluation.features.embeddings import save_embeddings

    save_embeddings(file, parts, classes)
    rows, width = sum(map(len, parts.values())), parts[next(iter(parts))].features.shape[1]
    print_written(f"{rows:,} vectors of dimension {width} to {file}")


def probe_features(parts: dict[str, "Embeddings"], ks: list[int]) -> list[dict]:
    """A row per probe with its accuracy on each split."""
    from vit.evaluation.features.probe import Labelled, run_probes

    labelled = {key: Labelled(part.features, part.labels) for key, part in parts.items()}
    with staged("probe") as progress:
        return run_probes(labelled, ks, progress)


def check_outputs(save: Path | None, json_file: Path | None) -> None:
    """Check before the computation that its results can be written.

    Raises:
        BadParameter: the extension of `save` is neither .npz nor .parquet.
        ValueError: a file cannot be written, or both are the same one.
    """
    check_writable(save)
    check_writable(json_file)
    check_different({"--save": save, "--json": json_file})
    if save is not None and save.suffix not in (".npz", ".parquet"):
        raise typer.BadParameter(f"--save {save}: features are saved as .npz or .parquet")


def parse_ks(text: str) -> list[int]:
    """Different positive integers, separated by commas.

    Raises:
        BadParameter: the text is something else.
    """
    parts = [each.strip() for each in text.split(",")]
    if not all(each.isdecimal() and int(each) for each in parts):
        raise typer.BadParameter(f"--k {text or repr(text)}: must be numbers of neighbours with commas, such as 1,5,20")
    return list(dict.fromkeys(map(int, parts)))


def choose_ks(ks: list[int] | None, rows: int) -> list[int]:
    """The given numbers of neighbours, or the default ones that do not exceed the number of training samples.

    Raises:
        BadParameter: a given number exceeds it.
    """
    if ks and max(ks) > rows:
        raise typer.BadParameter(f"--k {max(ks)}: the data has {number_of(rows, 'training sample')}; choose numbers up "
                                 f"to {rows}")
    return ks or [k for k in KS if k <= rows]


def check_source(source: "Source", bundle: "Bundle") -> None:
    """Check that a source is labelled, has a val split, and contains the inputs that the model reads.

    Raises:
        ValueError: it does not.
    """
    check_labelled(source, bundle)
    if "val" not in source.splits:
        raise ValueError(f"{source.name} has no val split, which selects the regularization of the logistic "
                         "regression; increase the second value of data.fractions, or add samples for val")


def check_labelled(source: "Source", bundle: "Bundle") -> None:
    """Check that samples have one class each and are of the kind that the model reads.

    Raises:
        ValueError: they are not, or the model reads texts and has no tokenizer.
    """
    from vit.data import Source, TextSplit
    from vit.inference.features import TEXT_KINDS

    if not isinstance(source, Source) or source.multi_label:
        raise ValueError(f"{source.name} does not have one class per sample, which nearest neighbours and logistic "
                         "regression require; choose another data set")
    reads = "texts" if bundle.model.config.kind in TEXT_KINDS else "images"
    if (holds := "texts" if isinstance(source.splits["train"], TextSplit) else "images") != reads:
        raise ValueError(f"{source.name} holds labelled {holds}, but the model reads {reads}; choose another data set "
                         "with data=NAME")
    if reads == "texts" and not bundle.tokenizers:
        raise ValueError(f"{bundle.path} has no tokenizer of this project, and its token ids are those of another one; "
                         "train a classifier from it, which has a tokenizer of its own, with "
                         f"{override_for_shell('init_from', bundle.path)}, and probe that")


def embed_paths(featurizer: "Featurizer", paths: list[str], batch_size: int) -> "Embeddings":
    """Features of the images of files and folders; unreadable ones are printed.

    Raises:
        BadImage: no image can be read.
        FileNotFoundError: a folder has no image.
        ValueError: the model reads texts.
    """
    from vit.evaluation.features.embeddings import embed_files
    from vit.inference import named_images

    if featurizer.preprocessing is None:
        raise ValueError("this model reads texts; name a data set of texts, data=text_table data.path=FILE")
    left_out = []
    files = [path for _, path in named_images(paths, left_out)]
    with counted("features", len(files)) as advance:
        embeddings = embed_files(featurizer, files, batch_size, "skip", advance)
    print_skipped(embeddings.unreadable, left_out, len(files))
    return embeddings


def embed_source(
    bundle: "Bundle", featurizer: "Featurizer", source: "Source", data: dict, batch_size: int
) -> dict[str, "Embeddings"]:
    """Features of all splits of a source."""
    from vit.data import TextDataset
    from vit.evaluation.features.embeddings import embed_split, embed_texts

    splits = {key: source.splits[key] for key in SPLITS if key in source.splits}
    parts = {}
    with counted("features", sum(map(len, splits.values()))) as advance:
        for key, split in splits.items():
            if bundle.tokenizers:
                texts = TextDataset(split, bundle.tokenizer("source"), bundle.model.config.max_len, data["on_long"])
                parts[key] = embed_texts(featurizer, texts, batch_size, advance)
            else:
                parts[key] = embed_split(featurizer, split, batch_size, data["on_bad_sample"], advance)
    for key, part in parts.items():
        print_unreadable(part.unreadable, len(splits[key]))
    return parts


def print_probes(rows: list[dict], title: str) -> None:
    """Print a table of the probes; the best one on the first evaluated split is bold."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    keys = [key for key in rows[0] if "/" in key]
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    table.add_column("probe")
    table.add_column("setting")
    for key in keys:
        table.add_column(key.replace("/", " "), justify="right")
    best = max(row[keys[0]] for row in rows)
    for row in rows:
        style = "bold" if row[keys[0]] == best else None
        table.add_row(row["probe"], row["setting"], *(f"{row[key]:.2%}" for key in keys), style=style)
    Console().print(table)
