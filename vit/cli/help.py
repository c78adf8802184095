"""The help of the commands, which Typer renders with rich."""

import importlib
import inspect
from collections.abc import Callable

from vit.run.deferred_modules import deferred_packages


def load_help() -> None:
    """Import the modules with which Typer renders help, without the parser of Markdown, which it does not need, and
    let its tables fold what is too long for a narrow terminal: they cut names of options and words.
    """
    with deferred_packages("attr", "markdown_it"):
        render = importlib.import_module("typer.rich_utils")
        render.Table = folded_table()


def folded_table() -> type:
    """The table of rich whose cells are folded, not cut."""
    from rich.table import Table
    from rich.text import Text

    class FoldedTable(Table):
        def add_row(self, *cells: object, **options: object) -> None:
            for cell in cells:
                for part in getattr(cell, "renderables", [cell]):
                    if isinstance(part, Text):
                        part.overflow = "fold"
            super().add_row(*cells, **options)

    return FoldedTable


def help_of(command: Callable[..., None]) -> str:
    """The docstring with one line per paragraph: Typer keeps the line breaks of all paragraphs but the first."""
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    return "\n\n".join(" ".join(each.split()) for each in paragraphs)
