"""The terminal output of runs and commands: log records, progress bars, the next command; and the log file."""

import contextlib
import logging
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from vit.files.machine import discard_output
from vit.messages import visible

if TYPE_CHECKING:
    from vit.data.threads import StageProgress


class RunConsole(Console):
    """A console whose program goes on without output when the reader of its pipe has closed it, as `head` does."""

    def on_broken_pipe(self) -> None:
        discard_output()
        with contextlib.suppress(OSError):  # standard error may be the same pipe
            print("The reader of the output has closed it; the run goes on without output", file=sys.stderr)


console = RunConsole()


def print_line(text: str, style: str | None = None) -> None:
    """Print a text to the terminal, above the progress bar, without wrapping, markup and control characters."""
    console.print(visible(text), style=style, markup=False, highlight=False, soft_wrap=True)


class ConsoleHandler(logging.Handler):
    """Prints log records above the progress bar, without wrapping or markup."""

    def emit(self, record: logging.LogRecord) -> None:
        print_line(self.format(record), "yellow" if record.levelno >= logging.WARNING else None)


def log_to_console(main: bool) -> None:
    """Send log records of `vit` to the terminal; other processes than the first one only print errors."""
    log = logging.getLogger("vit")
    log.propagate = False
    log.setLevel(logging.DEBUG)
    if not any(isinstance(handler, ConsoleHandler) for handler in log.handlers):
        log.addHandler(ConsoleHandler(logging.INFO if main else logging.ERROR))


def command(*arguments: object) -> str:
    """The shell command `python -m vit ARGUMENTS`."""
    return shlex.join([python(), "-m", "vit", *map(str, arguments)])


def python() -> str:
    """The interpreter as one would type it: `python` if that is this one, otherwise its path."""
    found = shutil.which("python")
    if found and os.path.dirname(found) == os.path.dirname(sys.executable):
        return "python"
    return os.path.relpath(sys.executable) if sys.executable.startswith(os.getcwd()) else sys.executable


class LogFile(logging.FileHandler):
    """A log file that prints its first failed write only, where `logging` prints a traceback for each."""

    error: BaseException | None = None

    def handleError(self, record: logging.LogRecord) -> None:
        if self.error is None:
            self.error = sys.exc_info()[1]
            print(f"cannot write {self.baseFilename}: {self.error}", file=sys.stderr)


class Rate(ProgressColumn):
    """Recent steps per second."""

    def render(self, task: Task) -> Text:
        if not task.speed:
            return Text("")
        return Text(f"{task.speed:,.0f}/s" if task.speed >= 10 else f"{task.speed:.1f}/s", "progress.data.speed")


def progress_bar(console: Console) -> Progress:
    """A progress bar that disappears at the end; disabled if the console is not a terminal that moves its cursor."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn()
    return Progress(*columns, console=console, transient=True, disable=not console.is_interactive)


@contextlib.contextmanager
def stage_bar(console: Console, description: str = "") -> "Iterator[StageProgress]":
    """A progress bar over several stages; yields `update(stage, done, total)`. Without a description it appears with
    the first stage, since what comes before may print on its own, as a download does.
    """
    bar, current = progress_bar(console), description
    task = bar.add_task(description, total=None)
    if description:
        bar.start()
    try:
        def update(stage: str, done: int, total: int | None) -> None:
            nonlocal current
            bar.start()
            if stage != current:  # the rate and the remaining time of a stage are not those of the next one
                bar.reset(task, description=stage, completed=done, total=total)
                current = stage
            else:
                bar.update(task, completed=done, total=total)

        yield update
    finally:
        bar.stop()
