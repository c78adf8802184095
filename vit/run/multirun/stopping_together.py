"""Stopping the runs of a sweep whose launcher starts several at the same time: each saves its state before one ends.

The launcher kills its processes, and with them their runs, as soon as the sweep ends or a run of it is stopped. Stop
signals therefore reach the process of the sweep only. It requests the stop of the runs with a file in the folder of the
sweep and waits for them.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from omegaconf import DictConfig

from vit.files.machine import is_alive, stop_signals_blocked
from vit.training.fault_tolerance.interrupts import Interrupted, handle_stop_signals

STOP, RUNNING = ".sweep_stop", ".sweep_running_{}"  # files in the folder of the sweep, until it ends
POLL = 0.1  # seconds


def starts_processes(launcher: DictConfig) -> bool:
    """Whether a launcher of Hydra starts runs in several processes of this machine, which it kills when it ends."""
    return str(launcher.get("_target_")).startswith("hydra_plugins.hydra_joblib_launcher")


@dataclass(frozen=True)
class StopTogether:
    """The stop of all runs of a sweep; copies of it in other processes share the files.

    Args:
        folder: folder of the sweep, an absolute path.
        process: id of the process of the sweep.
    """

    folder: Path
    process: int = field(default_factory=os.getpid)

    @contextlib.contextmanager
    def handled(self) -> Iterator[None]:
        """Context manager of the process of the sweep: a stop signal stops all runs. Ctrl-C while they are saving ends
        them at once.

        Raises:
            Interrupted: on a stop signal, when the runs have saved their state.
        """
        waiting = []

        def handle(signum: int, frame: FrameType | None) -> None:
            if waiting and signum != signal.SIGINT:
                return
            if not waiting:
                waiting.append(signum)
                self.request(signum)
                self.wait()
                waiting.clear()
            raise Interrupted(signum, agreed=False)

        self._remove_files()
        try:
            with handle_stop_signals(handle), only_this_process(), started_with(self.end_with_sweep):
                yield
        finally:
            self._remove_files()

    @contextlib.contextmanager
    def one_run(self, number: int) -> Iterator[None]:
        """Context manager of the process of one run, inside which `wait` waits for the run.

        Raises:
            SystemExit: the sweep is being stopped.
        """
        file = self.folder / RUNNING.format(number)
        file.write_text(str(os.getpid()), encoding="utf-8")  # before the check, so that `wait` misses no run
        try:
            if signum := self.requested():
                raise SystemExit(128 + signum)
            yield
        finally:
            file.unlink(missing_ok=True)

    def request(self, signum: int) -> None:
        """Ask all runs to stop as on this signal."""
        if not self.folder.is_dir():  # none has started
            return
        new = self.folder / f"{STOP}_{os.getpid()}"
        new.write_text(str(int(signum)), encoding="utf-8")
        new.replace(self.folder / STOP)

    def requested(self) -> int | None:
        """The signal of a requested stop, SIGTERM if the sweep was killed; None if no stop is requested."""
        try:
            return int((self.folder / STOP).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None if is_alive(self.process) else int(signal.SIGTERM)

    def wait(self) -> None:
        """Wait until no run is running."""
        while any(map(is_running, self.folder.glob(RUNNING.format("*")))):
            time.sleep(POLL)

    def end_with_sweep(self) -> None:
        """Start a thread that ends this process of the launcher once that of the sweep has been killed and no run is
        running. joblib would let it wait 5 minutes for another run. No effect on Windows, where the id of the parent
        does not change.
        """
        if sys.platform != "win32":
            threading.Thread(target=self._end_after_sweep, name="sweep", daemon=True).start()

    def _end_after_sweep(self) -> None:
        while os.getppid() == self.process:
            time.sleep(POLL)
        self.wait()
        os._exit(1)

    def _remove_files(self) -> None:
        for file in (*self.folder.glob(RUNNING.format("*")), *self.folder.glob(f"{STOP}*")):
            file.unlink(missing_ok=True)


def is_running(file: Path) -> bool:
    """Whether the process that wrote its id into this file is alive."""
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    return not text or is_alive(int(text))  # empty: it is being written


@contextlib.contextmanager
def only_this_process() -> Iterator[None]:
    """Context manager: processes that are started inside begin with the stop signals blocked. This process receives
    them in a thread of its own, and runs their handlers in the main thread as usual.
    """
    start_resource_trackers()
    ended = threading.Event()
    threading.Thread(target=ended.wait, daemon=True).start()
    try:
        with stop_signals_blocked():
            yield
    finally:
        ended.set()


@contextlib.contextmanager
def started_with(function: Callable[[], None]) -> Iterator[None]:
    """Context manager: processes that joblib starts inside call `function` first."""
    from joblib.parallel import BACKENDS, register_parallel_backend

    loky = BACKENDS["loky"]

    class Loky(loky):
        def configure(self, *arguments, **options):
            return super().configure(*arguments, **options, initializer=function)

    register_parallel_backend("loky", Loky)  # the launcher names this backend
    try:
        yield
    finally:
        register_parallel_backend("loky", loky)


def start_resource_trackers() -> None:
    """Start the helper processes of multiprocessing and loky, whose start unblocks signals, unless they are running."""
    if sys.platform == "win32":
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()
    with contextlib.suppress(ImportError):
        from joblib.externals.loky.backend.resource_tracker import ensure_running

        ensure_running()
