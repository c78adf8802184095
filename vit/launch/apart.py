"""A run as a process of its own: it inherits neither devices nor ports nor memory of the one before."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator

STOPPED = {130: signal.SIGINT, 143: signal.SIGTERM}  # exit codes of a run that was asked to stop


def train_apart(words: list[str]) -> int:
    """Train with these words in a process group of its own; its exit code."""
    process = subprocess.Popen([sys.executable, "-m", "vit", "train", *words], start_new_session=True)
    with signals_passed_on(process):
        return process.wait()


@contextlib.contextmanager
def signals_passed_on(process: subprocess.Popen) -> Iterator[None]:
    """Ctrl-C and SIGTERM are the run's to answer: it saves and ends, and this process waits for that."""

    def pass_on(signum: int, _: object) -> None:
        process.send_signal(signum)

    previous = {signum: signal.signal(signum, pass_on) for signum in STOPPED.values()}
    try:
        yield
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)
