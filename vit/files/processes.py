"""This machine and its processes, and the signals that stop them.

Temporary files have host and process id in their names, so that those of dead processes can be removed.
"""

import contextlib
import os
import platform
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

STOP_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP") if hasattr(signal, name)]
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # options of mallopt, from malloc.h
UNUSED_BYTES, ALLOCATION_BYTES = 2**29, 2**30  # freed memory that stays with the process; the largest such allocation


def host_name() -> str:
    """The name of this machine without its domain."""
    return socket.gethostname().split(".")[0]


def is_alive(pid: int) -> bool:
    """Whether a process of this machine is running; True if that cannot be determined."""
    if os.name == "nt":  # signal 0 is Ctrl-C on Windows
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@contextlib.contextmanager
def stop_signals_blocked() -> Iterator[None]:
    """Context manager: stop signals wait until its end. Processes that are started inside begin with them blocked.

    Has no effect on Windows, which has no blocked signals.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unblock_stop_signals() -> None:
    """Receive the stop signals again in a process that was started with them blocked."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def keep_freed_memory() -> bool:
    """Make the C library keep the memory of freed CPU tensors for later tensors; False if it is not glibc.

    By default large allocations are returned to the system, which clears each page when it is used again. Without that
    a training step of a small translation model with torch's cross entropy is 1.2 to 1.7 times as fast
    (benchmarks/cpu_step.py): its logits and their gradients take 80 MB each in float32. Training runs and commands call
    it; other programs may.
    """
    import ctypes

    if platform.libc_ver()[0] != "glibc":
        return False
    options = {M_TRIM_THRESHOLD: UNUSED_BYTES, M_MMAP_THRESHOLD: ALLOCATION_BYTES}
    return all(ctypes.CDLL(None).mallopt(option, size) == 1 for option, size in options.items())


def processor_name() -> str:
    """The name that Linux reports, elsewhere that of the platform module."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
