"""Explanations of the system limits that a run can reach: open files, processes, memory and shared memory."""

import errno
import os
import shutil

NO_FILES = ("too many open files", "received 0 items of ancdata")
NO_SHARED = ("bus error", "out of shared memory", "unable to open shared memory", "unable to write to file </torch")
NO_PROCESSES = ("can't start new thread", "resource temporarily unavailable")


class SystemLimitError(OSError):
    """A resource that the system refused; the message names the limit and how to raise it."""


def explain_limit(error: BaseException) -> str | None:
    """One sentence for an error caused by a system limit; None for any other."""
    text, code = str(error).lower(), getattr(error, "errno", None)
    if code in (errno.EMFILE, errno.ENFILE) or any(sign in text for sign in NO_FILES):
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


def explain_lost_worker(error: Exception, timeout: float) -> str | None:
    """One sentence for what DataLoader raises when a loading process hangs or ends; None for any other error."""
    text = str(error)
    if "timed out after" in text:
        return (f"no loading process returned a batch for {timeout:g} s (trainer.timeout): a file system that hangs, a "
                "frozen process, or very slow samples; with data.workers=0 the training process loads them itself")
    if "DataLoader worker" in text and ("exited unexpectedly" in text or "killed by signal" in text):
        return (f"a loading process was killed ({' '.join(text.split())[:200]}), as the system does when memory or "
                f"/dev/shm{_shared_memory()} runs out: lower data.workers, or enlarge it (docker run --shm-size=8g)")
    return None
