"""A stop signal to a rank that waits for the others to join, where Python does not run its handlers."""

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator

from vit.files.machine import STOP_SIGNALS
from vit.training.fault_tolerance.interrupts import StopSignals
from vit.training.fault_tolerance.watchdog import current_line

GRACE = 5.0  # seconds in which the handler may run
_watched = threading.Event()


@contextlib.contextmanager
def stops_while_joining(signals: StopSignals, grace: float = GRACE) -> Iterator[None]:
    """Context manager: exits with 128 + the signal's number, `grace` seconds after a stop signal that arrives before
    training begins, if this thread waits for other ranks by then.

    The wait for a store or for a collective operation is a call of C++ that does not return for a signal. The first
    rank may never come, as it may have received the signal before it opened the store. Nothing is unsaved so far.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received, sent = socket.socketpair()
    sent.setblocking(False)
    earlier = signal.set_wakeup_fd(sent.fileno(), warn_on_full_buffer=False)
    over = threading.Event()
    watching = threading.Thread(target=_exit_if_blocked, name="stops while joining", daemon=True,
                                args=(received, signals, threading.get_ident(), grace, over))
    watching.start()
    _watched.set()
    try:
        yield
    finally:
        over.set()
        _watched.clear()
        signal.set_wakeup_fd(earlier, warn_on_full_buffer=False)
        sent.shutdown(socket.SHUT_RDWR)  # which ends the thread, also if a forked process has the socket open
        sent.close()
        watching.join()
        received.close()


def _exit_if_blocked(received: socket.socket, signals: StopSignals, main: int, grace: float,
                     over: threading.Event) -> None:
    """Read the numbers of signals, which Python writes also where it does not run their handlers."""
    while number := received.recv(1):
        if number[0] not in STOP_SIGNALS or signals.begun or over.wait(grace) or signals.begun:
            continue
        if current_line(main)[1]:
            if signals.requested is None:  # the handler has not printed it
                print(f"\n{signal.Signals(number[0]).name}: stopping", file=sys.stderr, flush=True)
            os._exit(128 + number[0])


def _after_fork() -> None:
    """Signals to a process that this one forked, such as SIGTERM at the end of a pool, are not signals to this one."""
    if _watched.is_set():
        signal.set_wakeup_fd(-1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
