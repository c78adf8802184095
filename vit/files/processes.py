"""Host and process id in the names of temporary files, so that those of dead processes can be removed."""

import os
import socket


def host_name() -> str:
    """The name of this machine without its domain."""
    return socket.gethostname().split(".")[0]


def is_alive(pid: int) -> bool:
    """Whether a process of this machine is running; True if that cannot be determined."""
    if os.name == "nt":  # signal 0 is Ctrl-C on Windows
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
