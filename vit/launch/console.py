"""What a run says to the person in front of it."""

import logging
import os
import shutil
import sys

from rich.console import Console
from rich.logging import RichHandler

console = Console(soft_wrap=True)


def log_to_console() -> None:
    """Messages of `vit` go to the terminal, from the first process only; once, however often it is called."""
    log = logging.getLogger("vit")
    log.propagate = False
    if not log.handlers:
        log.setLevel(logging.DEBUG)
        handler = RichHandler(console=console, show_path=False, show_time=False, show_level=False, markup=False, highlighter=None)
        handler.setLevel(logging.INFO)
        log.addHandler(handler)


def python() -> str:
    """The interpreter as the person would type it: `python` where that is this one, else its path."""
    found = shutil.which("python")
    if found and os.path.realpath(found) == os.path.realpath(sys.executable) and os.path.dirname(found) == os.path.dirname(sys.executable):
        return "python"
    return os.path.relpath(sys.executable) if sys.executable.startswith(os.getcwd()) else sys.executable
