"""Watchdog: finds the rank of a distributed run that is dead, frozen or stuck, and its position in the code.

In every rank a thread writes heartbeats into the run's rendezvous store: a progress counter and the current line of
code. A `Watch` reads the heartbeats of all ranks, in the process that launched them, or in every rank under torchrun
or SLURM.
"""

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch.distributed import PrefixStore, Store, TCPStore

from vit.messages import error_message, list_names

INTERVAL = 1.0  # seconds between two heartbeats
FROZEN = 5.0  # seconds without a heartbeat after which a rank without progress counts as frozen
NOTICE = 60.0  # seconds after which the first wait for ranks that have not joined is printed; then twice as many
# seconds for the last heartbeat: Python 3.13 and earlier abort (SIGABRT) if a thread returns from a store at their end
LAST_BEAT = 30.0
GRACE = 5.0  # seconds after the failure of a rank in which torchrun or SLURM may end the others first
TORCH = str(Path(torch.__file__).parent)
NOT_JOINED = ("it ended with an error of its own, it was not started (SLURM starts the ranks by srun, not by sbatch "
              "alone), or its machine is lost")


def connect(store: Store) -> Store:
    """The part of a run's store with the heartbeats; each restart by torchrun has its own."""
    return PrefixStore(f"vit/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)


class Heartbeat(threading.Thread):
    """Writes the heartbeats of this rank while it trains.

    Args:
        open_store: connects to the store; this waits until the first rank has started it.
        timeout: seconds without progress after which a rank is lost.
        launched: whether a process watches the ranks; otherwise each rank watches the others, and exits when one is
            lost.
        caused_elsewhere: whether an error is the consequence of the end of another rank, which is then the cause.
    """

    def __init__(self, open_store: Callable[[], Store], rank: int, world: int, timeout: float,
                 launched: bool = False, caused_elsewhere: Callable[[Exception], bool] = lambda error: False):
        super().__init__(name="heartbeat", daemon=True)
        self.open_store, self.rank, self.world, self.timeout = open_store, rank, world, timeout
        self.steps = 0  # progress counter
        self._over, self._store, self._failure = threading.Event(), None, ""
        self._thread, self._launched, self._caused_elsewhere = threading.get_ident(), launched, caused_elsewhere
        self._first = FirstRank(timeout) if not launched and rank else None

    def __enter__(self) -> "Heartbeat":
        self.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not self._caused_elsewhere(error):
            self._failure = error_message(error)
        self._over.set()
        self.join(LAST_BEAT)

    def run(self) -> None:
        """Report the progress of this rank until the run is over, and end the process when another rank is lost."""
        number, watch = 0, None
        connecting = threading.Thread(target=self._connect, name="heartbeat store", daemon=True)
        connecting.start()
        connecting.join(INTERVAL)
        while not self._over.is_set():
            if self._store is None:
                if self._first and (text := self._first.missing(current_line(self._thread)[1])):
                    print(f"error: {text}", file=sys.stderr, flush=True)
                    os._exit(1)
            else:
                if watch is None and not self._launched:
                    watch = Watch(self._store, self.world, self.timeout, notify=print_once(self.rank == 0))
                number += 1
                with suppress(RuntimeError):  # the process of the store has ended
                    self._store.set(str(self.rank), json.dumps({"number": number, **self._beat()}))
                    if watch and (lost := watch.lost()):
                        exit_after_loss(lost, watch)
            self._over.wait(INTERVAL)
        if self._store is not None:
            last = {"number": number + 1, **self._beat(), "done": True, "failure": self._failure}
            with suppress(RuntimeError):
                self._store.set(str(self.rank), json.dumps(last))

    def _connect(self) -> None:
        """Open the store, in a thread of its own: a program that is no store and does not answer blocks it."""
        while self._store is None:
            with suppress(RuntimeError):  # its process has not started yet
                self._store = connect(self.open_store())
            if self._over.wait(0 if self._store else INTERVAL):
                break

    def _beat(self) -> dict[str, Any]:
        position, waiting = current_line(self._thread)
        return {"steps": self.steps, "position": position, "waiting": waiting, "host": socket.gethostname(),
                "pid": os.getpid(), "done": False}


class Progress(pl.Callback):
    """Counts the hooks of the trainer as progress of this rank."""

    def __init__(self, heartbeat: Heartbeat):
        self._heartbeat = heartbeat

    def _count(self, *arguments: object, **options: object) -> None:
        self._heartbeat.steps += 1

    setup = on_train_start = on_train_epoch_start = on_train_batch_start = on_before_backward = _count
    on_after_backward = on_train_batch_end = on_train_epoch_end = on_train_end = on_save_checkpoint = _count
    on_validation_start = on_validation_batch_start = on_validation_batch_end = on_validation_end = _count


class FirstRank:
    """The wait of another rank for the first one, which opens the store.

    Only the time counts in which this rank waits in a collective operation; before, it reads data, as the first may.
    """

    def __init__(self, timeout: float, clock: Callable[[], float] = time.monotonic):
        self.timeout, self.clock = timeout, clock
        self._since: float | None = None
        self._notice = NOTICE

    def missing(self, waiting: bool) -> str:
        """The error after `timeout` seconds without a store; empty before. Prints the wait now and then."""
        now = self.clock()
        if not waiting:
            self._since = None
        elif self._since is None:
            self._since = now
        waited = 0.0 if self._since is None else now - self._since
        store = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')} (MASTER_ADDR, MASTER_PORT)"
        if waited > self.timeout:
            return (f"rank 0 has not joined within {waited:.0f} s (trainer.timeout={self.timeout:g}): there is no run "
                    f"at {store}; {NOT_JOINED}")
        if waited > self._notice:
            self._notice *= 2
            print_notice(f"waiting for rank 0 at {store}, {waited:.0f} s so far; trainer.timeout={self.timeout:g} ends "
                         "the wait")
        return ""


class Watch:
    """Reads the heartbeats of all ranks and finds the lost ones.

    A rank that waits for a lost one makes no progress either. So of the ranks without progress for `timeout` seconds,
    those without heartbeats are lost; if there are none, those outside of a collective operation with the least
    progress. As long as a rank makes progress, those that wait for it are not lost. A rank that ended with an error of
    its own is lost after `GRACE` seconds.

    Args:
        notify: prints how long the ranks have waited for those that have not joined.
    """

    def __init__(self, store: Store, world: int, timeout: float, clock: Callable[[], float] = time.monotonic,
                 notify: Callable[[str], None] | None = None):
        self.store, self.world, self.timeout, self.clock = store, world, timeout, clock
        self.notify = notify or print_notice
        self.beats: dict[int, dict] = {}
        now = clock()
        self._start, self._notice, self._failed = now, NOTICE, {}
        self._heard, self._moved = dict.fromkeys(range(world), now), dict.fromkeys(range(world), now)

    def lost(self) -> dict[int, str]:
        """The lost ranks, each with a message; usually none."""
        now = self.clock()
        for rank in range(self.world):
            self._read(rank, now)
        if failed := {rank: at for rank, at in self._failed.items() if now - at >= GRACE}:
            first = min(failed, key=failed.get)
            return {first: f"{self.name(first)} failed: {self.beats[first]['failure']}"}
        self._show_wait(now)
        active = [rank for rank in range(self.world) if not self.beats.get(rank, {}).get("done")]
        if not any(now - self._moved[rank] > self.timeout for rank in active):
            return {}
        silent = [rank for rank in active if now - self._heard[rank] > min(FROZEN, self.timeout)]
        if silent:
            return {rank: f"{self.name(rank)} has given no sign of life for {now - self._heard[rank]:.0f} s: "
                          f"{self._why(rank)}" for rank in silent}
        still = [rank for rank in active if now - self._moved[rank] > self.timeout]
        busy = [rank for rank in still if not self.beats[rank]["waiting"]]
        if not busy and len(still) < len(active):
            return {}  # all of them wait for a rank that makes progress
        busy = busy or still
        least = min(self.beats[rank]["steps"] for rank in busy)
        return {rank: f"{self.name(rank)} has made no progress for {now - self._moved[rank]:.0f} s (trainer.timeout="
                      f"{self.timeout:g}); it is at {self.beats[rank]['position']}"
                for rank in busy if self.beats[rank]["steps"] == least}

    def _show_wait(self, now: float) -> None:
        """Print now and then which ranks have not joined."""
        missing = [rank for rank in range(self.world) if rank not in self.beats]
        waited = now - self._start
        if missing and waited > self._notice:
            self._notice *= 2
            ranks = f"rank{'s' * (len(missing) > 1)} {list_names(missing)} of {self.world}"
            self.notify(f"waiting for {ranks}, {waited:.0f} s so far; trainer.timeout={self.timeout:g} ends the wait")

    def name(self, rank: int) -> str:
        """The rank with its host and process id, if they are known."""
        beat = self.beats.get(rank)
        return f"rank {rank} ({beat['host']}, process {beat['pid']})" if beat else f"rank {rank}"

    def _why(self, rank: int) -> str:
        if rank in self.beats:
            return "it is frozen, or its machine is lost"
        return NOT_JOINED

    def _read(self, rank: int, now: float) -> None:
        if not self.store.check([str(rank)]):
            return
        beat, last = json.loads(self.store.get(str(rank))), self.beats.get(rank, {})
        if beat["number"] != last.get("number"):
            self._heard[rank] = now
        if beat["steps"] != last.get("steps"):
            self._moved[rank] = now
        if beat.get("failure"):
            self._failed.setdefault(rank, now)
        self.beats[rank] = beat


def print_notice(text: str) -> None:
    """Print a line to standard error."""
    print(text, file=sys.stderr, flush=True)


def print_once(printing: bool) -> Callable[[str], None]:
    """`print_notice` in the rank that prints for all of them, nothing in the others."""
    return print_notice if printing else lambda text: None


def current_line(thread: int) -> tuple[str, bool]:
    """The line that a thread executes, outside of torch if possible, and whether it waits for other ranks."""
    frame = sys._current_frames().get(thread)
    inner = frame.f_code.co_filename if frame else ""
    waiting = inner.startswith((f"{TORCH}/distributed", f"{TORCH}/autograd/graph.py"))
    while frame is not None and frame.f_back is not None and frame.f_code.co_filename.startswith(TORCH):
        frame = frame.f_back
    position = f"{frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_name})" if frame else "its end"
    return position, waiting


def store_of_environment(timeout: float) -> Store:
    """The store at MASTER_ADDR:MASTER_PORT, of torchrun's agent, of vit's launcher or of the first rank.

    Raises:
        RuntimeError: nothing listens there, or it is no store.
    """
    while "MASTER_PORT" not in os.environ:  # Lightning sets it under SLURM
        time.sleep(INTERVAL)
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    try:
        socket.create_connection((address, port), timeout=30).close()  # TCPStore prints stack frames while it waits
    except OSError as error:
        raise RuntimeError(f"there is no store at {address}:{port}: {error}") from None
    return TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=max(timeout, 30)))


def exit_after_loss(lost: dict[int, str], watch: Watch) -> None:
    """Exit, after killing the lost ranks on this machine with SIGKILL, the only signal that a frozen process obeys."""
    print(f"error: {'; '.join(lost.values())}", file=sys.stderr, flush=True)
    for rank in lost:
        beat = watch.beats.get(rank)
        if beat and not beat.get("failure") and beat["host"] == socket.gethostname() and beat["pid"] != os.getpid():
            with suppress(ProcessLookupError):
                os.kill(beat["pid"], getattr(signal, "SIGKILL", signal.SIGTERM))
    os._exit(1)
