"""Runs functions in forks of one warm process, so that a case does not pay for importing torch."""

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
WARM = ("vit.run.training_run", "vit.run.command", "vit.run.jobs.images", "torch.optim.adamw", "matplotlib.pyplot")


@dataclass(frozen=True)
class Exit:
    """The result of a fork: its exit code (negative: the signal that killed it) and its output."""

    code: int
    output: str


class Forks:
    """A server process. Each fork runs one function in its own process group and folder."""

    def __init__(self) -> None:
        variables = {
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        self.server = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.forking"],
            cwd=ROOT,
            env=os.environ | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(
        self, function: str, *arguments: object, folder: Path, environment: Mapping[str, str] | None = None
    ) -> int:
        """Calls `module:function` with JSON arguments in a fork; returns its process id, which is also its group id."""
        return self._ask(
            function=function, arguments=arguments, folder=str(folder), environment=dict(environment or {})
        )

    def wait(self, pid: int, seconds: float = 120) -> Exit:
        """Waits for a fork; kills its process group and raises if it takes longer than `seconds`."""
        code, output = self._ask(wait=pid, seconds=seconds)
        if code is None:
            raise AssertionError(f"still running after {seconds} s; it printed: {output[-2000:]}")
        return Exit(code, output)

    def run(self, function: str, *arguments: object, folder: Path, seconds: float = 120, **environment: str) -> Exit:
        return self.wait(self.start(function, *arguments, folder=folder, environment=environment), seconds)

    def _ask(self, **request: object):
        self.server.stdin.write(json.dumps(request) + "\n")
        self.server.stdin.flush()
        return json.loads(self.server.stdout.readline())


@cache
def forks() -> Forks:
    """The server of this process."""
    return Forks()


def kill_group(pid: int, signum: int = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signum)


def fork(request: dict, outputs: dict[int, Path]) -> int:
    folder = Path(request["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    output = folder / f"output.{len(outputs)}.txt"
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setpgid(0, 0)
            become(folder, output, request["environment"])
            module, _, name = request["function"].partition(":")
            code = getattr(importlib.import_module(module), name)(*request["arguments"]) or 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)  # in parent and child, so that the group exists in both
    outputs[pid] = output
    return pid


def become(folder: Path, output: Path, environment: dict[str, str]) -> None:
    os.chdir(folder)
    os.environ.update(environment)
    target = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(target, 1)
    os.dup2(target, 2)


def waited(pid: int, seconds: float, output: Path) -> tuple[int | None, str]:
    end, code = time.monotonic() + seconds, None
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            break
        time.sleep(0.005)
    else:
        kill_group(pid)
        os.waitpid(pid, 0)
    return code, output.read_text(errors="replace") if output.exists() else ""


def serve() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the imports print is no answer
    for module in WARM:
        importlib.import_module(module)
    outputs: dict[int, Path] = {}
    for line in sys.stdin:
        request = json.loads(line)
        if pid := request.get("wait"):
            answer = waited(pid, request["seconds"], outputs[pid])
        else:
            answer = fork(request, outputs)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve()
