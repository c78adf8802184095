"""Runs functions in forks of one warm process, so that a test does not pay for importing torch.

Nothing starts a thread before a fork: `serve` only imports, and composes a config once.
"""

import atexit
import contextlib
import gc
import importlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).parents[1]
WARM = ("vit.run.training_run", "vit.run.command", "vit.run.jobs.classification", "vit.run.jobs.masked_images",
        "vit.run.finish", "vit.exchange.convert", "torch.optim.adamw", "matplotlib.pyplot", "vit.cli",
        "tests.commands")
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",  # jemalloc of pyarrow 20 to 24 starts one when imported
}
READ_AT_IMPORT = ("OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "TORCH_", "TORCHDYNAMO_", "TORCHINDUCTOR_", "PYTORCH_",
                  "CUDA_", "LD_", "PYTHON", "HF_", "XDG_", "MPL", "HOME")  # prefixes of variables


@dataclass(frozen=True)
class Exit:
    """The result of a fork: its exit code (negative: the signal that killed it) and its output."""

    code: int
    output: str


class Forks:
    """A server process. Each fork runs one function in its own session and folder.

    The server and all forks end when `close` is called or this process ends, even if it is killed.

    Args:
        environment: the variables of the server; by default those of this process.
        modules: that it imports before the first fork.
        root: the folder of the packages `vit` and `tests`.
    """

    def __init__(
        self, environment: Mapping[str, str] | None = None, modules: Sequence[str] = WARM, root: Path = ROOT
    ) -> None:
        self.given, self.root = environment, root
        self.environment = self.variables()
        self.outputs: dict[int, Path] = {}
        self.requests = 0
        self.folder = tempfile.TemporaryDirectory(prefix="vit-forks-", ignore_cleanup_errors=True)
        self.server = subprocess.Popen(
            [sys.executable, "-c", f"from tests.forking import serve; serve({list(modules)})"],
            cwd=root,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        atexit.register(self.close)

    def start(
        self, function: str, *arguments: object, folder: Path, environment: Mapping[str, str] | None = None,
        split: bool = False,
    ) -> int:
        """Calls `module:function` with JSON arguments in a fork; returns its process id, which is also its group id.

        Args:
            folder: its working directory.
            environment: variables besides those that the server was given, or those of this process.
            split: whether its standard error is separate (`errors`) instead of part of the output.

        Raises:
            ValueError: a variable of `environment` that libraries read when they are imported differs from the
                server's.
        """
        for name, value in (environment or {}).items():
            if name.startswith(READ_AT_IMPORT) and value != self.environment.get(name):
                raise ValueError(f"{name}={value} has no effect: the server of forks has imported the libraries with "
                                 f"{self.environment.get(name)}; start a new process")
        variables = self.variables() | dict(environment or {})
        output = Path(self.folder.name) / str(self.requests)  # not the process id, which may occur twice
        pid = self._request(function=function, arguments=arguments, folder=str(folder), environment=variables,
                            output=str(output), errors=str(output.with_suffix(".errors") if split else output))
        self.outputs[pid] = output
        return pid

    def variables(self) -> dict[str, str]:
        found = {**(os.environ if self.given is None else self.given), **ONE_THREAD}
        return found | {"PYTHONPATH": os.pathsep.join([str(self.root), found.get("PYTHONPATH", "")])}

    def poll(self, pid: int) -> int | None:
        """The exit code of a fork; None while it is running."""
        return self._request(poll=pid)

    def wait(self, pid: int, seconds: float = 120) -> Exit:
        """Waits for a fork; kills its process group and raises if it takes longer than `seconds`."""
        end = time.monotonic() + seconds
        while (code := self.poll(pid)) is None and time.monotonic() < end:
            time.sleep(0.005)
        if code is None:
            kill_group(pid)
            raise AssertionError(f"still running after {seconds} s; it printed: {self.output(pid)[-2000:]}")
        return Exit(code, self.output(pid))

    def output(self, pid: int) -> str:
        return self.outputs[pid].read_text(encoding="utf-8", errors="replace")

    def errors(self, pid: int) -> str:
        """The standard error of a fork that was started with `split`."""
        return self.outputs[pid].with_suffix(".errors").read_text(encoding="utf-8", errors="replace")

    def run(self, function: str, *arguments: object, folder: Path, seconds: float = 120, **environment: str) -> Exit:
        return self.wait(self.start(function, *arguments, folder=folder, environment=environment), seconds)

    def close(self) -> None:
        """Ends the server, which kills the remaining forks."""
        self.server.stdin.close()
        self.server.wait()
        self.folder.cleanup()

    def _request(self, **request: object):
        """The response to a request; those to earlier requests, whose wait a signal has interrupted, are skipped."""
        self.requests += 1
        number = self.requests
        self.server.stdin.write(json.dumps({"number": number, **request}) + "\n")
        self.server.stdin.flush()
        while True:
            answered, response = json.loads(self.server.stdout.readline())
            if answered == number:
                return response


@cache
def forks() -> Forks:
    """The server of this process."""
    return Forks()


def kill_group(pid: int, signum: int = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signum)


class ForkedProcess:
    """The interface of `subprocess.Popen` for a function in a fork of this process, in a session of its own."""

    def __init__(self, function: Callable[[], int | None], environment: Mapping[str, str] | None = None) -> None:
        self.code: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = forked(lambda: self._run(function, environment))

    @staticmethod
    def _run(function: Callable[[], int | None], environment: Mapping[str, str] | None) -> int | None:
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
            signal.signal(signum, signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL)
        if environment is not None:
            os.environ.clear()
            os.environ.update(environment)
        logging.getLogger("vit").handlers.clear()
        return function()

    def poll(self) -> int | None:
        if self.code is None:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if done else None
        return self.code

    def wait(self) -> int:
        while self.poll() is None:
            time.sleep(0.01)
        return self.code

    def send_signal(self, signum: int) -> None:
        os.kill(self.pid, signum)


def forked(function: Callable[[], int | None]) -> int:
    """Calls a function in a fork, which ends with its result as exit code; returns the process id.

    The fork leads its own session when this returns.
    """
    ready, started = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setsid()
            os.close(started)
            code = function() or 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError):  # a case may leave no space for the output
                    stream.flush()
            os._exit(code)
    os.close(started)
    os.read(ready, 1)  # until the other end is closed
    os.close(ready)
    return pid


# the functions below run in the server and its forks


def serve(modules: Sequence[str]) -> None:
    """Imports the modules, then serves requests until standard input ends, then kills the remaining forks."""
    responses = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the imports print is not a response
    for module in modules:
        importlib.import_module(module)
    if "vit.run.command" in modules:
        warm_up()
    os.fsync = os.fstat  # what a test writes need not survive a power failure
    if os.path.isdir("/proc/self/task") and len(os.listdir("/proc/self/task")) > 1:
        raise RuntimeError("an import started a thread, which a fork would not have")
    gc.freeze()
    codes: dict[int, int | None] = {}
    try:
        serve_requests(responses, codes)
    except BrokenPipeError:
        pass  # the owner has ended before it read a response
    finally:
        for pid, code in codes.items():
            if code is None:
                kill_group(pid)
    os._exit(0)  # without the messages of libraries that are unloaded


def warm_up() -> None:
    """What every command would do again: Hydra finds its plugins and its parser fills tables, PIL finds its formats."""
    from PIL import Image

    from tests.composed_configs import share_composed_configs
    from vit.run.config.composing import compose

    Image.init()
    share_composed_configs()
    compose(["data=digits"])


def serve_requests(responses: TextIO, codes: dict[int, int | None]) -> None:
    """Until standard input ends. `codes` has the exit codes of all forks, None while one is running."""
    for line in sys.stdin:
        request = json.loads(line)
        if pid := request.get("poll"):
            response = codes[pid] = exit_code(pid) if codes[pid] is None else codes[pid]
        else:
            response = forked(lambda request=request: begin(request, responses.fileno()))
            codes[response] = None
        responses.write(json.dumps([request.get("number"), response]) + "\n")
        responses.flush()


def exit_code(pid: int) -> int | None:
    done, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if done else None


def begin(request: dict, responses: int) -> int | None:
    folder = Path(request["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None  # is read from the environment again
    os.close(responses)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, file in ((1, request["output"]), (2, request["errors"])):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    module, _, name = request["function"].partition(":")
    return getattr(importlib.import_module(module), name)(*request["arguments"])
