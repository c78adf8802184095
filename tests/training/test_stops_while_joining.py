"""A stop signal while a process waits in C++ for other ranks, where Python does not run its handlers."""

import datetime
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from torch.distributed import DistStoreError, TCPStore

from tests.forking import Exit, forks
from vit.training.fault_tolerance.interrupts import StopSignals
from vit.training.fault_tolerance.stops_while_joining import stops_while_joining


def wait_for_ranks(case: str) -> None:
    """In a fork: a wait of three seconds for a rank that does not come; a signal arrives after half a second."""
    signals = StopSignals()
    signals.begun = signals.deferred = case == "begun"
    with signals.handled(), stops_while_joining(signals, grace=0.5):
        pid = os.getpid()
        if case in ("worker", "lasting") and not (pid := os.fork()):
            if case == "lasting":
                os.close(1), os.close(2)
            time.sleep(600) if case == "lasting" else signal.pause()
            os._exit(0)
        if case != "lasting":
            threading.Timer(0.5, os.kill, [pid, signal.SIGUSR1]).start()
        try:
            TCPStore("127.0.0.1", 0, 2, is_master=True, timeout=datetime.timedelta(seconds=3))
        except DistStoreError:
            print("the wait has ended")
    if case == "lasting":
        os.kill(pid, signal.SIGKILL)


def end(case: str, folder: Path) -> Exit:
    return forks().run("tests.training.test_stops_while_joining:wait_for_ranks", case, folder=folder, RANK="0")


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_a_stop_ends_the_wait_for_ranks_that_may_never_come(tmp_path):
    done = end("beginning", tmp_path)
    assert done.code == 128 + signal.SIGUSR1 and "SIGUSR1: stopping" in done.output and "wait" not in done.output


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize("case", ["begun", "worker", "lasting"])
def test_a_wait_goes_on_in_training_and_after_a_signal_to_another_process(case, tmp_path):
    """In training the ranks agree on the step; a forked process has the signals' file of this one, and may outlast its
    use.
    """
    done = end(case, tmp_path)
    assert done.code == 0 and "the wait has ended" in done.output, done.output
