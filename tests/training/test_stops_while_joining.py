"""A stop signal while a process waits in C++ for other ranks, where Python does not run its handlers."""

import os
import signal
import subprocess
import sys

import pytest

SCRIPT = """
import datetime, os, signal, sys, threading, time
from torch.distributed import TCPStore
from vit.training.fault_tolerance.interrupts import StopSignals
from vit.training.fault_tolerance.stops_while_joining import stops_while_joining

signals = StopSignals()
signals.begun = signals.deferred = "begun" in sys.argv
with signals.handled(), stops_while_joining(signals, grace=0.5):
    pid = os.getpid()
    if "worker" in sys.argv:
        pid = os.fork()
        if pid == 0:
            signal.pause()
    if "lasting" in sys.argv:
        pid = os.fork()
        if pid == 0:
            os.close(1), os.close(2), time.sleep(600), os._exit(0)
    else:
        threading.Timer(0.5, os.kill, [pid, signal.SIGUSR1]).start()
    try:
        TCPStore("127.0.0.1", 0, 2, is_master=True, timeout=datetime.timedelta(seconds=3))
    except Exception as error:
        print(type(error).__name__)
if "lasting" in sys.argv:
    os.kill(pid, signal.SIGKILL)
"""


def end(*arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-c", SCRIPT, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, "RANK": "0"})
    return done.returncode, done.stdout + done.stderr


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_a_stop_ends_the_wait_for_ranks_that_may_never_come():
    code, output = end()
    assert code == 128 + signal.SIGUSR1 and "SIGUSR1: stopping" in output and "Error" not in output


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize("case", ["begun", "worker", "lasting"])
def test_a_wait_goes_on_in_training_and_after_a_signal_to_another_process(case):
    """In training the ranks agree on the step; a forked process has the signals' file of this one, and may outlast its
    use.
    """
    code, output = end(case)
    assert code == 0 and "DistStoreError" in output, output
