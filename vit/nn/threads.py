"""How many threads of the processor a piece of work is worth."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread_below(small: float, flops: float) -> Iterator[bool]:
    """One thread inside where a step takes fewer than `small` operations, since waking a second one costs more than it
    computes; gives whether that changes anything. Afterwards there are as many as before.
    """
    threads = torch.get_num_threads()
    fewer = flops < small and threads > 1
    if fewer:
        torch.set_num_threads(1)
    try:
        yield fewer
    finally:
        if fewer:
            torch.set_num_threads(threads)
