"""Explanations of the system limits that a run can reach: open files, processes, memory and shared memory."""

import errno
import os
import shutil
from collections.abc import Sequence

NO_FILES = ("too many open files", "received 0 items of ancdata")
NO_SHARED = ("bus error", "out of shared memory", "unable to open shared memory", "unable to write to file </torch")
NO_PROCESSES = ("can't start new thread", "resource temporarily unavailable")


class SystemLimitError(OSError):
    """A resource that the system refused; the message names the limit and how to raise it."""


def explain_limit(error: BaseException) -> str | None:
    """One sentence for an error caused by a system limit; None for any other."""
    text, code = str(error).lower(), getattr(error, "errno", None)
    if is_out_of_files(error):
        return (f"too many open files{_limit('RLIMIT_NOFILE')}: raise it with ulimit -n 65536, or lower data.workers")
    if any(sign in text for sign in NO_SHARED):
        return (f"the loading processes need more shared memory than /dev/shm offers{_shared_memory()}: enlarge it "
                "(docker run --shm-size=8g), lower data.workers, or load in the training process with data.workers=0")
    if code == errno.EAGAIN or any(sign in text for sign in NO_PROCESSES):
        return (f"the system starts no more processes or threads{_limit('RLIMIT_NPROC')}: raise it with ulimit -u, or "
                "lower data.workers and OMP_NUM_THREADS")
    if code == errno.ENOMEM:
        return "the system has no memory for another process: lower data.workers, or recipe.batch_size"
    return None


def is_out_of_files(error: BaseException) -> bool:
    """Whether an error is that of too many open files, which says nothing about the file that was to be opened."""
    text = str(error).lower()
    return getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE) or any(sign in text for sign in NO_FILES)


def check_files_left(error: BaseException) -> None:
    """Raises an error of too many open files again, where others are recorded as a fault of the file that was to be
    read: a good file would be reported as unreadable, and left out.
    """
    if is_out_of_files(error):
        raise error


def exit_code(error: BaseException) -> int:
    """The exit code of a loading process that ends with `error`, from which `explain_lost_worker` finds the limit: the
    training process receives nothing else.
    """
    return errno.EMFILE if is_out_of_files(error) else 1


def _limit(name: str) -> str:
    """The limit of a resource, for a message; "" if there is none."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return ""
    soft = resource.getrlimit(getattr(resource, name))[0]
    return "" if soft == resource.RLIM_INFINITY else f", the limit is {soft:,}"


def _shared_memory() -> str:
    return f" ({shutil.disk_usage('/dev/shm').total / 1e6:,.0f} MB)" if os.path.isdir("/dev/shm") else ""


def is_lost_connection(error: BaseException) -> bool:
    """Whether a loading process ended while the training process fetched the shared memory of a batch from it."""
    no_socket = isinstance(error, FileNotFoundError) and error.filename is None
    in_worker = "DataLoader worker process" in str(error)  # an error of the data
    return not in_worker and (no_socket or isinstance(error, ConnectionError | EOFError))


def explain_lost_worker(error: Exception, timeout: float, codes: Sequence[int | None] = ()) -> str | None:
    """One sentence for what DataLoader raises when a loading process hangs or ends; None for any other error.

    Args:
        codes: exit codes of the loading processes.
    """
    text = str(error)
    if "timed out after" in text:
        return (f"no loading process returned a batch for {timeout:g} s (trainer.timeout): a file system that hangs, a "
                "frozen process, or very slow samples; with data.workers=0 the training process loads them itself")
    exited = "DataLoader worker" in text and ("exited unexpectedly" in text or "killed by signal" in text)
    if exited or is_lost_connection(error):
        if errno.EMFILE in codes or f"with exit code {errno.EMFILE}." in text:
            return explain_limit(OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
        return (f"a loading process was killed ({' '.join(text.split())[:200]}), as the system does when memory or "
                f"/dev/shm{_shared_memory()} runs out: lower data.workers, or enlarge it (docker run --shm-size=8g)")
    return None
