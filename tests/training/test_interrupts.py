"""Stop signals: what becomes of an error that follows one."""

import io
import os
import signal
import sys
import threading
import time

import numpy as np
import pytest

from tests.forking import forks
from vit.data import ImageDataset, Preprocessing, TrainBatches
from vit.data.splits.split import array_split
from vit.training.fault_tolerance.interrupts import (
    Interrupted,
    StopSignals,
    Terminated,
    find_stop,
    stop_signals_as_interrupts,
)


def stop_inside_a_library():
    """A library that raises an error of its own at an interruption, as OmegaConf may."""
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        signal.sigtimedwait([], 0.01)  # the handler runs between two instructions
    finally:
        raise AttributeError("broken in the middle")


def wait_for_a_signal():
    """At most five seconds in short pieces: a signal that another thread receives does not end a sleep."""
    for _ in range(500):
        time.sleep(0.01)


def test_an_error_after_an_immediate_stop_is_the_stop():
    with pytest.raises(Interrupted) as caught, StopSignals(verbose=False).handled():
        stop_inside_a_library()
    assert caught.value.code == 128 + signal.SIGTERM and isinstance(caught.value.__cause__, AttributeError)


def test_a_stop_inside_a_finalizer_is_not_lost(capfd):
    """Python drops what a finalizer raises."""

    class Finalized:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGTERM)
            signal.sigtimedwait([], 0.01)

    signals = StopSignals()
    with pytest.raises(Interrupted), signals.handled():
        Finalized()
        wait_for_a_signal()
    assert signals.requested == signal.SIGTERM and capfd.readouterr().err == "\nSIGTERM: stopping\n"


@pytest.mark.parametrize("fails", [True, False])
def test_what_follows_a_stop_inside_a_finalizer_at_once_is_the_stop(fails):
    """Before the stop is repeated, which would then interrupt whatever runs after the context."""

    class Finalized:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGTERM)
            signal.sigtimedwait([], 0.01)

    before = threading.active_count()
    with pytest.raises(Interrupted) as caught, StopSignals(verbose=False).handled():
        Finalized()
        if fails:
            raise AttributeError("module 'numpy' has no attribute 'nonzero'")
    assert caught.value.code == 128 + signal.SIGTERM and isinstance(caught.value.__cause__, AttributeError) == fails
    time.sleep(0.1)  # a repeated signal would end the process
    assert threading.active_count() == before


def test_a_command_without_a_state_is_interrupted_by_a_stop_signal_once():
    """`timeout` sends two."""
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Terminated) as caught, stop_signals_as_interrupts():
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)
    assert caught.value.signal == signal.SIGTERM and signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("case", ["late", "fork"])
def test_a_late_second_stop_signal_and_one_to_a_fork_end_the_process(case, tmp_path):
    assert forks().run(f"tests.training.test_interrupts:{case}", folder=tmp_path).code == -signal.SIGTERM


def late():
    from vit.training.fault_tolerance import interrupts

    interrupts.REPEATED = 0.0
    with interrupts.stop_signals_as_interrupts():
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            time.sleep(0.01)
            signal.raise_signal(signal.SIGTERM)


def fork():
    with stop_signals_as_interrupts():
        child = os.fork()
        if child == 0:
            signal.raise_signal(signal.SIGTERM)
            os._exit(0)
    os.kill(os.getpid(), -os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def test_a_second_ctrl_c_inside_a_finalizer_stops_at_once():
    class Finalized:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGINT)
            signal.sigtimedwait([], 0.01)

    signals = StopSignals(verbose=False)
    with pytest.raises(Interrupted), signals.handled():
        signals.deferred = True
        signals.handle(signal.SIGINT, None)
        Finalized()
        wait_for_a_signal()


def test_the_hook_of_finalizers_is_restored_after_overlapping_threads():
    before, entered, ended = sys.unraisablehook, threading.Event(), threading.Event()

    def first():
        with StopSignals(verbose=False).handled():
            entered.set()
            ended.wait(5)

    def second():
        with StopSignals(verbose=False).handled():
            ended.set()
            threads[0].join(5)

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    entered.wait(5)
    threads[1].start()
    threads[1].join(5)
    assert sys.unraisablehook is before


def test_other_errors_stay():
    signals = StopSignals(verbose=False)
    with pytest.raises(AttributeError), signals.handled():
        raise AttributeError
    signals.deferred = True
    with pytest.raises(AttributeError, match="broken"), signals.handled():
        stop_inside_a_library()
    assert signals.requested == signal.SIGTERM


class StoppedWhileWriting(io.RawIOBase):
    """A stream that a stop signal interrupts in its first write, as the progress bar may be."""

    def __init__(self):
        super().__init__()
        self.interrupted, self.written = False, b""

    def writable(self):
        return True

    def write(self, data):
        if not self.interrupted:
            self.interrupted = True
            os.kill(os.getpid(), signal.SIGTERM)
            signal.sigtimedwait([], 0.01)  # the handler runs between two instructions
        self.written += bytes(data)
        return len(data)


def test_a_stop_signal_inside_a_write_to_the_terminal(monkeypatch):
    stream, others = StoppedWhileWriting(), set(threading.enumerate())
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BufferedWriter(stream), line_buffering=True))
    signals = StopSignals()
    signals.deferred = True
    with signals.handled():
        print("progress", file=sys.stderr)
    for thread in set(threading.enumerate()) - others:
        thread.join(10)
    assert signals.requested == signal.SIGTERM
    assert stream.written.decode() == "progress\n\nSIGTERM: stopping after this step and saving\n"


def load_with_signalled_worker(name: str) -> None:
    """In a fork: prints how many samples are loaded by a worker that starts with a signal."""
    os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), getattr(signal, name)))
    images = array_split(np.zeros((8, 8, 8, 3), np.uint8), np.arange(8) % 2, "zeros")
    with StopSignals().handled():
        batches = TrainBatches(ImageDataset(images, Preprocessing(size=8)), 4, seed=0, workers=1)
        print(sum(len(batch["index"]) for batch in batches))
        batches.close()


@pytest.mark.skipif(not hasattr(os, "register_at_fork"), reason="no fork on Windows")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_stop_signal_in_the_first_moment_of_a_worker_is_ignored(name, tmp_path):
    """The signal of a terminal reaches all processes of a run; only the main process handles it."""
    done = forks().run("tests.training.test_interrupts:load_with_signalled_worker", name, folder=tmp_path)
    assert (done.code, done.output.strip()) == (0, "8")


def test_the_stop_behind_an_error_of_a_library_is_found():
    stop = Interrupted(signal.SIGTERM, agreed=False)
    caused, during, other = ValueError("library"), ValueError("finally"), ValueError("other")
    caused.__cause__, during.__context__ = stop, caused
    assert find_stop(stop) is find_stop(caused) is find_stop(during) is stop
    assert find_stop(other) is None and find_stop(None) is None
