"""`vit audit` and `vit models`: problems in a data set, and the models that exist."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vit.cli.data_sets import compose_data, open_source
from vit.cli.terminal import ConfigDir, Overrides, check_writable, staged, write_json

if TYPE_CHECKING:
    from vit.data import LinePreprocessing, PairSource, Preprocessing, Source


def audit(
    overrides: Overrides = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the whole report to this file.")] = None,
    seconds: Annotated[float | None, typer.Option(
        min=0, help="Time limit for decoding; by default all images are decoded.", show_default=False)] = None,
    near: Annotated[bool, typer.Option(
        "--near-copies", help="Also find resized, recompressed, cropped, mirrored and brightened copies.")] = False,
    config_dir: ConfigDir = None,
) -> None:
    """Check the images of a data set: unreadable ones, duplicates across splits, class counts, sizes, mean and std.

    The exit code is 1 if an image is unreadable.
    """
    check_writable(json_file)
    from vit.data.audit import audit as audit_source
    from vit.data.near_copies import describe_pairs, near_copies
    from vit.run.config.composing import with_config_dir

    data = compose_data(with_config_dir(overrides or [], config_dir))["data"]
    if "preprocessing" not in data:
        raise ValueError(f"data={data['name']} holds texts, but an audit checks images; training checks texts before "
                         "its first step and names file and line of an invalid one")
    source = as_unlabelled_images(open_source(data))
    preprocessing, bit_depth = audit_preprocessing(data, source)
    with staged("audit") as progress:
        report = audit_source(source, preprocessing, seconds, progress)
        pairs = near_copies(source, preprocessing, progress) if near else []
    typer.echo(report.text() + (f"\npixels: {bit_depth}" if bit_depth else ""))
    if near:
        typer.echo(describe_pairs(pairs))
    write_json(report.to_dict() | ({"near_copies": [asdict(pair) for pair in pairs]} if near else {}), json_file)
    raise typer.Exit(1 if report.unreadable else 0)


def audit_preprocessing(data: dict, source: "Source") -> tuple["Preprocessing | LinePreprocessing", str | None]:
    """The decoding that a run would use, and a line about the images of more than 8 bits, if there are any.

    Mean and std are placeholders: an audit computes them.

    Raises:
        ValueError: a value of the preprocessing is invalid.
    """
    from vit.data import LinePreprocessing, Preprocessing
    from vit.data.images.bit_depth import RULES
    from vit.data.statistics import resolve_range

    stated = {key: value for key, value in data["preprocessing"].items() if value is not None}
    rule = stated.pop("range", "auto")
    channels = 1 if stated.get("mode") == "L" else 3
    defaults = {"mean": [0.5] * channels, "std": [0.5] * channels}
    if "height" in stated:  # images of text lines
        found = LinePreprocessing.from_dict(defaults | stated | {"patch_size": data["patch_size"]})
    else:
        found = Preprocessing.from_dict(defaults | {"size": data["image_size"] or 224} | stated)
    if rule not in RULES:
        return found.replace(range=rule), None
    return resolve_range(source.splits["train"], found, rule)


def as_unlabelled_images(source: "Source | PairSource") -> "Source":
    """The images of an image-to-text source, as a source without classes."""
    from numpy import zeros

    from vit.data import PairSource, Split, UnlabelledImages

    if not isinstance(source, PairSource):
        return source
    splits = {key: Split(zeros(len(each), int), each.names, each.read) for key, each in source.splits.items()}
    return UnlabelledImages(source.name, [], splits, source.left_out)


def models(pattern: Annotated[str, typer.Argument(help="Names with * and ?, such as 'vit_small*'.")] = "*") -> None:
    """List the names of the models that can be created."""
    from vit.models import list_models

    names = list_models(pattern)
    if not names:
        raise ValueError(f"no model name matches {pattern!r}; vit models lists all {len(list_models())}")
    typer.echo("\n".join(names))
