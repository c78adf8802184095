"""A saved model is complete or absent: damage is detected, failed saves are reported, concurrent saves are safe."""

import os
import random
import resource
import shutil
import signal
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import torch

import vit
from tests.faults.file_faults import KINDS, fault_exit, operations_of
from tests.faults.promise import Case, Promise
from tests.forking import forks
from vit.bundle import CONFIG, WEIGHTS, BundleError, folder_replacement, load_bundle, save_bundle
from vit.data import Preprocessing

CLASSES = ("cat", "dog")
PREPROCESSING = Preprocessing(size=(8, 8))
SAVING = {True: 12, False: 14}  # file operations of a save over an older bundle, with and without a swap in one step
SAVERS, SAVES = 6, 10
HERE = "tests.faults.bundles"


@cache
def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return vit.create_model("vit_tiny", image_size=8, patch_size=4, num_classes=2, dim=8, num_heads=2, depth=1)


def save(path: str | Path, step: int) -> None:
    """Saves a bundle whose weights are filled with the number that is its metric."""
    state = {name: torch.full_like(tensor, step) for name, tensor in network().state_dict().items()}
    save_bundle(path, network(), CLASSES, PREPROCESSING, {"step": float(step)}, {"data": ["data=digits"]}, state)


def step_of(path: str | Path) -> int:
    """The number of a bundle; raises if it mixes two."""
    bundle = load_bundle(path)
    steps = {value for tensor in bundle.model.state_dict().values() for value in tensor.unique().tolist()}
    assert steps == {bundle.metrics["step"]}, f"weights of {steps} in the bundle of {bundle.metrics}"
    return int(bundle.metrics["step"])


def damaged(folder: Path, file: str, kind: str, seed: int) -> None:
    """Injects one fault in one file of a bundle; loading it must be an error of one sentence that names the file."""
    save(folder / "model", seed % 7)
    path, rng = folder / "model" / file, random.Random(seed)
    data = bytearray(path.read_bytes())
    at = seed % len(data) if kind == "every byte" else rng.randrange(len(data))
    if kind == "cut":
        data = data[:at]
    elif kind == "zero":
        data[at : at + 512] = bytes(len(data[at : at + 512]))
    else:
        data[at] ^= 1 << rng.randrange(8)
    if bytes(data) == path.read_bytes():  # a page of zeros that was zero before
        return
    path.write_bytes(data)
    try:
        load_bundle(folder / "model")
    except BundleError as error:
        assert "\n" not in str(error) and str(folder) in str(error), str(error)
    else:
        raise AssertionError(f"{kind} at byte {at} of {file} was not detected")


def save_again(path: str, step: int, one_step: bool) -> None:
    """In a fork: a save whose failure ends the process, as in a command."""
    if not one_step:
        folder_replacement.exchange_folders = lambda *_: False
    try:
        save(path, step)
    except BundleError as error:
        raise SystemExit(print(f"error: {error}") or 1) from error


def failed_save(folder: Path, kind: str, at: int, one_step: bool) -> None:
    save(folder / "models" / "model", 1)
    call = (f"{HERE}:save_again", ["models/model", 2, one_step], "models")
    done = fault_exit(*call, kind, at, folder)
    assert "Traceback" not in done.output, done.output
    assert step_of(folder / "models" / "model") in (1, 2)
    save(folder / "models" / "model", 3)
    left = os.listdir(folder / "models")
    assert left == ["model"], f"left behind: {left}"


def the_number_of_operations(folder: Path, one_step: bool) -> None:
    """Fails if a save has more or fewer operations than there are cases."""
    save(folder / "models" / "model", 1)
    found = operations_of(f"{HERE}:save_again", ["models/model", 2, one_step], "models", folder)
    assert len(found) == SAVING[one_step], f"SAVING is {SAVING[one_step]}, but there are {len(found)}: {found}"


def save_with_little_space(path: str, step: int, size: int) -> None:
    """In a fork: no file may grow beyond `size` bytes, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    save_again(path, step, True)


def full_disk(folder: Path, size: int) -> None:
    save(folder / "model", 1)
    done = forks().run(f"{HERE}:save_with_little_space", "model", 2, size, folder=folder)
    assert done.code == 1 and "could not be saved" in done.output and "Traceback" not in done.output, done
    assert step_of(folder / "model") == 1


def save_repeatedly(path: str, first: int, one_step: bool = True) -> None:
    if not one_step:
        folder_replacement.exchange_folders = lambda *_: False
    for step in range(first, first + SAVES):
        save(path, step)
        step_of(path)  # a complete bundle


def savers(folder: Path, one_step: bool) -> None:
    """Processes that save to the same path concurrently."""
    pids = [forks().start(f"{HERE}:save_repeatedly", str(folder / "model"), 100 * i, one_step, folder=folder / str(i))
            for i in range(SAVERS)]
    ends = [forks().wait(pid) for pid in pids]
    assert [end.code for end in ends] == [0] * SAVERS, ends
    assert step_of(folder / "model") % 100 == SAVES - 1
    assert not [name for name in os.listdir(folder) if name.startswith(".")]


def threads(folder: Path) -> None:
    """Threads that save the same network to the same path concurrently."""
    failures: list[BaseException] = []

    def work(first: int) -> None:
        try:
            save_repeatedly(str(folder / "model"), first)
        except BaseException as error:
            failures.append(error)

    started = [threading.Thread(target=work, args=(100 * i,)) for i in range(SAVERS)]
    [thread.start() for thread in started]
    [thread.join() for thread in started]
    assert not failures, failures[0]
    assert step_of(folder / "model") % 100 == SAVES - 1 and os.listdir(folder) == ["model"]


def mixed(folder: Path) -> None:
    """The weights of another save with the config of this one."""
    save(folder / "one", 1), save(folder / "two", 2)
    shutil.copy(folder / "one" / WEIGHTS, folder / "two" / WEIGHTS)
    try:
        load_bundle(folder / "two")
    except BundleError as error:
        assert "belongs to another model" in str(error), str(error)
    else:
        raise AssertionError("weights of another save were accepted")


def cases() -> Iterator[Case]:
    for kind, count in (("flip", 150), ("cut", 30), ("zero", 30)):
        for file in (WEIGHTS, CONFIG):
            for seed in range(count):
                yield Case(f"{file}: {kind} {seed}", lambda folder, f=file, k=kind, s=seed: damaged(folder, f, k, s),
                           quick=seed < 3)
    for seed in range(0, 2400, 3):
        yield Case(f"{CONFIG}: a bit of byte {seed}", lambda folder, s=seed: damaged(folder, CONFIG, "every byte", s))
    yield Case("weights of an earlier save", mixed, quick=True)
    for one_step, swap in ((True, "swap"), (False, "two renames")):
        yield Case(f"{swap}: every operation has a case", lambda folder, o=one_step: the_number_of_operations(
            folder, o), quick=True)
        for kind in KINDS:
            for at in range(SAVING[one_step]):
                yield Case(f"{swap}: {kind} at operation {at}",
                           lambda folder, k=kind, a=at, o=one_step: failed_save(folder, k, a, o),
                           quick=(kind, one_step) in (("ENOSPC", True), ("crash", False)))
        yield Case(f"{swap}: processes that save concurrently", lambda folder, o=one_step: savers(folder, o),
                   quick=one_step)
    yield Case("threads that save concurrently", threads, quick=True)
    for size in (50, 100, 4000):
        yield Case(f"no space after {size} bytes", lambda folder, s=size: full_disk(folder, s), quick=size == 100)


PROMISE = Promise(
    "a saved model is complete: damage is detected, faults are reported, concurrent saves lose nothing", cases)
