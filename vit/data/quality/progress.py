"""The callback by which long audits report how far they are."""

from collections.abc import Callable

StageProgress = Callable[[str, int, int | None], None]  # (stage, done, total), without a total where it is not known
