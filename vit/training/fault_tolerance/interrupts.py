"""Stop signals: Ctrl-C, SIGTERM, SIGUSR1 and SIGHUP as one request to end a run in good order.

Imports neither torch nor Lightning, so that a command can install the handlers before it loads them.
"""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP") if hasattr(signal, name)]


class Interrupted(SystemExit):
    """A run that was asked to stop; uncaught, the process exits with 128 + the signal's number (143 for SIGTERM).

    `agreed` means that all ranks stop at this same step, so that they can save together. The other ranks then exit with
    0, because torchrun and Lightning's launcher kill the first rank when another one fails.
    """

    def __init__(self, signum: int, agreed: bool, rank: int = 0):
        super().__init__(0 if agreed and rank else 128 + signum)
        self.signal, self.agreed = signal.Signals(signum), agreed


Handler = Callable[[int, FrameType | None], None]


def install(handler: Handler) -> dict[int, object]:
    """Handle the stop signals with it and return the handlers that were there.

    Signals that the process was started to ignore (`nohup`) stay ignored. Outside the main thread Python allows no
    handlers: there nothing is installed.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    previous = {signum: signal.getsignal(signum) for signum in SIGNALS}
    previous = {s: h for s, h in previous.items() if h not in (signal.SIG_IGN, None)}  # None: a handler in C
    for signum in previous:
        signal.signal(signum, handler)
    return previous


@contextlib.contextmanager
def handled(handler: Handler) -> Iterator[None]:
    """The stop signals go to `handler`."""
    previous = install(handler)
    try:
        yield
    finally:
        for signum, earlier in previous.items():
            signal.signal(signum, earlier)


class StopSignals:
    """What the stop signals do to a run; `with StopSignals().handled():` around it.

    The first one raises `Interrupted` at once, or with `deferred` is only recorded in `requested`, for training loops,
    which stop between two steps. Later ones change nothing, so that they cannot interrupt the saving; only a second
    Ctrl-C raises in any case.
    """

    def __init__(self, verbose: bool = True):
        self.verbose = verbose
        self.requested: int | None = None
        self.deferred = False
        self.rank = 0

    def handled(self) -> contextlib.AbstractContextManager[None]:
        return handled(self.handle)

    def handle(self, signum: int, frame: FrameType | None) -> None:
        first, self.requested = self.requested is None, self.requested or signum
        if first and self.verbose:
            when = " after this step and saving" if self.deferred else ""
            again = "; Ctrl-C again stops at once, without saving" if when and signum == signal.SIGINT else ""
            print(f"\n{signal.Signals(signum).name}: stopping{when}{again}", file=sys.stderr)
        if (first and not self.deferred) or (not first and signum == signal.SIGINT):
            raise Interrupted(signum, agreed=False, rank=self.rank)
