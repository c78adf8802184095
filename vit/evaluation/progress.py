"""The progress callback of an evaluation: called with the number of samples of each finished batch."""

from collections.abc import Callable

Progress = Callable[[int], None]
