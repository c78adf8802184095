"""Tiny training runs in forks, with an injected fault in the middle of a phase."""

import functools
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from tests.forking import Exit, ForkedProcess, forks

OVERRIDES = ["recipe.epochs=3", "precision=32-true", "logger=csv", "report=false", "recipe.batch_size=64",
             "model.depth=1", "run_dir=run", "trainer.accelerator=cpu"]
DDP = ["strategy=ddp", "trainer.devices=2"]
PHASES = ("start", "training", "validation", "saving", "test")


@dataclass(frozen=True)
class Fault:
    """A fault when a rank first enters a phase.

    Args:
        phase: one of PHASES.
        rank: the rank that fails; None for all.
        action: a function of this module.
        argument: its argument.
    """

    phase: str
    action: str
    argument: int = 0
    rank: int | None = None


def run(folder: Path, overrides: list[str], *faults: Fault, seconds: float = 240, **environment: str) -> Exit:
    """`python train.py OVERRIDES` in a fork with faults; kills remaining processes and raises if there are any."""
    arguments = [[*OVERRIDES, *overrides], [asdict(fault) for fault in faults]]
    environment |= {"FAULTS_FOLDER": str(folder)}
    done = forks().run("tests.faults.tiny_training:train", *arguments, folder=folder, seconds=seconds, **environment)
    left = orphans(folder)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, f"remaining processes: {left}; printed: {done.output}"
    return done


def orphans(folder: Path, patience: float = 5.0) -> list[int]:
    """Remaining processes of the run; a worker process needs some seconds to detect that its parent ended."""
    pids = [int(path.name) for path in folder.glob("pids/*")]
    end = time.monotonic() + patience
    while living := [pid for pid in pids if is_alive(pid)]:
        if time.monotonic() > end:
            break
        time.sleep(0.1)
    return living


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


# the functions below run in the fork


def train(overrides: list[str], faults: list[dict]) -> int:
    import vit.run.processes.launcher
    from vit.run.command import main

    os.register_at_fork(after_in_child=remember_process)
    remember_process()
    vit.run.processes.launcher.start = lambda overrides, environment: ForkedProcess(
        functools.partial(rank, overrides, faults), os.environ | environment)
    if not any(override.startswith("strategy=") for override in overrides):
        inject(faults)
    return main(overrides)


def remember_process() -> None:
    folder = Path(os.environ["FAULTS_FOLDER"]) / "pids"
    folder.mkdir(exist_ok=True)
    (folder / str(os.getpid())).touch()


def rank(overrides: list[str], faults: list[dict]) -> int:
    from vit.run.processes.rank import main

    inject(faults)
    return main(overrides)


def inject(faults: list[dict]) -> None:
    """Patches the function of each fault's phase, in this rank."""
    from vit.run import training_run as running
    from vit.run.jobs.classification import ImageClassificationJob
    from vit.tasks.classification import Classification
    from vit.training import Checkpoints

    rank = int(os.environ.get("RANK", 0))
    patched_functions = {
        "start": (running, "build_job", 1),
        "training": (Classification, "training_step", 5),
        "validation": (Classification, "validation_step", 2),
        "saving": (torch, "save", 2) if rank == 0 else (Checkpoints, "save_last", 2),
        "test": (ImageClassificationJob, "test", 1),
    }
    for fault in (Fault(**values) for values in faults):
        if fault.rank in (None, rank):
            at_call(*patched_functions[fault.phase], functools.partial(globals()[fault.action], fault.argument))


def at_call(owner: object, name: str, number: int, action: Callable[[], None]) -> None:
    """Calls `action` once, in the middle of the number-th call of a function."""
    original, calls = getattr(owner, name), 0

    @functools.wraps(original)
    def patched(*arguments, **options):
        nonlocal calls
        calls += 1
        if calls == number:
            (Path(os.environ["FAULTS_FOLDER"]) / "injected").touch()
            action()
        return original(*arguments, **options)

    setattr(owner, name, patched)


def signal_self(signum: int) -> None:
    os.kill(os.getpid(), signum)


def signal_twice(signum: int) -> None:
    """Sends the signal twice; the second one arrives while the run is saving, ending or still in the step."""
    threading.Timer(0.3, os.kill, (os.getpid(), signum)).start()
    os.kill(os.getpid(), signum)


def signal_launcher(signum: int) -> None:
    os.kill(int(os.environ["VIT_LAUNCHER"]), signum)
    time.sleep(0.5)


def fail(_: int) -> None:
    raise ValueError("a fault of this rank")


def run_out_of_memory(_: int) -> None:
    raise MemoryError("the memory of this rank")


def end_process(code: int) -> None:
    os._exit(code)


def loop(_: int) -> None:
    while True:
        time.sleep(0.01)


def loop_without_sleep(_: int) -> None:
    while True:
        pass
