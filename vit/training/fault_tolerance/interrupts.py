"""Stop signals: Ctrl-C, SIGTERM, SIGUSR1 and SIGHUP end a run with a checkpoint.

`stopping.py` saves the checkpoint. This module imports neither torch nor Lightning, so that a command can install the
handlers before it loads them.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

from vit.files.machine import STOP_SIGNALS

REPEATED = 1.0  # seconds within which a second signal means the same stop
DELAY = 0.05  # seconds until a dropped signal is repeated, and that printing a line may take


class Interrupted(SystemExit):
    """Raised on a stop signal. If it is not caught, the process exits with 128 + the signal's number (143 for SIGTERM).

    Args:
        agreed: whether all ranks stop at the same step, so that they can save together. Ranks above 0 then exit with 0,
            because torchrun and Lightning's launcher kill rank 0 when another rank fails.
    """

    def __init__(self, signum: int, agreed: bool, rank: int = 0):
        super().__init__(0 if agreed and rank else 128 + signum)
        self.signal, self.agreed = signal.Signals(signum), agreed


def find_stop(error: BaseException | None) -> Interrupted | None:
    """The stop that caused an error, in its chain of causes and contexts; None if there is none.

    A library that is interrupted may raise an error of its own.
    """
    while error is not None and not isinstance(error, Interrupted):
        error = error.__cause__ or error.__context__
    return error


Handler = Callable[[int, FrameType | None], None]


def install_handlers(handler: Handler, signals: Sequence[int] = STOP_SIGNALS) -> dict[int, object]:
    """Install `handler` for these signals and return the previous handlers.

    Signals that are ignored, as under `nohup`, stay ignored. Outside the main thread nothing is installed, because
    Python does not allow it.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    previous = {signum: signal.getsignal(signum) for signum in signals}
    previous = {s: h for s, h in previous.items() if h not in (signal.SIG_IGN, None)}  # None: a handler in C
    for signum in previous:
        signal.signal(signum, handler)
    return previous


@contextlib.contextmanager
def handle_stop_signals(handler: Handler, signals: Sequence[int] = STOP_SIGNALS) -> Iterator[None]:
    """Context manager: `handler` receives these signals."""
    previous = install_handlers(handler, signals)
    try:
        yield
    finally:
        for signum, earlier in previous.items():
            signal.signal(signum, earlier)


class Terminated(KeyboardInterrupt):
    """Raised on a stop signal other than Ctrl-C in a command that has no state to save. The command ends as after
    Ctrl-C; its exit code is 128 + the number of `signal`.
    """

    def __init__(self, signum: int) -> None:
        super().__init__()
        self.signal = signal.Signals(signum)


@contextlib.contextmanager
def stop_signals_as_interrupts() -> Iterator[None]:
    """Context manager: stop signals other than Ctrl-C raise `Terminated`. A second signal within `REPEATED` seconds has
    no effect, because some programs, such as `timeout`, send two at once; a later one ends the process immediately.

    In processes that are forked inside, these signals have their default effect.
    """
    own, received = os.getpid(), None

    def terminate(signum: int, frame: FrameType | None) -> None:
        nonlocal received
        now = time.monotonic()
        if os.getpid() != own or (received is not None and now - received > REPEATED):
            signal.signal(signum, signal.SIG_DFL)
            signal.raise_signal(signum)
        if received is None:
            received = now
            raise Terminated(signum)

    with handle_stop_signals(terminate, [signum for signum in STOP_SIGNALS if signum != signal.SIGINT]):
        yield


class StopSignals:
    """The handler of the stop signals of a run, used as `with StopSignals().handled():`.

    The first signal raises `Interrupted` immediately; with `deferred` it is recorded in `requested` instead, and the
    training loop stops between two steps. Further signals are ignored, so that they do not interrupt saving, except
    Ctrl-C, which always raises the second time.
    """

    def __init__(self, verbose: bool = True):
        self.verbose = verbose
        self.requested: int | None = None
        self.deferred = False
        self.begun = False  # training has begun: all ranks have joined, and there is something to save
        self.rank = 0
        self._printed = False
        self._dropped = False  # whether the first stop was dropped and is going to be repeated

    @contextlib.contextmanager
    def handled(self) -> Iterator[None]:
        """Context manager: this object receives the stop signals.

        Raises:
            Interrupted: on a stop signal; also in place of an error that follows an immediate stop, because a library
                that is interrupted may raise an error of its own.
        """
        with handle_stop_signals(self.handle), self._repeat_dropped_stops():
            try:
                yield
            except Exception as error:
                if self.requested is None or self.deferred:
                    raise
                raise Interrupted(self.requested, agreed=False, rank=self.rank) from error
            if self._dropped:  # and has not been repeated yet
                raise Interrupted(self.requested, agreed=False, rank=self.rank)

    @contextlib.contextmanager
    def _repeat_dropped_stops(self) -> Iterator[None]:
        """Context manager: repeats a stop that was raised in a finalizer (`__del__`), where Python drops errors.

        Only the main thread receives signals; other threads leave `sys.unraisablehook`, which is global, unchanged.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        earlier, timers = sys.unraisablehook, []

        def repeat(unraisable: "sys.UnraisableHookArgs") -> None:
            if not isinstance(unraisable.exc_value, Interrupted):
                return earlier(unraisable)
            self._dropped = not self.deferred  # a repeated Ctrl-C stays the second one, which stops at once
            timers.append(threading.Timer(DELAY, signal.raise_signal, [unraisable.exc_value.signal]))
            timers[-1].start()

        sys.unraisablehook = repeat
        try:
            yield
        finally:
            sys.unraisablehook = earlier
            for timer in timers:  # the work that the signal would stop has ended with an error
                timer.cancel()

    def handle(self, signum: int, frame: FrameType | None) -> None:
        """The signal handler.

        Raises:
            Interrupted: stop immediately.
        """
        first, self.requested = self.requested is None or self._dropped, self.requested or signum
        self._dropped = False
        if first and self.verbose and not self._printed:
            when = " after this step and saving" if self.deferred else ""
            again = "; Ctrl-C again stops at once, without saving" if when and signum == signal.SIGINT else ""
            _print(f"\n{signal.Signals(signum).name}: stopping{when}{again}")
            self._printed = True
        if (first and not self.deferred) or (not first and signum == signal.SIGINT):
            raise Interrupted(signum, agreed=False, rank=self.rank)


def _print(text: str) -> None:
    """Print to standard error from another thread: the interrupted thread may be writing to this stream, and a nested
    write would raise an error. The new thread then waits for that write, so it is joined for a short time only.
    """
    printing = threading.Thread(target=print, args=(text,), kwargs={"file": sys.stderr})
    printing.start()
    printing.join(DELAY)
