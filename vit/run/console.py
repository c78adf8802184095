"""What a run says to the person in front of it."""

import logging
import os
import shlex
import shutil
import sys

from rich.console import Console

console = Console()


class ConsoleHandler(logging.Handler):
    """Log lines above the progress bar, unwrapped, as they are."""

    def emit(self, record: logging.LogRecord) -> None:
        style = "yellow" if record.levelno >= logging.WARNING else None
        console.print(self.format(record), style=style, markup=False, highlight=False, soft_wrap=True)


def log_to_console(main: bool) -> None:
    """Messages of `vit` go to the terminal, from the first process only; once, however often it is called."""
    log = logging.getLogger("vit")
    log.propagate = False
    log.setLevel(logging.DEBUG)
    if not any(isinstance(handler, ConsoleHandler) for handler in log.handlers):
        log.addHandler(ConsoleHandler(logging.INFO if main else logging.ERROR))


def command(*arguments: object) -> str:
    """`python -m vit WORDS`, ready to be copied."""
    return shlex.join([python(), "-m", "vit", *map(str, arguments)])


def python() -> str:
    """The interpreter as the person would type it: `python` where that is this one, else its path."""
    found = shutil.which("python")
    if found and os.path.dirname(found) == os.path.dirname(sys.executable):
        return "python"
    return os.path.relpath(sys.executable) if sys.executable.startswith(os.getcwd()) else sys.executable


class LogFile(logging.FileHandler):
    """A log file whose first failed write is printed; `logging` prints a traceback for each and goes on."""

    error: BaseException | None = None

    def handleError(self, record: logging.LogRecord) -> None:
        if self.error is None:
            self.error = sys.exc_info()[1]
            print(f"cannot write {self.baseFilename}: {self.error}", file=sys.stderr)
