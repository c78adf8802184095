"""A promise and the cases that test it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Case:
    """One injected fault.

    Args:
        name: unique within its promise.
        run: is called with an empty folder; raises, usually an AssertionError, if the promise is broken.
        quick: whether the case is part of the default test suite (a few seconds).
    """

    name: str
    run: Callable[[Path], None]
    quick: bool = False


@dataclass(frozen=True)
class Promise:
    """A guarantee for users.

    Args:
        title: the sentence in the table of promises.
        cases: creates the cases; nothing expensive happens before one of them runs.
    """

    title: str
    cases: Callable[[], Iterable[Case]]
