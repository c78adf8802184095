"""One rank of a distributed run, which the launcher starts: `python -m vit.run.processes.rank OVERRIDES`."""

import faulthandler
import json
import logging
import os
import sys
import traceback

from vit.messages import error_message
from vit.training.fault_tolerance.interrupts import StopSignals

GRACE = 20.0  # seconds for the checkpoint, after the launcher has ended
CONNECTION_ERRORS = ("gloo", "nccl", "connection closed by peer", "connection reset by peer")  # parts of messages


def main(overrides: list[str]) -> int:
    """Train. Errors are sent to the launcher, which determines whether another rank caused them. A crash in native code
    prints the stack of each thread.
    """
    faulthandler.enable()
    try:
        with StopSignals(verbose=os.environ["RANK"] == "0").handled():
            from vit.run import train
            from vit.run.processes.launcher import LAUNCHER
            from vit.run.processes.separate_process import stop_with_parent

            stop_with_parent(int(os.environ[LAUNCHER]), GRACE)
            train(overrides)
    except Exception as error:
        report(error)
    return 0


def report(error: Exception) -> None:
    """Send the error to the launcher and end this process, without waiting for other ranks."""
    from vit.run.processes.launcher import LOST_PEER
    from vit.training.fault_tolerance.watchdog import store_of_environment

    if os.environ.get("VIT_DEBUG", "0") not in ("", "0"):
        traceback.print_exception(error)
    values = {"kind": type(error).__name__, "text": error_message(error)}
    store_of_environment(30).set(f"failure/{os.environ['RANK']}", json.dumps(values))
    logging.shutdown()
    sys.stdout.flush()
    os._exit(LOST_PEER if lost_peer(error) else 1)


def lost_peer(error: BaseException) -> bool:
    """Whether the error is a broken connection to another rank, and thus a failure of that rank."""
    import torch

    text = str(error).lower()
    return isinstance(error, torch.distributed.DistError) or (
        isinstance(error, RuntimeError) and any(sign in text for sign in CONNECTION_ERRORS)
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
