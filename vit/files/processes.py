"""Host and process id in the names of temporary files, so that those of dead processes can be removed."""

import os
import socket


def host() -> str:
    return socket.gethostname().split(".")[0]


def alive(pid: int) -> bool:
    """Whether a process of this machine runs; True if that cannot be determined."""
    if os.name == "nt":  # where signal 0 is Ctrl-C
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
