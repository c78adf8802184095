"""A promise and the cases that put it to the test."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Case:
    """One fault, injected once.

    Args:
        name: unique within its promise.
        run: gets an empty folder; raises, with an AssertionError as a rule, when the promise is broken.
        quick: whether the case belongs to the default test suite (a few seconds).
    """

    name: str
    run: Callable[[Path], None]
    quick: bool = False


@dataclass(frozen=True)
class Promise:
    """A sentence that users may rely on.

    Args:
        title: the row of the table.
        cases: makes the cases; nothing expensive happens before one of them runs.
    """

    title: str
    cases: Callable[[], Iterable[Case]]
