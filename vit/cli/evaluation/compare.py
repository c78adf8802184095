"""`vit compare`: whether one classifier is better than another, on the same samples."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vit.cli.terminal import check_writable, write_json

if TYPE_CHECKING:
    from rich.table import Table

    from vit.evaluation.intervals.paired import Paired


def compare(
    runs: Annotated[list[Path], typer.Argument(
        help="Folders of finished runs, or of vit evaluate --output; the others are compared with the first one.",
        show_default=False)],
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all numbers to this file.")] = None,
) -> None:
    """Compare models on the same samples: difference of the accuracy with an interval, and McNemar's test.

    Of translators and OCR models, differences of BLEU and character errors by a paired bootstrap, and of exact match.

    Reads the predictions.csv of each folder. The p-values are not corrected for several comparisons.
    """
    if len(runs) < 2:
        raise typer.BadParameter("pass two folders or more")
    check_writable(json_file)
    from dataclasses import asdict

    from rich.console import Console

    from vit.evaluation.intervals.paired import compare_paired, is_generated, matched, read_answers

    if all(map(is_generated, runs)):
        return compare_texts(runs, json_file)
    first, *others = [read_answers(run) for run in runs]
    found = {str(run): compare_paired(*matched(first, other, (runs[0], run)))
             for run, other in zip(runs[1:], others, strict=True)}
    Console().print(paired_table(str(runs[0]), found))
    write_json({"first": str(runs[0]), "compared": {name: asdict(each) for name, each in found.items()}}, json_file)


def compare_texts(runs: list[Path], json_file: Path | None) -> None:
    """Compare translators or image-to-text models: differences of their metrics by a paired bootstrap.

    Raises:
        DataError: the references differ.
    """
    from dataclasses import asdict

    from rich.console import Console

    from vit.evaluation.intervals.paired import check_same_references, read_texts
    from vit.evaluation.intervals.text_bootstrap import TextStatistics, paired_bootstrap

    first, *others = [read_texts(run) for run in runs]
    for run, other in zip(runs[1:], others, strict=True):
        check_same_references(first, other, (runs[0], run))
    statistics = [TextStatistics([text for _, text in each], [reference for reference, _ in each])
                  for each in (first, *others)]
    found = {str(run): paired_bootstrap(statistics[0], each)
             for run, each in zip(runs[1:], statistics[1:], strict=True)}
    Console().print(text_table(str(runs[0]), len(first), found))
    values = {name: {metric: {**asdict(change), "p_value": p} for metric, (change, p) in each.items()}
              for name, each in found.items()}
    write_json({"first": str(runs[0]), "pairs": len(first), "compared": values}, json_file)


def text_table(first: str, pairs: int, found: "dict[str, dict]") -> "Table":
    """A row per compared run and metric; the cells of what `pairs` texts do not allow are empty."""
    from rich import markup
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from vit.evaluation.intervals.text_bootstrap import FEWEST_TEXTS

    caption = f"compared with {markup.escape(first)} on {pairs:,} texts"
    if pairs < FEWEST_TEXTS:
        caption += (f"; intervals, and p-values of BLEU and character errors, need {FEWEST_TEXTS} or more, so only "
                    "exact match has a p-value")
    table = Table(box=SIMPLE_HEAD, caption_justify="left",
                  caption=f"{caption} (p: McNemar's exact test of exact match, else paired bootstrap)")
    for name in ("run", "metric", "difference", "95% interval", "p"):
        table.add_column(name, justify="left" if name in ("run", "metric") else "right", overflow="fold")
    for run, metrics in found.items():
        for metric, (change, p) in metrics.items():
            table.add_row(markup.escape(run), metric.replace("_", " "), f"{change.value:+.2%}",
                          "" if change.low is None else f"{change.low:+.2%} to {change.high:+.2%}",
                          "" if p is None else f"{p:.3g}")
    return table


def paired_table(first: str, found: "dict[str, Paired]") -> "Table":
    """A row per compared run."""
    from rich import markup
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    one = next(iter(found.values()))
    table = Table(box=SIMPLE_HEAD, caption_justify="left",
                  caption=f"compared with {markup.escape(first)}: {one.first:.2%} of {one.samples:,} samples")
    for name in ("run", "accuracy", "difference", "95% interval", "only first right", "only this right", "p (McNemar)"):
        table.add_column(name, justify="left" if name == "run" else "right", overflow="fold")
    for name, each in found.items():
        change = each.difference
        table.add_row(markup.escape(name), f"{each.second:.2%}", f"{change.value:+.2%}",
                      f"{change.low:+.2%} to {change.high:+.2%}", f"{each.only_first:,}", f"{each.only_second:,}",
                      f"{each.p_value:.3g}")
    return table
