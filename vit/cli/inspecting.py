"""`vit audit` and `vit models`: what is in a data set, and which models there are."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vit.cli.data_sets import data_config
from vit.cli.data_sets import source as data_source
from vit.cli.terminal import ConfigDir, Words, check_writable, progress

if TYPE_CHECKING:
    from vit.data import LinePreprocessing, PairSource, Preprocessing, Source


def audit(
    words: Words = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the whole report to this file.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0, help="Stop decoding after this time; all by default.")] = None,
    config_dir: ConfigDir = None,
) -> None:
    """Look at every image of a data set: unreadable and odd ones, copies across splits, classes, sizes, mean and std.
    """
    check_writable(json_file)
    from vit.data.audit import audit as inspect
    from vit.files.strict_json import json_text
    from vit.run.config.composing import with_config_dir

    data = data_config(with_config_dir(words or [], config_dir))
    if "preprocessing" not in data:
        raise ValueError(f"data={data['name']} holds texts, and an audit looks at images; what is wrong with "
                         "texts is told by file and line when a training reads them, before its first step")
    source = as_images(data_source(data))
    contract, pixels = preprocessing(data, source)
    with progress() as bar:
        task = bar.add_task("audit", total=None)
        report = inspect(source, contract, seconds,
                         lambda stage, done, of: bar.update(task, description=stage, completed=done, total=of))
    typer.echo(report.text() + (f"\npixels: {pixels}" if pixels else ""))
    if json_file is not None:
        json_file.write_text(json_text(report.to_dict()) + "\n", encoding="utf-8")
    raise typer.Exit(1 if report.unreadable else 0)


def preprocessing(data: dict, source: "Source") -> tuple["Preprocessing | LinePreprocessing", str | None]:
    """How a run would decode images, and a line about those of more than 8 bits, if there are any.

    Mean and std are what an audit finds, so any will do.
    """
    from vit.data import LinePreprocessing, Preprocessing
    from vit.data.images.bit_depth import RULES
    from vit.data.statistics import resolve_range

    stated = {key: value for key, value in data["preprocessing"].items() if value is not None}
    rule = stated.pop("range", "auto")
    channels = 1 if stated.get("mode") == "L" else 3
    usual = {"mean": [0.5] * channels, "std": [0.5] * channels}
    if "height" in stated:  # images of lines
        found = LinePreprocessing.from_dict(usual | stated | {"patch_size": data["patch_size"]})
    else:
        found = Preprocessing.from_dict(usual | {"size": data["image_size"] or 224} | stated)
    if rule not in RULES:
        return found.replace(range=rule), None
    return resolve_range(source.splits["train"], found, rule)


def as_images(source: "Source | PairSource") -> "Source":
    """Of images with their text the images alone: no classes are counted."""
    from numpy import zeros

    from vit.data import PairSource, Split, UnlabelledImages

    if not isinstance(source, PairSource):
        return source
    splits = {key: Split(zeros(len(each), int), each.names, each.read) for key, each in source.splits.items()}
    return UnlabelledImages(source.name, [], splits, source.left_out)


def models(pattern: Annotated[str, typer.Argument(help="Names with * and ?, such as 'vit_small*'.")] = "*") -> None:
    """List the models that can be made by name."""
    from vit.models import list_models

    names = list_models(pattern)
    if not names:
        raise ValueError(f"no model is named like {pattern!r}; vit models lists all {len(list_models())}")
    typer.echo("\n".join(names))
