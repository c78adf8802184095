"""The port of a run whose ranks are started by hand: an error of one sentence where another program uses it."""

import errno
import socket
import threading

import pytest
from torch.distributed import TCPStore

from vit.run.config.composing import ConfigError
from vit.run.processes.launcher import LAUNCHER
from vit.run.processes.master_port import check_master_port, is_in_use


@pytest.fixture(autouse=True)
def no_agent(monkeypatch):
    for name in (LAUNCHER, "TORCHELASTIC_USE_AGENT_STORE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")


@pytest.fixture
def listener():
    with socket.create_server(("", 0)) as made:
        yield made


def test_the_first_rank_needs_a_free_port(monkeypatch, listener):
    port = listener.getsockname()[1]
    monkeypatch.setenv("MASTER_PORT", str(port))
    with pytest.raises(ConfigError, match=f"MASTER_PORT={port}: another program uses this port of"):
        check_master_port(first=True)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")  # the store of torchrun
    check_master_port(first=True)
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE")
    with monkeypatch.context() as second:
        second.setattr("torch.distributed.is_initialized", lambda: True)  # the store of an earlier run of this process
        check_master_port(first=True)
    listener.close()
    check_master_port(first=True)
    TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)  # the check leaves the port free


def test_the_check_of_the_first_rank_accepts_no_connection(monkeypatch, listener):
    """Another rank that connected at that moment would take it for another program, which closes the connection."""
    port, plain, answers = listener.getsockname()[1], socket.socket(), []

    class Checked(socket.socket):
        def close(self):
            answers.append(plain.connect_ex(("127.0.0.1", port)))
            super().close()

    listener.close()
    monkeypatch.setattr(socket, "socket", Checked)
    assert not is_in_use(port) and answers == [errno.ECONNREFUSED]
    plain.close()


def test_another_rank_needs_a_store_at_the_port_or_nothing_yet(monkeypatch, listener):
    def close():
        listener.accept()[0].close()

    port = listener.getsockname()[1]
    monkeypatch.setenv("MASTER_PORT", str(port))
    closing = threading.Thread(target=close)
    closing.start()
    with pytest.raises(ConfigError, match=f"what listens at 127.0.0.1:{port} is not the first rank of a run"):
        check_master_port(first=False)
    closing.join()
    listener.close()
    check_master_port(first=False)  # the first rank may start later
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    check_master_port(first=False)
    store.set("key", "value")
    assert store.get("key") == b"value"
