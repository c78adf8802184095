"""The processes of a distributed run on this machine: started, watched and ended together.

A small torchrun, with the same environment variables. In addition a signal to this process or to any rank stops the
run with a checkpoint; a rank that dies, fails, freezes or hangs is named and ends the run; and no process is left over.
Each rank leads its own session, so that Ctrl-C in a terminal reaches this process only, and a rank is killed together
with its loading workers.
"""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from vit.data import DataError
from vit.files.machine import STOP_SIGNALS, threads_per_process
from vit.run.config.composing import ConfigError
from vit.training.fault_tolerance.interrupts import Interrupted, handle_stop_signals

if TYPE_CHECKING:
    from torch.distributed import Store

    from vit.run.parts.devices import Devices
    from vit.training.fault_tolerance.watchdog import Watch

RUN_DIR, LAUNCHER = "VIT_RUN_DIR", "VIT_LAUNCHER"
POLL = 0.1  # seconds
GRACE = 5.0  # seconds for the other ranks to end by themselves when one has ended
LOST_PEER = 75  # exit code of a rank whose connection to another one broke: a consequence, not a cause
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)


class RankError(ChildProcessError):
    """A rank failed, died or hung; the message names it."""


@dataclass
class Rank:
    """A rank on this machine: its global number and its process."""

    number: int
    process: subprocess.Popen

    @property
    def signal(self) -> int | None:
        """The stop signal that ended it; None otherwise."""
        code = self.process.poll()
        return next((s for s in STOP_SIGNALS if code in (-s, 128 + s)), None) if code else None

    def send(self, signum: int) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signum)

    def kill(self) -> None:
        """Kill it and its loading workers, which may outlive it."""
        if os.name == "posix":
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, KILL)
        elif self.process.poll() is None:
            self.process.kill()


@dataclass(frozen=True)
class Failure:
    """Why a rank ended: the exception that it reported, or the way its process ended."""

    rank: str
    code: int
    text: str
    kind: str = ""

    def error(self, everywhere: bool) -> Exception:
        """The exception to raise; it names the rank unless all ranks report the same error."""
        if everywhere:
            return {"ConfigError": ConfigError, "DataError": DataError}.get(self.kind, RankError)(self.text)
        return RankError(f"{self.rank} {self.text if not self.kind else f'failed: {self.text}'}")


def is_launched() -> bool:
    """Whether this process is a rank that a launcher started. The single task of a SLURM job is not such a rank: it
    starts the ranks for the devices of its machine itself.
    """
    from lightning_fabric.plugins.environments import LSFEnvironment, MPIEnvironment, SLURMEnvironment

    if "RANK" in os.environ or "LOCAL_RANK" in os.environ or is_task_of_step():
        return True
    slurm = SLURMEnvironment.detect() and os.environ["SLURM_NTASKS"] != "1"
    return slurm or any(environment.detect() for environment in (LSFEnvironment, MPIEnvironment))


def is_task_of_step() -> bool:
    """Whether this process is one of several tasks of a call of `srun`, which are ranks also in a job named bash or
    interactive, such as that of `salloc`. Lightning regards every process of such a job as started by hand.
    """
    several = os.environ.get("SLURM_STEP_NUM_TASKS", "1") != "1"
    return several and {"SLURM_PROCID", "SLURM_NTASKS"} <= os.environ.keys() and not in_shell_of_srun()


def in_shell_of_srun() -> bool:
    """Whether this process was started in the shell of `srun --pty bash`, the only one of its tasks that remains."""
    task = os.environ.get("SLURM_TASK_PID", "")
    if task == str(os.getpid()):
        return False
    try:
        return os.readlink(f"/proc/{task}/fd/0").startswith("/dev/pts/")
    except OSError:  # a container with process ids of its own
        return False


def first_node(nodes: int) -> bool:
    """Whether this machine is the first of `nodes` machines, each of which was started by its own command."""
    return nodes == 1 or is_launched() or os.environ.get("NODE_RANK", "0") == "0"


def run_ranks(overrides: list[str], devices: "Devices", folder: pathlib.Path, timeout: float | None) -> None:
    """Train with these overrides in `devices.number` processes. The run folder is that of the first node: each node
    would name a new one by its own clock.

    Raises:
        Interrupted: a stop signal to this process or to a rank.
        ConfigError, DataError: the same error in all ranks.
        RankError: a rank failed.
        RuntimeError: this process is a rank itself; otherwise each of them would start more.
    """
    if LAUNCHER in os.environ:
        raise RuntimeError("a rank starts no ranks")
    store, environment = rendezvous(devices)
    node = int(environment["GROUP_RANK"])
    if node == 0:
        store.set(RUN_DIR, str(folder.resolve()))
    environment |= {RUN_DIR: store.get(RUN_DIR).decode(), **threads_per_process(devices.number)}
    ranks: list[Rank] = []
    with ended_together(ranks):
        for local in range(devices.number):
            number = node * devices.number + local
            ranks.append(Rank(number, start(overrides, environment | {"RANK": str(number), "LOCAL_RANK": str(local)})))
        supervise(ranks, store, watch_of(store, devices.world, timeout))


def start(overrides: list[str], environment: dict[str, str]) -> subprocess.Popen:
    """Start a rank as the leader of its own session."""
    command = [sys.executable, "-m", "vit.run.processes.rank", *overrides]
    variables = {**os.environ, **environment}
    return subprocess.Popen(command, env=variables, stdin=subprocess.DEVNULL, start_new_session=True)


def rendezvous(devices: "Devices") -> tuple["Store", dict[str, str]]:
    """The store where ranks meet, and the variables that lead to it (torchrun's).

    On one machine the system selects a free port, so that two runs never share one, and MASTER_PORT is ignored; on
    several machines MASTER_ADDR, MASTER_PORT and NODE_RANK must be set on each.

    Raises:
        ConfigError: they are not set.
    """
    from torch.distributed import TCPStore

    node, address, port = 0, "127.0.0.1", 0
    if devices.nodes > 1:
        try:
            node, address, port = (int(os.environ["NODE_RANK"]), os.environ["MASTER_ADDR"],
                                   int(os.environ["MASTER_PORT"]))
        except (KeyError, ValueError):
            raise ConfigError(
                f"trainer.num_nodes={devices.nodes}: set MASTER_ADDR, MASTER_PORT and NODE_RANK on each machine, or "
                "start the ranks with torchrun or srun"
            ) from None
    store = TCPStore(address, port, is_master=node == 0, wait_for_workers=False, timeout=timedelta(minutes=10))
    return store, {
        "MASTER_ADDR": address, "MASTER_PORT": str(store.port), "WORLD_SIZE": str(devices.world),
        "LOCAL_WORLD_SIZE": str(devices.number), "GROUP_RANK": str(node), "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_RUN_ID": "vit", LAUNCHER: str(os.getpid()),
    }


def watch_of(store: "Store", world: int, timeout: float | None) -> "Watch | None":
    """The watch over the heartbeats of all ranks; None without a timeout."""
    from vit.training.fault_tolerance.watchdog import Watch, connect

    return Watch(connect(store), world, timeout) if timeout else None


@contextlib.contextmanager
def ended_together(ranks: list[Rank]) -> Iterator[None]:
    """Kill all ranks and their loading workers at the end, also after an error."""
    try:
        yield
    finally:
        for rank in ranks:
            rank.kill()
        for rank in ranks:
            rank.process.wait()


def supervise(ranks: list[Rank], store: "Store", watch: "Watch | None") -> None:
    """Wait for the ranks. A stop signal is passed on to them; if one fails or hangs, all are ended.

    Raises:
        RankError, ConfigError, DataError, Interrupted: as `run_ranks`.
    """
    stops: list[int] = []

    def forward(signum: int, frame: object = None) -> None:
        stops.append(signum)
        for rank in ranks:
            rank.send(signum)

    lost: dict[int, str] = {}
    deadline, checked_at = float("inf"), time.monotonic()
    with handle_stop_signals(forward):
        while any(rank.process.poll() is None for rank in ranks) and time.monotonic() < deadline and not lost:
            time.sleep(POLL)
            if deadline == float("inf") and (any(rank.process.poll() for rank in ranks) or stops[1:]):
                deadline = time.monotonic() + GRACE
                if not stops and (first := next((rank for rank in ranks if rank.signal), None)):
                    print(f"{signal.Signals(first.signal).name}: stopping, because a rank received it", file=sys.stderr)
                    forward(first.signal)
            if watch and deadline == float("inf") and time.monotonic() - checked_at > 1:
                lost, checked_at = watch.lost(), time.monotonic()
    raise_failure(ranks, store, lost, stops)


def raise_failure(ranks: list[Rank], store: "Store", lost: dict[int, str], stops: list[int]) -> None:
    """Raises the error that the exit codes of the ranks mean; returns if all of them finished."""
    if lost:
        raise RankError("; ".join(lost.values()))
    failures = [found for rank in ranks if (found := failure(rank, store))]
    if causes := [found for found in failures if found.code != LOST_PEER]:
        raise causes[0].error(everywhere=len({found.text for found in causes}) == 1 and len(causes) == len(ranks) > 1)
    if signum := next((s for rank in ranks if (s := rank.signal)), None):
        raise Interrupted(signum, agreed=True)
    if stops and any(rank.process.poll() != 0 for rank in ranks):
        raise Interrupted(stops[0], agreed=False)
    if failures:
        peer = "each other" if failures[1:] else "another rank"
        raise RankError(f"{' and '.join(found.rank for found in failures)} lost the connection to {peer}")


def failure(rank: Rank, store: "Store") -> Failure | None:
    """Why this rank failed; None if it finished, was stopped or is still running."""
    code, name = rank.process.poll(), f"rank {rank.number} ({socket.gethostname()}, process {rank.process.pid})"
    if store.check([f"failure/{rank.number}"]):
        return Failure(name, code or 1, **json.loads(store.get(f"failure/{rank.number}")))
    if not code or rank.signal:
        return None
    if code > 0:
        return Failure(name, code, f"exited with code {code} and without a message")
    why = ", as the system does when memory runs out" if code == -KILL else ""
    return Failure(name, code, f"was killed by {signal.Signals(-code).name}{why}")
