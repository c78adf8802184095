"""Checkpoints that are whole or not there: written beside the target, forced to disk, then renamed over it."""

import os
import re
import shutil
import socket
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from lightning_fabric.plugins.io.checkpoint_io import CheckpointIO

from vit.training.lora import merged
from vit.training.names import clean_name

LAST, PREVIOUS, BEST = "last.ckpt", "previous.ckpt", "best.ckpt"
TEMPORARY = re.compile(r"^\..+\.(?P<host>[^.]+)\.(?P<pid>\d+)\.tmp$")


class CheckpointError(OSError):
    """A checkpoint that could not be written or is damaged; the message names the file and what to do."""


class AtomicCheckpointIO(CheckpointIO):
    """Lightning's place for files. A new `last.ckpt` leaves the one before it as `previous.ckpt`.

    Whatever kills the process, and when: one of the two is whole. Loading never runs code from the file.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        path = Path(path)
        if path.name == LAST:
            write_atomically(path, lambda file: torch.save(checkpoint, file), keep_as=PREVIOUS)
        else:
            write_atomically(path, lambda file: torch.save(checkpoint, file))

    def load_checkpoint(self, path: str | Path, map_location: Any = "cpu", weights_only: bool | None = True) -> dict:
        """Reads plain tensors and values only, whatever `weights_only` says; a damaged file is an error."""
        if reason := verify(path):
            raise CheckpointError(f"checkpoint {path} cannot be used: {reason}")
        return torch.load(path, map_location=map_location, weights_only=True)

    def remove_checkpoint(self, path: str | Path) -> None:
        Path(path).unlink(missing_ok=True)


def write_atomically(path: Path, write: Callable[[Any], None], keep_as: str | None = None) -> None:
    """Calls `write` with an open file and puts it at `path` once its bytes are on the disk.

    `keep_as` renames the file that was there. Raises CheckpointError, with the earlier file as it was, when the disk is
    full or the folder cannot be written.
    """
    temporary = temporary_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        if keep_as and path.exists():
            os.replace(path, path.with_name(keep_as))
        os.replace(temporary, path)
        sync_folder(path.parent)
    except (OSError, RuntimeError) as error:  # torch's zip writer wraps a full disk into a RuntimeError
        cause = error if isinstance(error, OSError) else error.__context__ or error
        raise CheckpointError(
            f"cannot write checkpoint {path}: {cause}; "
            f"{'the earlier one is kept' if path.exists() else 'nothing was saved'}"
        ) from error
    finally:
        with suppress(OSError):
            temporary.unlink()  # there only after a failure


def temporary_path(path: Path) -> Path:
    """Beside the target, because a rename is atomic only within a file system; says whose it is."""
    return path.with_name(f".{path.name}.{socket.gethostname().split('.')[0]}.{os.getpid()}.tmp")


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def copy_checkpoint(source: Path, target: Path) -> None:
    """`target` becomes the same file as `source`, atomically: a link where the file system has them, else a copy.

    A link is safe because no checkpoint is ever written in place.
    """
    temporary = temporary_path(target)
    temporary.unlink(missing_ok=True)
    try:
        os.link(source, temporary)
    except OSError:
        with open(source, "rb") as original:
            write_atomically(target, lambda file: shutil.copyfileobj(original, file))
        return
    os.replace(temporary, target)
    temporary.unlink(missing_ok=True)  # a rename onto a link to the same file does nothing
    sync_folder(target.parent)


def verify(path: str | Path) -> str | None:
    """Why the file cannot be used, or None when every byte of every tensor in it is as it was written.

    The zip checksums cover the content; reading the structure without the tensors covers the table of contents.
    """
    if not os.path.isfile(path):
        return "there is no such file"
    try:
        with zipfile.ZipFile(path) as archive:
            if record := archive.testzip():
                return f"it is damaged (record {record})"
    except Exception as error:  # a broken archive can raise nearly anything
        return f"it is damaged or incomplete ({one_line(error)})"
    try:
        torch.load(path, map_location="meta", weights_only=True, mmap=True)
    except Exception as error:
        return f"its weights cannot be read without running code or it is no checkpoint ({one_line(error)})"
    return None


def one_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def newest_valid(folder: str | Path) -> tuple[Path | None, list[str]]:
    """The newest whole checkpoint to go on from, and one line for every newer one that had to be skipped."""
    skipped = []
    for name in (LAST, PREVIOUS):
        path = Path(folder) / name
        if path.exists():
            if (reason := verify(path)) is None:
                return path, skipped
            skipped.append(f"skipped {path}: {reason}")
    return None, skipped


def trained_weights(path: str | Path) -> dict[str, torch.Tensor]:
    """The bare model's weights to go and use: the averaged ones where the run kept an average, else its last ones.

    What `lora` learnt beside the weights is added to them.
    """
    checkpoint = AtomicCheckpointIO().load_checkpoint(path)
    average = checkpoint.get("callbacks", {}).get("AverageWeights", {}).get("average")
    raw = {
        clean_name(name).removeprefix("model."): tensor
        for name, tensor in checkpoint["state_dict"].items()
        if name.startswith("model.")
    }
    return merged(average or raw)


def sweep(folder: str | Path) -> list[Path]:
    """Removes what writers of this machine left behind when they were killed; files of living ones stay."""
    host, swept = socket.gethostname().split(".")[0], []
    for path in Path(folder).glob(".*.tmp"):
        found = TEMPORARY.match(path.name)
        if found and found["host"] == host and not alive(int(found["pid"])):
            path.unlink(missing_ok=True)
            swept.append(path)
    return swept


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
