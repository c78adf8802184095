"""A run that is killed at any moment resumes and ends with the same bits as one that was never killed."""

import hashlib
import os
import random
import signal
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.faults.file_faults import CRASHED, fault_exit, operations_of
from tests.faults.promise import Case, Promise
from tests.faults.resume import DIGITS, digests, shared
from tests.forking import Exit, forks, kill_group

OVERRIDES = [*DIGITS, "recipe.epochs=2", "model.depth=1", "callbacks.every_steps=1", "resume=auto", "run_dir=run"]
KILLS = 3  # of one run
OPERATIONS = 252  # file operations of a run from its start to the end of training
RESULTS = ("model/model.safetensors", "model/config.json", "predictions.csv")


def start(folder: Path) -> int:
    """Starts a complete run, with temporary files on another file system if there is one."""
    elsewhere = "/dev/shm" if os.path.isdir("/dev/shm") else str(folder)
    return forks().start("vit.run.command:main", OVERRIDES, folder=folder, environment={"TMPDIR": elsewhere})


@cache
def uninterrupted() -> tuple[dict[str, str], float]:
    """(digests, seconds) of a complete run."""
    folder, began = shared() / "killed", time.monotonic()
    check_ended(forks().wait(start(folder)))
    return outcome(folder / "run"), time.monotonic() - began


def check_ended(done: Exit) -> None:
    assert done.code == 0, done.output


def outcome(run: Path) -> dict[str, str]:
    return digests(run) | {name: hashlib.sha256((run / name).read_bytes()).hexdigest() for name in RESULTS}


def check(found: dict[str, str], whole: dict[str, str], run: Path) -> None:
    differ = [part for part in whole if found[part] != whole[part]]
    assert not differ, f"different bits in {', '.join(differ)}"
    stale = [str(path.relative_to(run)) for path in run.rglob("*") if path.suffix in (".tmp", ".part")]
    assert not stale, f"left behind: {stale}"


def killed(folder: Path, seed: int) -> None:
    whole, seconds = uninterrupted()
    rng, run = random.Random(seed), folder / "run"
    for _ in range(KILLS):
        pid = start(folder)
        time.sleep(rng.uniform(0, seconds))
        kill_group(pid, signal.SIGKILL)
        forks().wait(pid)
        if (run / "metrics.json").exists():
            break
    else:
        check_ended(forks().wait(start(folder)))
    check(outcome(run), whole, run)


@cache
def trained() -> dict[str, str]:
    """The digests of a run that ends after training."""
    folder = shared() / "crashed"
    check_ended(forks().run("tests.faults.resume:train", OVERRIDES, None, True, folder=folder))
    return digests(folder / "run")


def crashed(folder: Path, at: int) -> None:
    whole, run = trained(), folder / "run"
    done = fault_exit("tests.faults.resume:train", [OVERRIDES, None, True], "run", "crash", at, folder)
    assert done.code == CRASHED, done.output
    check_ended(forks().run("tests.faults.resume:train", OVERRIDES, None, True, folder=folder))
    check(digests(run), whole, run)


def every_operation_has_its_case(folder: Path) -> None:
    found = operations_of("tests.faults.resume:train", [OVERRIDES, None, True], "run", folder)
    assert len(found) == OPERATIONS, f"OPERATIONS is {OPERATIONS}, but there are {len(found)}"


def cases() -> Iterator[Case]:
    for seed in range(100):
        yield Case(f"{KILLS} kills, seed {seed}", lambda folder, s=seed: killed(folder, s), quick=seed == 0)
    yield Case("crashes: every file operation has a case", every_operation_has_its_case)
    for at in range(OPERATIONS):
        name = f"crash before file operation {at}"
        yield Case(name, lambda folder, a=at: crashed(folder, a), quick=at in (30, OPERATIONS - 10))


PROMISE = Promise("a run killed at any moment resumes with identical bits and leaves nothing behind", cases)
