"""A run in its own process, without devices, ports or memory of the run before."""

import subprocess
import sys
import time
from collections.abc import Callable

from vit.files.machine import STOP_SIGNALS
from vit.training.fault_tolerance.interrupts import handle_stop_signals

STOPPED = {128 + signum: signum for signum in STOP_SIGNALS}  # exit codes of a run that was stopped by a signal
POLL = 0.1  # seconds


def train_in_new_process(overrides: list[str], requested: Callable[[], int | None] | None = None) -> int:
    """Train with these overrides in a new process group; returns the exit code.

    A stop signal is passed on to the run, which saves its state and ends; this process waits for it.

    Args:
        requested: function that returns a stop signal for the run, None until there is one.
    """
    process = subprocess.Popen([sys.executable, "-m", "vit", "train", *overrides], start_new_session=True)
    with handle_stop_signals(lambda signum, frame: process.send_signal(signum)):
        while requested is not None and process.poll() is None:
            if signum := requested():
                process.send_signal(signum)
                break
            time.sleep(POLL)
        code = process.wait()
    return 128 - code if code < 0 else code  # -15 of `subprocess` is 143 in a shell
