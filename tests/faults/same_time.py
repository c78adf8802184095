"""Concurrent runs: each has its own folder and ports."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from tests.faults.promise import Case, Promise
from tests.faults.tiny_training import DDP, OVERRIDES, orphans
from tests.forking import forks

TRAIN = "tests.faults.tiny_training:train"
SHORT = [*(override for override in OVERRIDES if not override.startswith("run_dir=")), "recipe.epochs=1"]


def claim(number: int) -> None:
    """In a fork: creates run folders below `runs` and marks each as its own."""
    from vit.run.records.folder import RunFolder, new_path

    for turn in range(number):
        with RunFolder(new_path({"run_dir": None, "runs": "runs", "name": "digits"})) as folder:
            with open(folder.path / "mark", "x", encoding="utf-8") as file:
                file.write(str(turn))
            folder.write("config.yaml", {})


def folders_are_never_shared(folder: Path, processes: int = 8, turns: int = 20) -> None:
    started = [forks().start("tests.faults.same_time:claim", turns, folder=folder) for _ in range(processes)]
    ends = [forks().wait(pid) for pid in started]
    assert all(end.code == 0 for end in ends), [end.output for end in ends if end.code]
    assert len(list(folder.glob("runs/digits/*/mark"))) == processes * turns


def together(folder: Path, commands: list[list[str]], **environment: str) -> list[str]:
    environment |= {"FAULTS_FOLDER": str(folder)}
    started = [forks().start(TRAIN, overrides, [], folder=folder, environment=environment) for overrides in commands]
    ends = [forks().wait(pid, 240) for pid in started]
    assert not orphans(folder)
    for end in ends:
        assert end.code == 0, end.output
    return [end.output for end in ends]


def finished(folder: Path) -> list[dict]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("runs/digits/*/metrics.json")]


def runs(folder: Path, count: int) -> None:
    together(folder, [[*SHORT, "runs=runs", "seed=0"] for _ in range(count)])
    accuracies = {metrics["test/accuracy"] for metrics in finished(folder)}
    assert len(finished(folder)) == count and len(accuracies) == 1, accuracies


def distributed_runs(folder: Path, **environment: str) -> None:
    together(folder, [[*SHORT, *DDP, "runs=runs"] for _ in range(2)], **environment)
    assert len(finished(folder)) == 2


def one_folder(folder: Path) -> None:
    """Of several runs with the same folder one uses it; the others are refused and change nothing."""
    environment = {"FAULTS_FOLDER": str(folder)}
    overrides = [[*SHORT, "run_dir=run", f"seed={seed}"] for seed in range(3)]
    started = [forks().start(TRAIN, each, [], folder=folder, environment=environment) for each in overrides]
    ends = [forks().wait(pid, 240) for pid in started]
    codes = sorted(end.code for end in ends)
    assert codes == [0, 2, 2], [end.output for end in ends]
    for end in ends:
        assert end.code == 0 or re.search("another run is writing there|already contains a run", end.output), end
    assert (folder / "run" / "metrics.json").exists()


def cases() -> Iterator[Case]:
    yield Case("8 processes create 20 folders each", folders_are_never_shared, quick=True)
    for count in (2, 4):
        yield Case(f"{count} runs in the same second", lambda folder, n=count: runs(folder, n))
    yield Case("3 runs with the same folder", one_folder, quick=True)
    yield Case("2 runs with 2 processes each", distributed_runs)
    yield Case("2 runs with 2 processes each, MASTER_PORT inherited",
               lambda folder: distributed_runs(folder, MASTER_ADDR="127.0.0.1", MASTER_PORT="29500"))


PROMISE = Promise("concurrent runs share neither folders nor ports", cases)
