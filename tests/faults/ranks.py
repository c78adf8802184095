"""A rank that fails, dies, freezes or hangs ends the run, is named, and leaves nothing behind."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

from tests.faults.promise import Case, Promise
from tests.faults.tiny_training import DDP, Fault, run
from vit.training import newest_valid

TIMEOUT = 10  # trainer.timeout
FAULTS = {  # name: (action, its argument, in the message)
    "exception": ("fail", 0, "a fault of this rank"),
    "exit": ("end_process", 1, "exited with code 1"),
    "SIGKILL": ("signal_self", signal.SIGKILL, "was killed by SIGKILL"),
    "SIGSTOP": ("signal_self", signal.SIGSTOP, "has given no sign of life for"),
    "loop": ("loop_without_sleep", 0, "has made no progress for"),
    "MemoryError": ("run_out_of_memory", 0, "out of memory"),
}
HANGS = ("SIGSTOP", "loop")


def lost(folder: Path, name: str, rank: int, phase: str) -> None:
    action, argument, text = FAULTS[name]
    done = run(folder, [*DDP, f"trainer.timeout={TIMEOUT}"], Fault(phase, action, argument, rank))
    seconds = time.time() - (folder / "injected").stat().st_mtime
    assert done.code == 1, f"exit code {done.code}: {done.output}"
    assert f"error: rank {rank} (" in done.output and text in done.output, done.output
    assert f"error: rank {1 - rank} (" not in done.output, done.output
    assert seconds < 15 + TIMEOUT * (name in HANGS), f"ended {seconds:.0f} s after the fault"
    path, skipped = newest_valid(folder / "run" / "checkpoints")
    assert not skipped and (phase == "start" or "train resume=run" in done.output), done.output
    assert path or phase != "saving", "no checkpoint"


def lost_launcher(folder: Path, timeout: object) -> None:
    """All ranks save and end."""
    fault = Fault("training", "signal_launcher", signal.SIGKILL, 1)
    done = run(folder, [*DDP, f"trainer.timeout={timeout}", "recipe.epochs=500"], fault)
    assert done.code == -signal.SIGKILL, f"exit code {done.code}: {done.output}"
    path, skipped = newest_valid(folder / "run" / "checkpoints")
    assert path and not skipped, f"{skipped}: {done.output}"


def cases() -> Iterator[Case]:
    for timeout in ("null", TIMEOUT):
        yield Case(f"SIGKILL of the launcher, trainer.timeout={timeout}",
                   lambda folder, t=timeout: lost_launcher(folder, t), quick=timeout == "null")
    for name in FAULTS:
        for rank in (0, 1):
            for phase in ("start", "training", "validation", "saving"):
                yield Case(f"{name} at {phase}, rank {rank}", lambda folder, a=(name, rank, phase): lost(folder, *a),
                           quick=(name, rank, phase) in QUICK)


QUICK = {("exception", 1, "training"), ("SIGKILL", 0, "validation"), ("SIGSTOP", 1, "training")}

PROMISE = Promise("a rank that fails, dies, freezes or hangs ends the run, is named, and leaves nothing behind", cases)
