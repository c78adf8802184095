"""The speed of bfloat16 and float16 on this processor, which may have to emulate them."""

import logging
import time
from functools import cache

import torch
import torch.nn.functional as F

log = logging.getLogger("vit")

MIN_PRODUCTS = 3  # products that are timed, however slow they are
DTYPES = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}  # by Lightning's names of precisions
CLEARLY_SLOWER = 0.8  # relative speed; with instructions for it bfloat16 usually has at least 1.5


@cache
def relative_speed(dtype: torch.dtype, size: int = 256, seconds: float = 0.02) -> float:
    """Time of a linear layer (size,size) -> (size,size) in float32 over that in `dtype` on the processor; takes about
    50 ms.

    The shortest of many times counts, which depends least on other processes. Where `dtype` is emulated, the products
    of the backward pass are even slower.
    """
    times = {}
    for each in (torch.float32, dtype):
        x, weight = torch.ones(size, size, dtype=each), torch.ones(size, size, dtype=each)
        F.linear(x, weight)  # the first product chooses and prepares the kernel
        found, end = [], time.perf_counter() + seconds
        while (start := time.perf_counter()) < end or len(found) < MIN_PRODUCTS:
            F.linear(x, weight)
            found.append(time.perf_counter() - start)
        times[each] = min(found)
    return times[torch.float32] / times[dtype]


def is_slow(precision: str, device: str) -> bool:
    """Whether a precision is clearly slower than float32; only processors are measured."""
    return device == "cpu" and precision in DTYPES and relative_speed(DTYPES[precision]) < CLEARLY_SLOWER


def slowness(precision: str) -> str:
    """How slow a precision is on this processor, for messages."""
    times = 1 / relative_speed(DTYPES[precision])
    return f"a linear layer in precision {precision} takes about {times:.2g} times as long here as in float32"


@cache
def warn_if_slow(precision: str, device: str) -> None:
    """Logs a warning if a precision `is_slow`; once per process."""
    if is_slow(precision, device):
        log.warning("%s; 32-true is faster", slowness(precision))
