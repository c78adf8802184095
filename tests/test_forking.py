"""The server of forks that other tests use, without the libraries that it usually imports."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.forking import ROOT, Forks

OWNER = """
import sys
from tests.forking import Forks
server = Forks(modules=[])
print(server.start("time:sleep", 600, folder=sys.argv[1]), server.server.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def server():
    forks = Forks(modules=[])
    yield forks
    forks.close()


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] not in "ZX"


def test_exit_codes_are_those_of_processes(server, tmp_path):
    assert server.run("os:_exit", 5, folder=tmp_path).code == 5
    assert server.run("signal:raise_signal", signal.SIGTERM, folder=tmp_path).code == -signal.SIGTERM
    assert server.run("sys:exit", folder=tmp_path).code == 0
    failed = server.run("math:sqrt", -1, folder=tmp_path)
    assert failed.code == 1 and "\nValueError: " in failed.output


def test_folder_environment_and_output_are_its_own(server, tmp_path, monkeypatch):
    monkeypatch.setenv("A_VARIABLE", "one")
    pid = server.start("os:system", "pwd; echo $A_VARIABLE; echo $OTHER >&2", folder=tmp_path / "new",
                       environment={"OTHER": "two"}, split=True)
    done = server.wait(pid)
    assert done.output.split() == [str(tmp_path / "new"), "one"] and server.errors(pid) == "two\n"
    assert not list((tmp_path / "new").iterdir())


def test_a_request_that_a_signal_interrupts_does_not_shift_the_later_responses(server, tmp_path, monkeypatch):
    """As Ctrl-C in a test of a command would: the tests after it got the response to the request before theirs."""
    failing = server.start("sys:exit", 7, folder=tmp_path)
    assert server.wait(failing).code == 7

    class Interrupted:
        def readline(self):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(server.server, "stdout", Interrupted())
        server.poll(failing)
    done = server.run("builtins:print", "a", folder=tmp_path)
    assert (done.code, done.output) == (0, "a\n")


def test_a_variable_that_is_read_at_import_is_refused(server, tmp_path):
    with pytest.raises(ValueError, match="OMP_NUM_THREADS=7 has no effect.*start a new process"):
        server.start("os:getpid", folder=tmp_path, environment={"OMP_NUM_THREADS": "7"})


def test_a_fork_that_takes_too_long_is_killed(server, tmp_path):
    pid = server.start("time:sleep", 600, folder=tmp_path)
    with pytest.raises(AssertionError, match="still running after 0.05 s"):
        server.wait(pid, 0.05)
    while server.poll(pid) is None:
        time.sleep(0.01)
    assert server.poll(pid) == -signal.SIGKILL


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="reads the states of processes from /proc")
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT])
def test_server_and_forks_end_with_their_owner(tmp_path, signum):
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], cwd=ROOT, stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    pids = [int(number) for number in owner.stdout.readline().split()]
    assert all(is_alive(pid) for pid in pids)
    while owner.poll() is None:  # one that arrives between `print` and `read` does not interrupt Python 3.14's `read`
        owner.send_signal(signum)
        time.sleep(0.05)
    end = time.monotonic() + 30
    while any(is_alive(pid) for pid in pids) and time.monotonic() < end:
        time.sleep(0.01)
    assert not any(is_alive(pid) for pid in pids)


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="reads the states of processes from /proc")
def test_a_request_whose_owner_has_ended_leaves_no_fork(tmp_path):
    """The request is in the pipe when the owner ends, which reads no response."""
    forks = Forks(modules=[])
    forks.server.stdout.close()
    request = {"function": "os:system", "arguments": ["sleep 600"], "folder": str(tmp_path),
               "environment": forks.environment, "output": str(tmp_path / "output"), "errors": str(tmp_path / "output")}
    forks.server.stdin.write(json.dumps(request) + "\n")
    forks.close()
    end = time.monotonic() + 5
    while (pids := list(running_in(tmp_path))) and time.monotonic() < end:
        time.sleep(0.01)
    assert forks.server.returncode == 0 and not pids


def test_a_server_that_imports_pyarrow_has_one_thread(tmp_path):
    """Its allocator starts a thread in some versions, which the server would refuse."""
    forks = Forks(modules=["pyarrow"])
    code = forks.wait(forks.start("time:sleep", 0, folder=tmp_path)).code
    forks.close()
    assert code == 0


def running_in(folder):
    """The processes whose working directory it is."""
    for process in (name for name in os.listdir("/proc") if name.isdigit()):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{process}/cwd") == str(folder) and is_alive(int(process)):
                yield int(process)
