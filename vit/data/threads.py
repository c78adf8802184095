"""Work on many samples in threads, with the results in order; decoders of images release the GIL."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

from vit.files.resources import available_cores

PART = 8  # items that a thread gets at a time: to pass one small image to it takes longer than to decode the image
AHEAD = 2  # parts per thread that are computed before their results are requested
T, R = TypeVar("T"), TypeVar("R")


def map_in_threads(function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """`function(item)` of each item in order, computed ahead by up to 8 threads; an error is raised in place of the
    results of its `PART` items.
    """
    workers = min(available_cores(), 8)
    items, pending = iter(items), deque[Future[list[R]]]()
    pool = ThreadPoolExecutor(workers)

    def computed(part: list[T]) -> list[R]:
        return [function(item) for item in part]

    try:
        while True:
            while len(pending) < AHEAD * workers and (part := list(islice(items, PART))):
                pending.append(pool.submit(computed, part))
            if not pending:
                return
            yield from pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
