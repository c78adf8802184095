"""Errors of loggers during the training, such as those of a tracker that cannot be reached: they do not end the run."""

import functools
import logging
import time
from collections.abc import Callable

from pytorch_lightning.loggers import Logger

from vit.messages import one_line
from vit.training.fault_tolerance.interrupts import find_stop

log = logging.getLogger("vit")

CALLS = ("log_metrics", "save", "finalize")  # of Lightning's training loop
PAUSE = 20  # times the seconds of a failed call: waiting for a tracker takes at most 5 % of the time


class LoggerErrors:
    """The first error of a logger is a warning; later ones are not reported.

    After a failed call the logger gets nothing for `PAUSE` times the seconds of that call, because some trackers repeat
    a call for minutes.

    Args:
        key: the node of the logger in the config.
    """

    def __init__(self, key: str):
        self.key = key
        self.failed = False
        self.paused_until = 0.0

    def guard(self, logger: Logger) -> Logger:
        """The same logger; its methods no longer raise errors."""
        for name in CALLS:
            setattr(logger, name, self._guarded(name, getattr(logger, name)))
        return logger

    def _guarded(self, name: str, call: Callable) -> Callable:
        @functools.wraps(call)
        def guarded(*arguments: object, **options: object) -> None:
            begin = time.monotonic()
            if begin < self.paused_until and name != "finalize":
                return
            try:
                call(*arguments, **options)
            except Exception as error:
                if find_stop(error):
                    raise
                if not self.failed:
                    log.warning("%s: %s failed (%s); the run goes on, and values may be missing there that metrics.csv "
                                "has", self.key, name, one_line(error))
                self.failed = True
                self.paused_until = time.monotonic() + PAUSE * (time.monotonic() - begin)

        return guarded
