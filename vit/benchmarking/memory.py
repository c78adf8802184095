"""Memory that one call of a program needs beyond what is in use before it."""

import contextlib
import ctypes
import gc
import platform
from pathlib import Path

import torch

from vit.benchmarking.timing import Program, wait_for_gpu
from vit.training.monitoring.memory import peak_memory

CLEAR = Path("/proc/self/clear_refs")
STATUS = Path("/proc/self/status")


def memory_of(program: Program) -> int | None:
    """Bytes that one call needs at its peak: activations, gradients and temporary tensors, but not weights.

    None if the system cannot reset its record of the peak, which needs a GPU or Linux.
    """
    gc.collect()
    before = reset_peak()
    if before is None:
        return None
    program()
    wait_for_gpu()
    return max(0, peak_memory() - before)


def reset_peak() -> int | None:
    """Start a new record of the peak, and return the bytes in use; None if that is not possible."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    if platform.libc_ver()[0] == "glibc":
        with contextlib.suppress(AttributeError, OSError):
            ctypes.CDLL(None).malloc_trim(0)  # memory of freed tensors goes back to the system
    try:
        CLEAR.write_text("5", encoding="ascii")  # proc(5): resets VmHWM
        lines = STATUS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))
