"""The progress callback of an evaluation: called with the number of samples of each finished batch."""

from collections.abc import Callable

from vit.data.threads import StageProgress

Progress = Callable[[int], None]


def as_stage(progress: StageProgress | None, stage: str, total: int) -> Progress | None:
    """The callback of an evaluation that is one stage of a longer task; None without `progress`."""
    if progress is None:
        return None
    done = 0

    def advance(samples: int) -> None:
        nonlocal done
        done += samples
        progress(stage, done, total)

    return advance
