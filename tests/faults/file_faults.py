"""A fault at every file operation of a run: it is reported, and everything saved before remains usable."""

import builtins
import errno
import hashlib
import importlib
import io
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import torch

from tests.faults.promise import Case, Promise
from tests.forking import Exit, forks

ERRORS = ("ENOSPC", "EIO", "EACCES", "EINTR")
KINDS = (*ERRORS, "crash")
WRITES = 3  # that are counted for one open file; more would repeat the same case
CRASHED = 77  # exit code
COUNTED = "operations.json"
SAVING = 22  # file operations of a save
RUNNING = 208  # of a whole run: start, training, report
RUN = [["recipe.epochs=1", "recipe.batch_size=600", "model.depth=1", "model.dim=16", "model.num_heads=2"]]
RUN[0] += ["precision=32-true", "logger=csv", "run_dir=run"]
CHANGES_NOTHING = {  # operations that fail without an injected fault, as the caller expects
    "mkdir": os.path.lexists,
    "unlink": lambda path: not os.path.lexists(path),
    "remove": lambda path: not os.path.lexists(path),
    "rmdir": lambda path: not os.path.isdir(path) or bool(os.listdir(path)),
}


class FileFaults:
    """Counts the file operations below a folder that change it, and makes one of them fail.

    ENOSPC stays, as a full disk does: later operations that need space fail too. The other errors happen once. `crash`
    ends the process just before the operation.

    Args:
        folder: operations elsewhere are neither counted nor disturbed.
        kind: an errno by name, or "crash".
        at: the number of the operation that fails, from 0; None only counts.
    """

    def __init__(self, folder: str | Path, kind: str = "EIO", at: int | None = None):
        self.folder, self.kind, self.at = os.path.realpath(folder), kind, at
        self.operations: list[str] = []
        self.descriptors: dict[int, str] = {}
        self.fired = False

    def install(self) -> "FileFaults":
        """Installs the fault for the rest of this process, a fork."""
        for name in ("replace", "rename", "link", "symlink"):
            self._patch(name, lambda source, target, *rest, **options: target)
        for name in ("unlink", "remove", "mkdir", "rmdir", "truncate"):
            self._patch(name, lambda path, *rest, **options: path)
        for name in ("fsync", "write", "ftruncate"):
            self._patch(name, lambda descriptor, *rest: self.descriptors.get(descriptor))
        self._patch_os_open()
        self._patch_open()
        return self

    def inside(self, path: object) -> bool:
        if not isinstance(path, str | bytes | os.PathLike):
            return False
        path = os.path.abspath(os.fsdecode(path))
        return path == self.folder or path.startswith(self.folder + os.sep)

    def count(self, operation: str, path: object) -> None:
        """Raises if this operation is the one that fails."""
        if not self.inside(path) or operation in CHANGES_NOTHING and CHANGES_NOTHING[operation](path):
            return
        name = os.path.relpath(os.path.abspath(os.fsdecode(path)), self.folder)
        number = len(self.operations)
        self.operations.append(f"{operation} {name}")
        full = self.fired and self.kind == "ENOSPC" and operation not in ("unlink", "remove", "rmdir", "close")
        if number == self.at or full:
            self.fired = True
            if self.kind == "crash":
                os._exit(CRASHED)
            code = getattr(errno, self.kind)
            raise OSError(code, os.strerror(code), os.fsdecode(path))

    def _patch(self, name: str, target: Callable) -> None:
        original = getattr(os, name)

        def patched(*arguments, **options):
            self.count(name, target(*arguments, **options))
            return original(*arguments, **options)

        setattr(os, name, patched)

    def _patch_os_open(self) -> None:
        original = os.open

        def patched(path, flags, *rest, **options):
            exists = flags & os.O_EXCL and os.path.lexists(path)  # then it fails, as the caller expects
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and not exists:
                self.count("open", path)
            descriptor = original(path, flags, *rest, **options)
            if self.inside(path):
                self.descriptors[descriptor] = os.path.abspath(os.fsdecode(path))
            else:
                self.descriptors.pop(descriptor, None)
            return descriptor

        os.open = patched

    def _patch_open(self) -> None:
        original = builtins.open

        def patched(file, mode="r", *rest, **options):
            if not self.inside(file):
                opened = original(file, mode, *rest, **options)
                with_descriptor = getattr(opened, "fileno", None)
                if with_descriptor and not isinstance(file, int):
                    self.descriptors.pop(opened.fileno(), None)
                return opened
            if set(mode) & set("wax+"):
                self.count("open", file)
            opened = original(file, mode, *rest, **options)
            self.descriptors[opened.fileno()] = os.path.abspath(os.fsdecode(file))
            return CountedFile(opened, self, file) if set(mode) & set("wax+") else opened

        builtins.open = io.open = patched


class CountedFile:
    """A file opened for writing whose first writes, flushes and the close can fail."""

    def __init__(self, file, faults: FileFaults, path: object):
        self._file, self._faults, self._path, self._writes = file, faults, path, 0

    def write(self, data):
        self._writes += 1
        if self._writes <= WRITES or self._faults.fired:
            try:
                self._faults.count("write", self._path)
            except OSError as error:
                if error.errno != errno.EINTR:  # with EINTR nothing is written
                    self._file.write(data[: len(data) // 2])  # a full disk writes a part
                raise
        return self._file.write(data)

    def close(self):
        if not self._file.closed:
            try:
                self._faults.count("close", self._path)
            finally:
                self._file.close()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def __iter__(self):
        return iter(self._file)

    def __getattr__(self, name):
        return getattr(self._file, name)


def with_fault(function: str, arguments: list, folder: str, kind: str, at: int | None) -> int:
    """Calls `module:function` in a fork with a fault installed; without `at` it saves the list of operations."""
    module, _, name = function.partition(":")
    call = getattr(importlib.import_module(module), name)
    faults = FileFaults(folder, kind, at).install()
    try:
        return call(*arguments) or 0
    finally:
        if at is None:
            Path(COUNTED).write_text(json.dumps(faults.operations), encoding="utf-8")


def fault_exit(function: str, arguments: list, watched: str, kind: str, at: int | None, folder: Path) -> Exit:
    """Injects one fault in a fork; raises if there is no message or the exit code is 0.

    EINTR may have no effect: text files of Python repeat a write that a signal interrupted.
    """
    done = forks().run("tests.faults.file_faults:with_fault", function, arguments, watched, kind, at, folder=folder)
    if at is not None and kind != "crash" and (kind, done.code) != ("EINTR", 0):
        assert done.code != 0, f"{kind} at operation {at} was ignored: {done.output}"
        assert os.strerror(getattr(errno, kind)) in done.output, f"the message does not name the fault: {done.output}"
    return done


def operations_of(function: str, arguments: list, watched: str, folder: Path) -> list[str]:
    done = fault_exit(function, arguments, watched, "EIO", None, folder)
    assert done.code == 0, done.output
    return json.loads((folder / COUNTED).read_text(encoding="utf-8"))


def save_again(folder: str) -> None:
    from vit.training import AtomicCheckpointIO

    checkpoint = {"step": 2, "weights": torch.full((3000,), 2.0), "is_best": True}
    AtomicCheckpointIO().save_checkpoint(checkpoint, Path(folder) / "last.ckpt")


def failed_save(folder: Path, kind: str, at: int) -> None:
    from vit.training import AtomicCheckpointIO, newest_valid

    checkpoints = folder / "checkpoints"
    AtomicCheckpointIO().save_checkpoint({"step": 1, "weights": torch.ones(3000)}, checkpoints / "last.ckpt")
    fault_exit("tests.faults.file_faults:save_again", ["checkpoints"], "checkpoints", kind, at, folder)
    path, _ = newest_valid(checkpoints)
    assert path is not None, f"no complete checkpoint: {os.listdir(checkpoints)}"
    content = AtomicCheckpointIO().load_checkpoint(path)
    assert bool((content["weights"] == content["step"]).all())


def the_number_of_operations(folder: Path) -> None:
    """Fails if a save has more or fewer operations than there are cases."""
    save_again(str(folder / "checkpoints"))
    found = operations_of("tests.faults.file_faults:save_again", ["checkpoints"], "checkpoints", folder)
    assert len(found) == SAVING, f"SAVING is {SAVING}, but there are {len(found)} operations: {found}"


@cache
def undisturbed() -> dict[str, str]:
    """File → digest, of the files that are equal in two runs without a fault."""
    found = []
    for name in ("first", "second"):
        with tempfile.TemporaryDirectory(prefix=f"vit-faults-{name}-") as folder:
            assert forks().run("vit.run.command:main", *RUN, folder=Path(folder)).code == 0
            found.append(digests(Path(folder) / "run"))
    return dict(found[0].items() & found[1].items())


def digests(run: Path) -> dict[str, str]:
    files = (path for path in run.rglob("*") if path.is_file())
    return {str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def failed_run(folder: Path, kind: str, at: int) -> None:
    """A complete run with one fault between its start and its report: an error, and the saved files are usable."""
    from vit.training import newest_valid

    done = fault_exit("vit.run.command:main", RUN, "run", kind, at, folder)
    if done.code == 0:
        found = digests(folder / "run")
        assert not (differ := [name for name, digest in undisturbed().items() if found.get(name) != digest]), differ
    path, _ = newest_valid(folder / "run" / "checkpoints")
    assert path or not list(folder.glob("run/checkpoints/*.ckpt")), "no checkpoint is usable"


def the_number_of_operations_of_a_run(folder: Path) -> None:
    found = operations_of("vit.run.command:main", RUN, "run", folder)
    assert len(found) == RUNNING, f"RUNNING is {RUNNING}, but there are {len(found)}"


def cases() -> Iterator[Case]:
    yield Case("saving: every operation has a case", the_number_of_operations, quick=True)
    yield Case("running: every operation has a case", the_number_of_operations_of_a_run)
    for kind in KINDS:
        for at in range(SAVING):
            yield Case(
                f"saving: {kind} at operation {at}",
                lambda folder, k=kind, a=at: failed_save(folder, k, a),
                quick=kind in ("ENOSPC", "crash") and at % 3 == 0,
            )
    for kind in ERRORS:
        for at in range(RUNNING):
            name = f"running: {kind} at operation {at}"
            yield Case(name, lambda folder, k=kind, a=at: failed_run(folder, k, a), quick=(kind, at) == ("ENOSPC", 60))


PROMISE = Promise(
    "a fault at any file operation of a run or a save is reported, and a complete checkpoint remains", cases)
