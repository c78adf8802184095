"""The bar of work that is counted: how much is done, how fast, and how long it will still take."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text


class Rate(ProgressColumn):
    """Steps per second, of late."""

    def render(self, task: Task) -> Text:
        if not task.speed:
            return Text("")
        return Text(f"{task.speed:,.0f}/s" if task.speed >= 10 else f"{task.speed:.1f}/s", "progress.data.speed")


def progress_bar(console: Console) -> Progress:
    """A bar that goes when the work is done; nothing where the console is no terminal."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn()
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
