"""A run as a process of its own: it inherits neither devices nor ports nor memory of the one before."""

import subprocess
import sys

from vit.training.interrupts import SIGNALS, handled

STOPPED = {128 + signum: signum for signum in SIGNALS}  # exit codes of a run that was asked to stop


def train_apart(overrides: list[str]) -> int:
    """Train with these overrides in a process group of its own; its exit code.

    A stop signal goes on to the run, which saves and ends, and this process waits for that.
    """
    process = subprocess.Popen([sys.executable, "-m", "vit", "train", *overrides], start_new_session=True)
    with handled(lambda signum, frame: process.send_signal(signum)):
        code = process.wait()
    return 128 - code if code < 0 else code  # -15 is how Python counts what every shell calls 143
