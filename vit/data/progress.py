"""The progress callback of long work on data."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

StageProgress = Callable[[str, int, int | None], None]  # (stage, done, total), without a total where it is not known
INTERVAL = 0.1  # seconds between two reports
T = TypeVar("T")


def reported(
    results: Iterable[T], stage: str, total: int, progress: StageProgress | None, before: int = 0
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
