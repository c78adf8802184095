"""A fault while the results of a cross-validation are written: no part of a file is left; resuming completes them."""

import os
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from PIL import Image

from tests.faults.file_faults import CRASHED, digests, fault_exit, operations_of
from tests.faults.promise import Case, Promise
from tests.faults.resume import shared
from tests.forking import forks
from vit.bundle import load_bundle

SHORT = ["data=digits", "recipe.epochs=1", "recipe.batch_size=300", "precision=32-true", "logger=csv", "report=false",
         "model.dim=16", "model.num_heads=2", "model.depth=1", "trainer.accelerator=cpu"]
AUTO = ["cross-validate", *SHORT, "folds=2", "resume=auto", "run_dir=cv"]
RESULTS = ("comparison.csv", "comparison.json", "comparison.png", "out_of_fold.csv", "cross_validation.json",
           "ensemble")
OPERATIONS = 42  # file operations after the last fold
COMMAND = "vit.cli:main"


@cache
def trained() -> tuple[Path, dict[str, str]]:
    """(folder of a cross-validation whose folds are trained, digests of its files with the results)."""
    folder = shared() / "fold_results"
    done = forks().run("tests.commands:execute_module", "vit", AUTO, folder=folder)
    assert done.code == 0, done.output
    whole = digests(folder / "cv")
    for name in RESULTS:
        path = folder / "cv" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return folder / "cv", whole


def failed(folder: Path, kind: str, at: int) -> None:
    folds, whole = trained()
    shutil.copytree(folds, folder / "cv")
    done = fault_exit(COMMAND, [AUTO], "cv", kind, at, folder)
    assert kind != "crash" or done.code == CRASHED, done.output
    assert "Traceback" not in done.output, done.output
    check_whole(folder / "cv", whole)
    done = forks().run(COMMAND, AUTO, folder=folder)
    assert done.code == 0, done.output
    check_whole(folder / "cv", whole)
    assert (found := digests(folder / "cv").keys()) == whole.keys(), f"lost or left behind: {found ^ whole.keys()}"


def check_whole(run: Path, whole: dict[str, str]) -> None:
    """Each result that is there is complete. The ensemble has absolute paths, the figure the times of this machine."""
    written = {name: each for name, each in digests(run).items() if name.split(os.sep)[0] in RESULTS}
    differ = [name for name in written if written[name] != whole[name]]
    assert not set(differ) - {"comparison.png", str(Path("ensemble", "config.json"))}, f"part of {differ}"
    if (run / "comparison.png").exists():
        Image.open(run / "comparison.png").load()
    if (run / "ensemble").exists():
        load_bundle(run / "ensemble")


def every_operation_has_its_case(folder: Path) -> None:
    folds, _ = trained()
    shutil.copytree(folds, folder / "cv")
    found = operations_of(COMMAND, [AUTO], "cv", folder)
    assert len(found) == OPERATIONS, f"OPERATIONS is {OPERATIONS}, but there are {len(found)}: {found}"


def cases() -> Iterator[Case]:
    yield Case("every operation has a case", every_operation_has_its_case, quick=True)
    for kind in ("ENOSPC", "EIO", "crash"):
        for at in range(OPERATIONS):
            quick = (kind, at) in (("ENOSPC", 1), ("crash", 15), ("crash", OPERATIONS - 5))
            yield Case(f"{kind} at operation {at}", lambda folder, k=kind, a=at: failed(folder, k, a), quick)


PROMISE = Promise(
    "a fault while a cross-validation is concluded leaves no part of a file, and resuming completes it", cases)
