"""`vit audit` and `vit models`: what is in a data set, and which models there are."""

import json
from pathlib import Path
from typing import Annotated

import typer

from vit.cli.data_sets import data_config
from vit.cli.data_sets import source as data_source
from vit.cli.terminal import Words, check_writable, progress


def audit(
    words: Words = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the whole report to this file.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0, help="Stop decoding after this time; all by default.")] = None,
) -> None:
    """Look at every file of a data set: unreadable and odd ones, copies across splits, classes, sizes, mean and std."""
    check_writable(json_file)
    from vit.data import Preprocessing
    from vit.data.audit import audit as inspect

    data = data_config(words or [])
    stated = {key: value for key, value in data["preprocessing"].items() if value is not None}
    channels = 1 if stated.get("mode") == "L" else 3  # mean and std are what is asked for: any will do
    usual = {"size": data["image_size"] or 224, "mean": [0.5] * channels, "std": [0.5] * channels}
    source = data_source(data)
    with progress() as bar:
        task = bar.add_task("audit", total=None)
        report = inspect(source, Preprocessing.from_dict(usual | stated), seconds,
                         lambda stage, done, of: bar.update(task, description=stage, completed=done, total=of))
    typer.echo(report.text())
    if json_file is not None:
        json_file.write_text(json.dumps(report.to_dict(), indent=2) + "\n", encoding="utf-8")
    raise typer.Exit(1 if report.unreadable else 0)


def models(pattern: Annotated[str, typer.Argument(help="Names with * and ?, such as 'vit_small*'.")] = "*") -> None:
    """List the models that can be made by name."""
    from vit.models import list_models

    names = list_models(pattern)
    if not names:
        raise ValueError(f"no model is named like {pattern!r}; vit models lists all {len(list_models())}")
    typer.echo("\n".join(names))
