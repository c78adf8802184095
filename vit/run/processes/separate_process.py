"""A run in its own process, without devices, ports or memory of the run before."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from vit.files.machine import STOP_SIGNALS
from vit.training.fault_tolerance.interrupts import handle_stop_signals

STOPPED = {128 + signum: signum for signum in STOP_SIGNALS}  # exit codes of a run that was stopped by a signal
PARENT = "VIT_PARENT"  # environment variable of the run: the id of the process that started it
POLL = 0.1  # seconds


def train_in_new_process(overrides: list[str], requested: Callable[[], int | None] | None = None) -> int:
    """Train with these overrides in a new process group; returns the exit code.

    A stop signal is passed on to the run, which saves its state and ends; this process waits for it. The run also
    saves its state and ends if this process is killed.

    Args:
        requested: function that returns a stop signal for the run, None until there is one.
    """
    process = subprocess.Popen([sys.executable, "-m", "vit", "train", *overrides], start_new_session=True,
                               env={**os.environ, PARENT: str(os.getpid())})
    with handle_stop_signals(lambda signum, frame: process.send_signal(signum)):
        while requested is not None and process.poll() is None:
            if signum := requested():
                process.send_signal(signum)
                break
            time.sleep(POLL)
        code = process.wait()
    return 128 - code if code < 0 else code  # -15 of `subprocess` is 143 in a shell


def is_of_another_command() -> bool:
    """Whether this process is about to train a run of a comparison or sweep, whose command reports that it is stopped.
    False once the run has begun, which says itself how to resume it.
    """
    return PARENT in os.environ


def stop_with_parent(parent: int, grace: float | None = None) -> None:
    """Start a thread that stops this process with SIGTERM when the process `parent`, which started it, has ended. No
    effect on Windows, where the id of the parent does not change.

    Args:
        grace: seconds after which the process group is killed if this process has not ended; None to wait for it.
    """
    if sys.platform != "win32":
        threading.Thread(target=_stop_after, args=[parent, grace], name="parent", daemon=True).start()


def _stop_after(parent: int, grace: float | None) -> None:
    """Wait until the parent of this process is another one than `parent`, then stop this process."""
    while os.getppid() == parent:
        time.sleep(POLL)
    if os.environ.get("RANK", "0") == "0":
        with contextlib.suppress(OSError):  # the terminal may have closed too
            print(f"\nprocess {parent}, which started this run, has ended", file=sys.stderr)
    os.kill(os.getpid(), signal.SIGTERM)
    if grace is not None:
        time.sleep(grace)
        os.killpg(0, signal.SIGKILL)
