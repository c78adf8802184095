"""Atomic replacement of a folder: other processes find the old one or the new one, never a mixture."""

import ctypes
import errno
import logging
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vit.files.machine import host_name, is_alive

log = logging.getLogger("vit")

AT_FDCWD, RENAME_EXCHANGE = -100, 2
UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)
LEFTOVER = r"\.{name}\.{host}\.(?P<pid>\d+)\.[0-9a-f]+\.(?P<kind>part|old)"


@contextmanager
def replace_folder(path: Path, own: tuple[str, ...]) -> Iterator[Path]:
    """Context manager: makes an empty folder, which replaces `path` when the block ends without an error.

    Several processes and threads may replace the folder at the same time; the last one to end wins. If the process is
    killed, `path` is the old or the new folder; in rare cases `recover_folder` has to restore the old one first.

    Args:
        own: names of the files that the block writes; all others are copied from the old folder, as are its
            permissions.

    Raises:
        OSError: an operation failed; the old folder is unchanged, unless its removal at the end is what failed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    recover_folder(path)
    if path.exists() and not os.access(path, os.W_OK):  # it could be exchanged, but not removed
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    remove_leftovers(path)
    part = temporary_sibling(path, "part")
    part.mkdir()
    try:
        yield part
        for name in own:
            sync_to_disk(part / name)
        with locked(path.parent):
            copy_other_files(path, part, own)
            sync_to_disk(part)
            if path.exists():
                shutil.copymode(path, part)
            old = put_in_place(part, path)
        sync_to_disk(path.parent)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)  # the original error is raised
        raise
    if old is not None:
        shutil.rmtree(old)


def put_in_place(part: Path, path: Path) -> Path | None:
    """Rename `part` to `path`; returns the path to which the old folder was moved, None if there was none.

    Raises:
        OSError: the renaming failed; the old folder is at `path` again.
    """
    if not path.exists():
        part.rename(path)
        return None
    if exchange_folders(part, path):
        return part
    old = temporary_sibling(path, "old")
    path.rename(old)
    try:
        part.rename(path)
    except BaseException:
        old.rename(path)
        raise
    return old


def exchange_folders(one: Path, other: Path) -> bool:
    """Exchange the names of two folders atomically; False if the system or the file system does not support it.

    Raises:
        OSError: the exchange failed.
    """
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):
        return False
    if rename(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in UNSUPPORTED:
        return False
    raise OSError(code, os.strerror(code), str(other))


def copy_other_files(path: Path, part: Path, own: tuple[str, ...]) -> None:
    """Copy the files that users added to the old folder; links are copied as links."""
    for item in path.iterdir() if path.exists() else ():
        if item.name in own:
            continue
        if item.is_dir() and not item.is_symlink():
            shutil.copytree(item, part / item.name, symlinks=True)
        else:
            shutil.copy2(item, part / item.name, follow_symlinks=False)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """A lock of the folder between processes and threads; without effect if it cannot be locked."""
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems; the replacement itself is still atomic
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def recover_folder(path: Path) -> bool:
    """Restore a folder that a process had moved aside when it was killed; returns whether one was restored."""
    if path.exists() or not any(kind == "old" for _, kind, _ in leftovers(path)):
        return False
    with suppress(OSError), locked(path.parent):
        for old, kind, _ in leftovers(path):
            if kind == "old" and not path.exists():
                old.rename(path)
                log.warning("%s was restored: the process that was replacing it had been killed", path)
                return True
    return False


def remove_leftovers(path: Path) -> None:
    """Remove the temporary folders of processes of this machine that were killed."""
    for leftover, _, pid in leftovers(path):
        if not is_alive(pid):
            with suppress(OSError):
                shutil.rmtree(leftover)


def leftovers(path: Path) -> Iterator[tuple[Path, str, int]]:
    """(folder, "part" or "old", process) of every unfinished replacement of `path` on this machine."""
    pattern = re.compile(LEFTOVER.format(name=re.escape(path.name), host=re.escape(host_name())))
    for item in path.parent.iterdir() if path.parent.is_dir() else ():
        if match := pattern.fullmatch(item.name):
            yield item, match["kind"], int(match["pid"])


def temporary_sibling(path: Path, kind: str) -> Path:
    """A new path in the same folder, because a rename is atomic only within a file system."""
    return path.with_name(f".{path.name}.{host_name()}.{os.getpid()}.{secrets.token_hex(4)}.{kind}")


def sync_to_disk(path: Path) -> None:
    """Flush a file or a folder to the disk."""
    if os.name == "nt" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
