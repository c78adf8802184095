"""Work on many samples in threads, with the results in order, and its progress; decoders of images release the GIL."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

from vit.files.machine import available_cores

PART = 8  # items per task: passing a single small image to a thread takes longer than decoding it
AHEAD = 2  # parts per thread that are computed before their results are requested
INTERVAL = 0.1  # seconds between two reports of the progress
StageProgress = Callable[[str, int, int | None], None]  # (stage, done, total), without a total if it is not known
T, R = TypeVar("T"), TypeVar("R")


def map_in_threads(function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """`function(item)` of each item in order, computed ahead by up to 8 threads.

    An error of the function is raised in place of the results of up to `PART` consecutive items.
    """
    workers = min(available_cores(), 8)
    items, pending = iter(items), deque[Future[list[R]]]()
    pool = ThreadPoolExecutor(workers)

    def compute(part: list[T]) -> list[R]:
        return [function(item) for item in part]

    try:
        while True:
            while len(pending) < AHEAD * workers and (part := list(islice(items, PART))):
                pending.append(pool.submit(compute, part))
            if not pending:
                return
            yield from pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def reported(
    results: Iterable[T], stage: str, total: int | None, progress: StageProgress | None, before: int = 0
) -> Iterator[T]:
    """The results, whose number is reported while they are consumed; `before` of `total` are done already."""
    if progress is None:
        yield from results
        return
    next_report = 0.0
    for done, result in enumerate(results, before + 1):
        yield result
        if (now := time.monotonic()) >= next_report or done == total:
            progress(stage, done, total)
            next_report = now + INTERVAL
