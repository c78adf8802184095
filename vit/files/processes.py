"""Which process made a temporary file: its host and id are part of the name, so that files of dead ones are removed."""

import os
import socket


def host() -> str:
    return socket.gethostname().split(".")[0]


def alive(pid: int) -> bool:
    """Whether a process of this machine runs; True where that cannot be asked."""
    if os.name == "nt":  # where signal 0 is Ctrl-C
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
