"""This machine and its processes: the cores and the memory that this process may use, in a container too, and the
signals that stop processes.

Temporary files have host and process id in their names, so that those of dead processes can be removed.
"""

import contextlib
import math
import os
import platform
import signal
import socket
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath

ASSUMED_MEMORY = 2**34  # bytes, if the system does not state it
GROUPS = Path("/proc/self/cgroup")  # the control groups of this process, on Linux
MOUNT = Path("/sys/fs/cgroup")
THREADS = "OMP_NUM_THREADS"  # the environment variable that torch reads when it is imported
WAITING, SPINS = "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"  # those of its waiting threads
OTHER_THREADS = ("TORCHINDUCTOR_COMPILE_THREADS", "RAYON_NUM_THREADS")  # of torch.compile (processes) and tokenizers
STOP_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP") if hasattr(signal, name)]
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # options of mallopt, from malloc.h
UNUSED_BYTES, ALLOCATION_BYTES = 2**29, 2**30  # freed memory that stays with the process; the largest such allocation


def available_cores() -> int:
    """The number of processor cores that this process may use: those to which it is bound, or fewer if its container
    is limited to less of their time, rounded up.
    """
    limit = cpu_limit()
    return bound_cores() if limit is None else max(1, min(bound_cores(), math.ceil(limit)))


def total_memory() -> int:
    """The bytes of main memory, or of its container; 16 GiB on systems that do not state it, such as Windows."""
    known = hasattr(os, "sysconf")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if known else ASSUMED_MEMORY
    return min(memory, memory_limit() or memory)


def limit_threads() -> None:
    """Set OMP_NUM_THREADS and its like, unless they are set, to the cores of a container that may not use all those of
    the machine.

    By default torch starts a thread per core of the machine. In a container with less processor time the system pauses
    them, and all wait for those that are paused.
    """
    if (cores := available_cores()) < bound_cores():
        for variable in (THREADS, *OTHER_THREADS):
            os.environ.setdefault(variable, str(cores))


def limit_spinning() -> None:
    """Let threads of torch that wait for others spin for some 0.05 ms before they sleep, unless the user has set
    OMP_WAIT_POLICY. Call it before torch is imported.

    By default they spin for milliseconds, and occupy a core that the thread they wait for may need. Without spinning
    they are woken up for each operation, which takes longer than many operations of a small model.
    """
    if WAITING not in os.environ:
        os.environ[WAITING] = "PASSIVE"  # libomp reads it too, but not the other variable
        os.environ.setdefault(SPINS, "2000")


def threads_per_process(processes: int) -> dict[str, str]:
    """The environment variable that divides the cores among `processes` of this machine; none if the user set it."""
    stated, cores = os.environ.get(THREADS), available_cores()
    by_user = stated is not None and not (cores < bound_cores() and stated == str(cores))  # else by `limit_threads`
    return {} if by_user else {THREADS: str(max(1, cores // processes))}


def bound_cores() -> int:
    """The number of cores to which this process is bound."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def cpu_limit(groups: Path = GROUPS, mount: Path = MOUNT) -> float | None:
    """The processor time that the container may use, in cores; None without a limit."""
    limits = []
    for folder in group_folders("cpu", groups, mount):
        quota, *period = read_words(folder / "cpu.max") or read_words(folder / "cpu.cfs_quota_us") or ["max"]
        period = period or read_words(folder / "cpu.cfs_period_us")
        if quota.isdecimal() and period and int(period[0]):
            limits.append(int(quota) / int(period[0]))
    return min(limits, default=None)


@cache
def memory_limit(groups: Path = GROUPS, mount: Path = MOUNT) -> int | None:
    """The bytes of memory that the container may use; None without a limit."""
    limits = []
    for folder in group_folders("memory", groups, mount):
        limits += read_words(folder / "memory.max") or read_words(folder / "memory.limit_in_bytes")
    return min((int(each) for each in limits if each.isdecimal()), default=None)


def group_folders(controller: str, groups: Path, mount: Path) -> Iterator[Path]:
    """The folders of the control group of this process and of the groups that contain it, whose limits hold too.

    Version 2 has one hierarchy, version 1 one for each controller. Inside a container the outer folders may be missing.
    """
    try:
        lines = groups.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        parts = PurePosixPath(path).parts[1:]
        count = 0 if ".." in parts else len(parts)  # a path with .. is outside of the mount
        for base in {mount / controllers, mount / controller} if controllers else {mount, mount / "unified"}:
            yield base
            yield from (base.joinpath(*parts[: i + 1]) for i in range(count))


def read_words(path: Path) -> list[str]:
    """The white-space-separated words of a file; none if it cannot be read."""
    try:
        return path.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return []


def busy_cores(path: str = "/proc/loadavg") -> int:
    """How many threads of the machine run besides the one that asks, at this moment; 0 if the system does not state
    it.
    """
    try:
        return max(0, int(read_words(Path(path))[3].split("/")[0]) - 1)
    except (IndexError, ValueError):
        return 0


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


@cache
def allow_forks() -> None:
    """Make forks of this process, such as the workers of a server that loads the model first, use one thread of torch
    from now on.

    A fork does not have the threads that GNU OpenMP has started in this process, and waits for them forever.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=use_one_thread)


def use_one_thread() -> None:
    """Let torch use one thread."""
    import torch

    if torch.get_num_threads() > 1:
        torch.set_num_threads(1)


def discard_output() -> None:
    """Discard further standard output, whose other end has closed, as `head` does."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
