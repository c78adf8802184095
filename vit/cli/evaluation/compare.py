"""`vit compare`: whether one classifier is better than another, on the same samples."""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vit.cli.file_checks import check_not_an_input, check_table, check_writable, files_of_model
from vit.cli.shared_options import check_inputs
from vit.cli.terminal import print_without_effect, write_json
from vit.messages import number_of, visible

if TYPE_CHECKING:
    from rich.table import Table

    from vit.evaluation.intervals.bootstrap import Interval
    from vit.evaluation.intervals.paired import PairedComparison


def compare(
    runs: Annotated[list[Path], typer.Argument(
        help="Folders of finished runs, or of vit evaluate --output; the others are compared with the first one.",
        show_default=False, callback=check_inputs)],
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all numbers to this file.")] = None,
) -> None:
    """Compare models on the same samples: difference of the accuracy with an interval, and McNemar's test.

    Models with several labels per image are compared by mAP and F1 (paired bootstrap) and exact match; translators and
    OCR models by BLEU, character errors and exact match.

    Reads the predictions.csv of each folder. The p-values are not corrected for several comparisons.
    """
    if len(runs) < 2:
        raise typer.BadParameter("pass two folders or more")
    check_writable(json_file)
    check_not_an_input(json_file, [file for run in runs for file in files_of_model(run)], "--json")
    check_table("--json", json_file, (".json",))
    check_runs(runs)
    from dataclasses import asdict

    from vit.evaluation.intervals.paired import compare_paired, is_generated, matched, read_predictions
    from vit.evaluation.intervals.paired_labels import has_label_sets
    from vit.report.summary import print_table

    if all(map(is_generated, runs)):
        return compare_texts(runs, json_file)
    if all(map(has_label_sets, runs)):
        return compare_labels(runs, json_file)
    first, *others = [read_predictions(run) for run in runs]
    comparisons = {str(run): compare_paired(*matched(first, other, (runs[0], run)))
                   for run, other in zip(runs[1:], others, strict=True)}
    print_table(partial(paired_table, str(runs[0]), comparisons))
    compared = {name: asdict(each) for name, each in comparisons.items()}
    write_json({"first": str(runs[0]), "compared": compared}, json_file)


def check_runs(runs: list[Path]) -> None:
    """Check that folders are given, and print that one is given twice.

    Raises:
        ValueError: a file is given.
    """
    if file := next((run for run in runs if run.is_file()), None):
        raise ValueError(f"{file} is a file; pass its folder, {file.parent}" if file.name == "predictions.csv" else
                         f"{file} is a file; pass the folder of a finished run, or the folder of vit evaluate --output")
    paths = [os.path.realpath(run) for run in runs]
    if len(set(paths)) < len(paths):
        again = next(run for i, run in enumerate(runs) if paths[i] in paths[:i])
        print_without_effect(f"{again} is given twice, so it is compared with itself")


def compare_texts(runs: list[Path], json_file: Path | None) -> None:
    """Compare translators or image-to-text models: differences of their metrics by a paired bootstrap.

    Raises:
        DataError: the references differ.
    """
    from vit.evaluation.intervals.paired import check_same_references, read_texts
    from vit.evaluation.intervals.text_bootstrap import FEWEST_TEXTS, TextStatistics, paired_bootstrap
    from vit.report.summary import print_table

    first, *others = [read_texts(run) for run in runs]
    for run, other in zip(runs[1:], others, strict=True):
        check_same_references(first, other, (runs[0], run))
    statistics = [TextStatistics([text for _, text in each], [references for references, _ in each])
                  for each in (first, *others)]
    found = {str(run): paired_bootstrap(statistics[0], each)
             for run, each in zip(runs[1:], statistics[1:], strict=True)}
    print_table(partial(metrics_table, str(runs[0]), (len(first), "text", FEWEST_TEXTS), found))
    write_json({"first": str(runs[0]), "pairs": len(first), "compared": metric_values(found)}, json_file)


def compare_labels(runs: list[Path], json_file: Path | None) -> None:
    """Compare models with several labels per image: differences of mAP and F1 by a paired bootstrap, and exact match.

    Raises:
        DataError: the images, their labels or the classes differ.
    """
    from vit.evaluation.intervals.paired_labels import (
        FEWEST_IMAGES,
        compare_label_sets,
        matched_label_sets,
        read_label_sets,
    )
    from vit.report.summary import print_table

    first, *others = [read_label_sets(run) for run in runs]
    found = {str(run): compare_label_sets(first, matched_label_sets(first, other, (runs[0], run)))
             for run, other in zip(runs[1:], others, strict=True)}
    print_table(partial(metrics_table, str(runs[0]), (len(first.names), "image", FEWEST_IMAGES), found))
    write_json({"first": str(runs[0]), "images": len(first.names), "compared": metric_values(found)}, json_file)


def metric_values(found: "dict[str, dict[str, tuple[Interval, float | None]]]") -> dict[str, dict]:
    """Plain values of the differences of each run."""
    from dataclasses import asdict

    return {name: {metric: {**asdict(change), "p_value": p} for metric, (change, p) in each.items()}
            for name, each in found.items()}


def short_names(runs: Sequence[str]) -> tuple[str, dict[str, str]]:
    """(The deepest folder that contains all runs, empty if there is none; the path of each run below it)."""
    try:
        above = os.path.commonpath([os.path.dirname(run) for run in runs])
    except ValueError:  # absolute and relative paths
        above = ""
    return above, {run: os.path.relpath(run, above) if above else run for run in runs}


def below(folder: str) -> str:
    """The part of a caption that names the folder of all runs; empty if there is none."""
    from rich import markup

    return f"; all runs are in {markup.escape(visible(folder))}" if folder else ""


def metrics_table(first: str, samples: tuple[int, str, int],
                  found: "dict[str, dict[str, tuple[Interval, float | None]]]", narrow: bool = False) -> "Table":
    """A row per compared run and metric; in a `narrow` table only their names are wrapped.

    Args:
        samples: how many there are, what each is, and how many a bootstrap needs; with fewer, its cells are empty.
    """
    from rich import markup
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    count, unit, fewest = samples
    above, names = short_names([first, *found])
    caption = f"compared with {markup.escape(visible(names[first]))} on {number_of(count, unit)}{below(above)}"
    if count < fewest:
        caption += f"; intervals need {fewest} or more, and so do all p-values but that of exact match"
    table = Table(box=SIMPLE_HEAD, padding=(0, 0 if narrow else 1), caption_justify="left",
                  caption=f"{caption} (p: McNemar's exact test of exact match, else paired bootstrap)")
    for name in ("run", "metric"):
        table.add_column(name, overflow="fold")
    for name in ("difference", "95% interval", "p"):
        table.add_column(name, justify="right", overflow="fold", no_wrap=narrow)
    for run, metrics in found.items():
        for metric, (change, p) in metrics.items():
            table.add_row(markup.escape(visible(names[run])), metric.replace("_", " "), f"{change.value:+.2%}",
                          "" if change.low is None else f"{change.low:+.2%} to {change.high:+.2%}",
                          "" if p is None else f"{p:.3g}")
    return table


def paired_table(first: str, found: "dict[str, PairedComparison]", narrow: bool = False) -> "Table":
    """A row per compared run; in a `narrow` table only their names are wrapped."""
    from rich import markup
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    one = next(iter(found.values()))
    above, names = short_names([first, *found])
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, caption_justify="left",
                  caption=f"compared with {markup.escape(visible(names[first]))}: {one.first:.2%} of {one.samples:,} "
                          f"samples{below(above)}; only first, only this: samples that only one of the two gets right; "
                          "p: McNemar's exact test")
    heads = ("accuracy", "difference", "95% interval", "only\nfirst", "only\nthis", "p")
    if narrow:
        heads = ("accu-\nracy", "differ-\nence", "95%\ninterval", *heads[3:])
    table.add_column("run", overflow="fold")
    for head in heads:
        table.add_column(head, justify="right", overflow="fold", no_wrap=narrow)
    for name, each in found.items():
        change, to = each.difference, " to\n" if narrow else " to "
        table.add_row(markup.escape(visible(names[name])), f"{each.second:.2%}", f"{change.value:+.2%}",
                      f"{change.low:+.2%}{to}{change.high:+.2%}", f"{each.only_first:,}", f"{each.only_second:,}",
                      f"{each.p_value:.3g}")
    return table
