"""Atomic writes: a file is written beside its target, synchronized to the disk, and then renamed to the target.

`manifest.json` has the SHA-256 of the files that a run relies on, to detect changed, older and foreign files.
"""

import errno
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vit.files.machine import host_name, is_alive
from vit.files.untrusted import NotRegularFileError, file_sha256, parse_json, read_text

log = logging.getLogger("vit")

TEMPORARY = re.compile(r"^\..+\.(?P<host>[^.]+)\.(?P<pid>\d+)\.tmp$")
NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)  # errors of unsupported hard links
MANIFEST = "manifest.json"
CHANGED = f"it is not the file that the run wrote: its SHA-256 is not the one in {MANIFEST}"
DAMAGED: set[str] = set()  # the manifests about which this process has warned
RESULTS = ("metrics.json", "metrics.csv", "environment.json", "predictions.csv")  # recorded when a run has finished


class CheckpointError(OSError):
    """A file of a run that could not be written or is damaged; the message names the file and what to do."""


@dataclass(eq=False)
class HashedFile:
    """A file opened for writing that also computes the SHA-256 of the written bytes, in `hash`."""

    file: Any
    hash: Any = field(default_factory=hashlib.sha256)

    def write(self, data: Any) -> int:
        self.hash.update(data)
        return self.file.write(data)

    def flush(self) -> None:
        self.file.flush()


def write_atomically(
    path: Path, content: bytes | Callable[[Any], Any], commit: Callable[[Path, str], None] | None = None
) -> str:
    """Write a file atomically: other processes find the old content of `path` or the new one, also after a crash.

    Args:
        content: the bytes, or a function that writes them to an open file.
        commit: called as `commit(temporary, sha256)` in place of the rename; it must synchronize the folder too.

    Returns:
        The SHA-256 of the content.

    Raises:
        CheckpointError: the disk is full or the folder cannot be written; the earlier file is unchanged.
    """
    temporary = temporary_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            hashed = HashedFile(file)
            if isinstance(content, bytes):
                hashed.write(content)
            else:
                content(hashed)
            file.flush()
            os.fsync(file.fileno())
        sha256 = hashed.hash.hexdigest()
        if commit:
            commit(temporary, sha256)
        else:
            os.replace(temporary, path)
            sync_folder(path.parent)
    except (OSError, RuntimeError) as error:  # torch's zip writer raises a RuntimeError when the disk is full
        with suppress(OSError):
            temporary.unlink()
        if isinstance(error, CheckpointError):
            raise
        raise write_error(path, error) from error
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    return sha256


def write_error(path: Path, error: OSError | RuntimeError) -> CheckpointError:
    """The error about a file that could not be written, with the cause and what is there now."""
    cause = error if isinstance(error, OSError) else error.__context__ or error
    state = "the earlier file is unchanged" if path.exists() else "nothing was saved"
    return CheckpointError(f"cannot write {path}: {cause}; {state}")


def temporary_path(path: Path) -> Path:
    """A path beside the target, because a rename is atomic only within a file system, with the host and the process id
    in its name. Threads of one process must not write the same file at the same time.
    """
    return path.with_name(f".{path.name}.{host_name()}.{os.getpid()}.tmp")


def sync_folder(folder: Path) -> None:
    """Synchronize the entries of a folder to the disk, after a rename."""
    if os.name == "nt":  # Windows opens no folders
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def link_atomically(source: Path, target: Path) -> None:
    """Replace `target` by a hard link to `source`, or by a copy if the file system has no hard links.

    A link is safe because files of a run are replaced and never changed in place.
    """
    temporary = temporary_path(target)
    if temporary.exists():
        temporary.unlink()
    try:
        os.link(source, temporary)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        with open(source, "rb") as original:
            write_atomically(target, lambda file: shutil.copyfileobj(original, file))
        return
    os.replace(temporary, target)
    if temporary.exists():  # a rename onto a link to the same file does nothing
        temporary.unlink()


def remove_stale_files(folder: str | Path) -> list[Path]:
    """Remove the temporary files of processes of this machine that have ended; returns their paths."""
    removed = []
    for path in Path(folder).glob(".*.tmp"):
        match = TEMPORARY.match(path.name)
        if match and match["host"] == host_name() and not is_alive(int(match["pid"])):
            path.unlink(missing_ok=True)
            removed.append(path)
    return removed


class Manifest:
    """The recorded content of the files of a folder: name -> `{"sha256": ...}` and facts such as the optimizer step.

    `saving` describes a checkpoint that is about to be put in place: after a crash the file under the name is either
    the recorded one or this one. A folder without a manifest, made by an earlier version, has no entries.
    """

    def __init__(self, folder: str | Path, files: dict[str, dict] | None = None, saving: dict | None = None):
        self.folder, self.files, self.saving = Path(folder), files or {}, saving

    @classmethod
    def read(cls, folder: str | Path) -> "Manifest":
        """The manifest of a folder; without entries if it is absent, or if it is damaged, about which a process
        warns once.
        """
        path = Path(folder) / MANIFEST
        try:
            content = parse_json(read_text(path), float)
            files = {str(name): {"sha256": str(entry["sha256"]), **entry} for name, entry in content["files"].items()}
            saving = content["saving"]
            return cls(folder, files, saving and {"name": saving["name"], "sha256": saving["sha256"], **saving})
        except FileNotFoundError:
            return cls(folder)
        except (ValueError, KeyError, TypeError, AttributeError, NotRegularFileError):
            level = logging.DEBUG if str(path) in DAMAGED else logging.WARNING  # a run reads it often
            DAMAGED.add(str(path))
            log.log(level, "%s is damaged: files are checked by their own checksums only", path)
            return cls(folder)

    def write(self) -> None:
        text = json.dumps({"files": self.files, "saving": self.saving}, indent=2) + "\n"
        write_atomically(self.folder / MANIFEST, text.encode())
        DAMAGED.discard(str(self.folder / MANIFEST))

    def announce(self, name: str, sha256: str) -> None:
        """Records the content that a file is about to have; until it is written, the present content is valid too."""
        path = self.folder / name
        self.files[name] = {"sha256": sha256, **({"before": file_sha256(path)} if path.is_file() else {})}
        self.write()

    def changed(self, name: str) -> bool:
        """Whether a recorded file exists and has other content than recorded."""
        entry, path = self.files.get(name), self.folder / name
        return bool(entry) and path.is_file() and file_sha256(path) not in (entry["sha256"], entry.get("before"))

    def record(self, names: Iterable[str]) -> None:
        """Record the present content of the files that exist; `write` saves it."""
        for name in names:
            if (self.folder / name).is_file():
                self.files[name] = {"sha256": file_sha256(self.folder / name)}


def is_changed_result(path: Path) -> bool:
    """Whether a result of a finished run differs from its manifest; not if no manifest records it."""
    return Manifest.read(path.parent).changed(path.name)


def check_result(path: Path, error: type[ValueError] = ValueError, fix: str = "restore it") -> None:
    """Checks a result of a finished run against its manifest; a file that no manifest records is not checked.

    Raises:
        ValueError: it has changed; of the class `error`.
    """
    if is_changed_result(path):
        raise error(f"{path} is damaged ({CHANGED}); {fix}")
