"""What a measurement tells while it goes on: how many samples each finished batch had."""

from collections.abc import Callable

Progress = Callable[[int], None]
