"""Tables that commands print at the end: a summary with the next command, and metrics per class."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vit.evaluation import ClassScore, LabelScore
from vit.messages import visible

NARROW = 70  # columns: tables for a narrower terminal have hyphenated headings and less space
HYPHENATED = {"accuracy": "accu-\nracy", "precision": "preci-\nsion", "threshold": "thresh-\nold"}
Score = TypeVar("Score", ClassScore, LabelScore)


def summary_table(facts: Mapping[str, object], title: str = "") -> Table:
    """Two columns with one fact per row, in order; floats with four digits."""
    table = Table(title=escape(visible(title)) or None, title_justify="left", title_style="bold", show_header=False,
                  box=SIMPLE_HEAD, padding=(0, 1))
    table.add_column(style="dim", overflow="fold")
    longest = max((len(str(each)) for each in facts.values()), default=0)
    table.add_column(overflow="fold", no_wrap=longest <= 24)  # all digits of a float, to be compared or copied
    for name, value in facts.items():
        shown = f"{value:.4g}" if isinstance(value, float) else visible(str(value))
        table.add_row(escape(visible(name)), escape(shown))
    return table


def print_summary(facts: Mapping[str, object], title: str = "", next_command: str = "",
                  console: Console | None = None) -> None:
    """Print the table and below it the next command, unwrapped, so that it can be copied."""
    console = console or Console()
    console.print(summary_table(facts, title))
    if next_command:
        console.print("  Next: ", style="dim", end="")
        console.print(next_command, style="bold", markup=False, highlight=False, soft_wrap=True)


def print_table(build: Callable[[bool], Table]) -> None:
    """Print the table of `build(narrow)`, where narrow means a terminal with fewer columns than `NARROW`."""
    console = Console()
    console.print(build(console.width < NARROW))


def select_worst(scores: list[Score], most: int, noun: str, unit: str = "images") -> tuple[list[Score], str | None]:
    """(scores to show, caption): all scores, or of more than `most` those with samples and the lowest F1."""
    if len(scores) <= most:
        return scores, None
    present = sorted((score for score in scores if score.images), key=lambda score: score.f1)
    if len(present) == len(scores):
        return present[:most], f"the {most} worst of {len(scores)} {noun}"
    cut = f", the {most} worst of them" if len(present) > most else ""
    return present[:most], f"{len(present)} of {len(scores)} {noun} have {unit}{cut}"


def score_table(name: str, numbers: Sequence[str], caption: str | None, narrow: bool) -> Table:
    """A table without rows: a column of names, which are wrapped in a narrow terminal, and columns of numbers, which
    are not.
    """
    table = Table(box=SIMPLE_HEAD, padding=(0, 0 if narrow else 1), caption=caption, caption_justify="left")
    table.add_column(name, overflow="fold")
    for each in numbers:
        table.add_column(HYPHENATED.get(each, each) if narrow else each, justify="right", no_wrap=True)
    return table


def class_table(scores: list[ClassScore], unit: str = "images", most: int = 40, narrow: bool = False) -> Table:
    """One row per class; of more than `most` classes those with the lowest F1.

    Args:
        unit: images or texts.
        narrow: the terminal has fewer columns than `NARROW`.
    """
    shown, caption = select_worst(scores, most, "classes", unit)
    table = score_table("class", (unit, "accuracy", "precision", "F1"), caption, narrow)
    for score in shown:
        values = score.accuracy, score.precision, score.f1
        table.add_row(escape(visible(score.name)), f"{score.images:,}", *(number(value) for value in values))
    return table


def number(value: float | None, format: str = ".4f") -> str:
    """A number of a table; – if it is undefined (None or nan)."""
    return "–" if value is None or math.isnan(value) else f"{value:{format}}"
