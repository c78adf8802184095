"""A stop signal saves a checkpoint, prints how to resume, and ends the run with the exit code 128 + its number."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

from tests.faults.promise import Case, Promise
from tests.faults.tiny_training import DDP, PHASES, Fault, run
from vit.training import newest_valid

SIGNALS = ("SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP")
TARGETS = {  # receiver: (overrides, action, rank)
    "one process": ([], "signal_self", None),
    "one process, twice": ([], "signal_twice", None),
    "rank 1": (DDP, "signal_self", 1),
    "all ranks": (DDP, "signal_self", None),
    "launcher": (DDP, "signal_launcher", 0),
}


def stopped(folder: Path, name: str, phase: str, target: str, *more: str) -> None:
    signum = getattr(signal, name)
    overrides, action, rank = TARGETS[target]
    rank = 0 if phase == "test" and rank else rank  # the other ranks have ended
    started = time.monotonic()
    done = run(folder, [*overrides, *more], Fault(phase, action, signum, rank))
    seconds = time.monotonic() - started
    assert done.code == 128 + signum, f"exit code {done.code}: {done.output}"
    named = f"{name}: stopping" in done.output or f"Stopped by {name}" in done.output
    assert "Traceback" not in done.output and named, done.output
    assert seconds < 30, f"ended after {seconds:.0f} s"
    checkpoints = folder / "run" / "checkpoints"
    path, skipped = newest_valid(checkpoints)
    if phase == "start":
        begun = target == "rank 1" and "train resume=run" in done.output  # the other rank may have started already
        assert path is None and (begun or "nothing was saved" in done.output), done.output
    else:
        twice = "twice" in target and name == "SIGINT" and phase != "test"  # the second stops at once
        assert (path or twice) and not skipped, f"{skipped}: {done.output}"
        assert "Resume with:" in done.output and "train resume=run" in done.output, done.output
    assert not list(checkpoints.glob(".*.tmp")), list(checkpoints.iterdir())


def cases() -> Iterator[Case]:
    for target in TARGETS:
        for phase in PHASES:
            for name in SIGNALS:
                quick = (target, phase, name) in QUICK
                yield Case(f"{name} at {phase}, {target}", lambda folder, a=(name, phase, target): stopped(folder, *a),
                           quick)
    for accumulate in (2, 4):
        name = f"SIGTERM at training, rank 1, recipe.accumulate={accumulate}"
        yield Case(name, lambda folder, a=accumulate: stopped(
            folder, "SIGTERM", "training", "rank 1", f"recipe.accumulate={a}", "recipe.epochs=200"))


QUICK = {
    ("one process", "start", "SIGTERM"),
    ("one process", "training", "SIGUSR1"),
    ("one process, twice", "saving", "SIGHUP"),
    ("one process", "test", "SIGINT"),
    ("rank 1", "training", "SIGTERM"),
    ("launcher", "validation", "SIGINT"),
}

PROMISE = Promise("a stop signal at any time saves, prints how to resume, and exits with 128 + its number", cases)
