"""The port at which the ranks of several commands meet, checked before the data is read."""

import os
import socket
import struct

import torch.distributed as dist

from vit.run.config.composing import ConfigError
from vit.run.processes.launcher import LAUNCHER

HELLO = bytes([0]) + struct.pack("=I", 0x3C85F7CE)  # the first message to torch's TCPStore, which does not answer it
PATIENCE = 0.5  # seconds


def check_master_port(first: bool) -> None:
    """Checks MASTER_PORT where this process, and not an agent such as torchrun's, opens or joins the store of a run.

    Without this check the first rank fails after it has read the data, the others wait or print frames of C++.

    Args:
        first: whether this process opens the store.

    Raises:
        ConfigError: another program uses the port.
    """
    is_member = LAUNCHER in os.environ or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    is_member = is_member or dist.is_initialized()  # by an earlier run of this process, whose store is used again
    address, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    if is_member or not address or not port.isdecimal():
        return
    if first and is_in_use(int(port)):
        raise ConfigError(f"MASTER_PORT={port}: another program uses this port of {socket.gethostname()}; set another "
                          "free one, the same for all ranks")
    if not first and is_other_service(address, int(port)):
        raise ConfigError(f"MASTER_PORT={port}: what listens at {address}:{port} is not the first rank of a run; set "
                          "another port that is free there, the same for all ranks")


def is_in_use(port: int) -> bool:
    """Whether no store can be opened at a port of this machine."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))  # without listening: another rank might connect
        except OSError:
            return True
    return False


def is_other_service(address: str, port: int) -> bool:
    """Whether what listens there answers or closes the connection, as torch's store does not. False if nothing listens:
    the first rank may start later.
    """
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return not answers("127.0.0.1", store.port) and answers(address, port)  # unless the store of this torch does too


def answers(address: str, port: int) -> bool:
    """Whether a service sends something, or closes the connection, after the first message to a store."""
    try:
        with socket.create_connection((address, port), timeout=PATIENCE) as connection:
            connection.sendall(HELLO)
            connection.settimeout(PATIENCE)
            connection.recv(1)
            return True
    except ConnectionResetError:
        return True
    except OSError:  # nothing listens, or it waits for more
        return False
