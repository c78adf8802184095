"""One folder put in the place of another: whoever looks finds the old one or the new one, each of them whole."""

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

from vit.files.processes import alive, host

log = logging.getLogger("vit")

AT_FDCWD, RENAME_EXCHANGE = -100, 2
UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)
LEFTOVER = r"\.{name}\.{host}\.(?P<pid>\d+)\.[0-9a-f]+\.(?P<kind>part|old)"


@contextmanager
def replacing(path: Path, own: tuple[str, ...]) -> Iterator[Path]:
    """A new empty folder to fill, which takes the place of `path` when the block ends without an error.

    Several processes and threads may do so at once: the last one to end wins. After a kill at any moment the folder is
    there, the old or the new one; in the worst case `recovered` brings it back.

    Args:
        own: names of the files that the block writes; others are copied from the old folder.

    Raises:
        OSError: the old folder is left as it is, but for an error while it is removed in the end.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    recovered(path)
    remove_leftovers(path)
    part = temporary(path, "part")
    part.mkdir()
    try:
        yield part
        for name in own:
            sync(part / name)
        with locked(path.parent):
            copy_others(path, part, own)
            sync(part)
            old = swap(part, path)
        sync(path.parent)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)  # the error that is raised says enough
        raise
    if old is not None:
        shutil.rmtree(old)


def swap(part: Path, path: Path) -> Path | None:
    """Puts `part` at `path` and returns where the old folder is now, None where there was none."""
    if not path.exists():
        part.rename(path)
        return None
    if exchange(part, path):
        return part
    old = temporary(path, "old")
    path.rename(old)
    try:
        part.rename(path)
    except BaseException:
        old.rename(path)
        raise
    return old


def exchange(one: Path, other: Path) -> bool:
    """Swaps the names of two folders in one step; False where the system or the file system has no such step."""
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


def copy_others(path: Path, part: Path, own: tuple[str, ...]) -> None:
    """Files that somebody added to the old folder go along; links stay links."""
    for item in path.iterdir() if path.exists() else ():
        if item.name in own:
            continue
        if item.is_dir() and not item.is_symlink():
            shutil.copytree(item, part / item.name, symlinks=True)
        else:
            shutil.copy2(item, part / item.name, follow_symlinks=False)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keeps other processes and threads out of the same block; without effect where folders cannot be locked."""
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems; the swap itself is still one step
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def recovered(path: Path) -> bool:
    """Brings a folder back whose process was killed between two renames; whether there was one to bring back."""
    if path.exists() or not any(kind == "old" for _, kind, _ in leftovers(path)):
        return False
    with suppress(OSError), locked(path.parent):
        for old, kind, _ in leftovers(path):
            if kind == "old" and not path.exists():
                old.rename(path)
                log.warning("%s was brought back: the process that was replacing it had been killed", path)
                return True
    return False


def remove_leftovers(path: Path) -> None:
    """Removes what processes of this machine left when they were killed."""
    for leftover, _, pid in leftovers(path):
        if not alive(pid):
            with suppress(OSError):
                shutil.rmtree(leftover)


def leftovers(path: Path) -> Iterator[tuple[Path, str, int]]:
    """(folder, "part" or "old", process) of every unfinished replacement of `path` on this machine."""
    pattern = re.compile(LEFTOVER.format(name=re.escape(path.name), host=re.escape(host())))
    for item in path.parent.iterdir() if path.parent.is_dir() else ():
        if found := pattern.fullmatch(item.name):
            yield item, found["kind"], int(found["pid"])


def temporary(path: Path, kind: str) -> Path:
    """Beside the target, because a rename is one step only within a file system."""
    return path.with_name(f".{path.name}.{host()}.{os.getpid()}.{secrets.token_hex(4)}.{kind}")


def sync(path: Path) -> None:
    """Forces a file or a folder to the disk."""
    if os.name == "nt" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
