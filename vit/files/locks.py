"""Locks between processes, also on the network file systems that have none."""

import errno
import os
from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLock

UNSUPPORTED = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)  # Lustre, FUSE and NFS without their lock services


def file_lock(path: Path) -> BaseFileLock:
    """A lock of the operating system, which releases it however the process ends. On a file system without such locks
    it is the existence of `holder_file(path)`, with the process and the host in it: one of a process that was killed is
    removed by the next one on the same host, and by the user if that was another host.

    Raises:
        OSError: the file cannot be opened.
    """
    return FileLock(path) if has_locks(path) else SoftFileLock(holder_file(path))


def holder_file(path: Path) -> Path:
    """The file that exists while `path` is locked, on a file system without locks."""
    return path.with_name(f"{path.name}.holder")


def has_locks(path: Path) -> bool:
    """Whether the file system of a lock file, which is created if there is none, has locks.

    Raises:
        OSError: the file cannot be opened.
    """
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows
        return True
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in UNSUPPORTED
    finally:
        os.close(descriptor)
    return True
