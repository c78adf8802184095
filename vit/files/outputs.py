"""Output files that a user names: links, devices, pipes and the modes of existing files are respected."""

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from vit.files.atomic import CheckpointError, HashedFile, sync_folder, temporary_path, write_atomically

LONGEST_NAME = 255  # bytes of a file name on most file systems
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # errors of a full disk


def write_output(path: Path, content: bytes | Callable[[Any], Any]) -> None:
    """Write a file that a user named: as `write_atomically`, but a link remains one, an existing file keeps its mode,
    and a device or a pipe is written to. A file in a folder that cannot be written is written in place.

    Raises:
        CheckpointError: as for `write_atomically` and `check_replaceable`.
        OSError: a file that is written in place cannot be; it has the name of the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    target = Path(os.path.realpath(path)) if path.is_symlink() else path
    if _is_replaced(path, temporary_path(target)):
        write_atomically(target, content, lambda temporary, sha256: _put_in_place(temporary, target))
        return
    with named_if_full(path), open(path, "wb") as file:
        file.write(content) if isinstance(content, bytes) else content(HashedFile(file))


@contextmanager
def open_output(path: Path) -> Iterator[BinaryIO]:
    """Context manager: opens an output file to which rows are written one by one. The rows go to `streamed_file(path)`,
    which replaces `path` at the end of the context. After an error or Ctrl-C it is left there, and `path` is unchanged.

    Raises:
        CheckpointError: as `check_replaceable`, or another process is writing the same file.
        OSError: the file cannot be written; it has the name of the file.
    """
    streamed = streamed_file(path)
    if streamed == path:
        with named_if_full(path), open(path, "wb") as file:
            yield file
        return
    with named_if_full(streamed):
        _remove_unlocked(streamed)
        with open(streamed, "xb") as file:
            _lock(file, streamed)
            yield file
            file.flush()
            os.fsync(file.fileno())
            state = os.fstat(file.fileno())
            if state.st_nlink == 0 and not os.path.samestat(state, os.lstat(streamed)):  # files cannot be locked
                raise being_written(streamed)
            if os.name == "nt":  # which renames no open file
                file.close()
            _put_in_place(streamed, Path(os.path.realpath(path)))


def _remove_unlocked(path: Path) -> None:
    """Remove the file of a process that has ended, or a link.

    Raises:
        CheckpointError: another process is writing the file.
    """
    if os.name == "nt" or path.is_symlink():
        path.unlink(missing_ok=True)
    elif path.is_file():
        with suppress(FileNotFoundError), open(path, "rb") as earlier:  # if it was completed just now
            _lock(earlier, path)
            path.unlink()


def _lock(file: BinaryIO, path: Path) -> None:
    """Lock an open file until it is closed; without effect where files cannot be locked. There another process may
    remove the file and begin again, which `open_output` notices at the end.

    Raises:
        CheckpointError: another process has locked the file, or has replaced it.
    """
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows, where no other process can remove an open file
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_there = os.path.samestat(os.fstat(file.fileno()), os.lstat(path))
    except (BlockingIOError, FileNotFoundError):
        is_there = False
    except OSError:  # some network file systems
        return
    if not is_there:
        raise being_written(path)


def being_written(path: Path) -> CheckpointError:
    """The error about an output that another process is writing, or has begun again."""
    return CheckpointError(f"another process is writing {path}; wait until it has ended, or choose another output")


def streamed_file(path: Path) -> Path:
    """The file beside `path` that `open_output` writes to, such as scores.incomplete.csv; `path` itself if it is a
    device or a pipe, or in a folder that cannot be written.

    Raises:
        CheckpointError: as `check_replaceable`.
    """
    target = Path(os.path.realpath(path))
    beside = target.with_name(f"{target.stem}.incomplete{target.suffix}")
    return beside if _is_replaced(path, beside) else path


def check_replaceable(path: Path) -> None:
    """Check that an existing file may be replaced: in a sticky folder, such as /tmp, only its owner may do so.

    Raises:
        CheckpointError: the file and its folder belong to other users.
    """
    target = Path(os.path.realpath(path))
    if os.name == "nt" or os.geteuid() == 0 or not target.is_file():
        return
    folder, owner = target.parent.stat(), target.stat().st_uid
    if folder.st_mode & stat.S_ISVTX and os.geteuid() not in (owner, folder.st_uid):
        raise CheckpointError(f"{path} belongs to another user (id {owner}), and only its owner may replace a file of "
                              f"{target.parent}; choose another path")


def _is_replaced(path: Path, temporary: Path) -> bool:
    """Whether an output is written to `temporary` first: it is no device or pipe, and its folder can be written.

    Raises:
        CheckpointError: as `check_replaceable`.
    """
    is_stream = (path.exists() and not path.is_file()) or path.absolute().parts[1:2] in (("dev",), ("proc",))
    fits = len(os.fsencode(temporary.name)) <= LONGEST_NAME
    if is_stream or not fits or not os.access(temporary.parent, os.W_OK):
        return False
    check_replaceable(path)
    return True


def _put_in_place(temporary: Path, target: Path) -> None:
    """Rename a complete file to its target, whose mode remains."""
    if target.exists():
        shutil.copymode(target, temporary)
    os.replace(temporary, target)
    sync_folder(target.parent)


@contextmanager
def named_if_full(path: str | os.PathLike[str] | None) -> Iterator[None]:
    """Within the context, the error of a full disk names the file that is written."""
    try:
        yield
    except OSError as error:
        if path is not None and error.errno in FULL and error.filename is None:
            error.filename = str(path)
        raise
