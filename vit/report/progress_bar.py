"""The progress bar of commands: steps done, rate and remaining time."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from vit.data.threads import StageProgress


class Rate(ProgressColumn):
    """Recent steps per second."""

    def render(self, task: Task) -> Text:
        if not task.speed:
            return Text("")
        return Text(f"{task.speed:,.0f}/s" if task.speed >= 10 else f"{task.speed:.1f}/s", "progress.data.speed")


def progress_bar(console: Console) -> Progress:
    """A progress bar that disappears at the end; disabled if the console is not a terminal."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn()
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


@contextmanager
def stage_bar(console: Console, description: str) -> Iterator[StageProgress]:
    """A progress bar over several stages; yields `update(stage, done, total)`."""
    with progress_bar(console) as bar:
        task = bar.add_task(description, total=None)
        yield lambda stage, done, total: bar.update(task, description=stage, completed=done, total=total)
