"""`python train.py` and `python -m vit` as commands of their own, in forks of a process that has imported torch.

The start of Python and the imports are not part of what they prove.
"""

import contextlib
import os
import runpy
import subprocess
import sys
import types
from collections.abc import Mapping
from pathlib import Path

from tests.blank_pictures import follow_environment
from tests.forking import ROOT, ForkedProcess, forks
from vit.run.processes.launcher import LAUNCHER
from vit.run.processes.separate_process import PARENT

TRAIN, VIT = str(ROOT / "train.py"), str(ROOT / "vit" / "__main__.py")


class Command:
    """A function of this module that runs in a fork, with the interface of `subprocess.Popen`. It leads a session of
    its own.
    """

    def __init__(self, function: str, arguments: list[object], cwd: Path, environment: dict[str, str]):
        self.returncode: int | None = None
        self.pid = forks().start(f"tests.commands:{function}", *arguments, folder=Path(cwd), environment=environment,
                                 split=True)

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = forks().poll(self.pid)
        return self.returncode

    def send_signal(self, signum: int) -> None:
        """Also in a signal handler: it sends no request to the server."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signum)

    def wait(self) -> int:
        """The exit code; prints the output."""
        out, err = self.communicate()
        print(out, end="")
        print(err, end="", file=sys.stderr)
        return self.returncode

    def communicate(self, timeout: float = 240) -> tuple[str, str]:
        """(standard output, standard error) when it has ended.

        Raises:
            AssertionError: it takes longer than `timeout` seconds; it is killed.
        """
        done = forks().wait(self.pid, timeout)
        self.returncode = done.code
        return done.output, forks().errors(self.pid)


def start(script: str, arguments: list[object], cwd: Path, **environment: str) -> Command:
    return Command("execute", [script, [*map(str, arguments)]], cwd, environment)


def popen(command: list[str], env: Mapping[str, str] | None = None, **_: object) -> Command:
    """In place of `subprocess.Popen` for `python -m MODULE ARGUMENTS`."""
    _, _, module, *arguments = command
    changed = {name: value for name, value in (env or {}).items() if os.environ.get(name) != value}
    for name in {LAUNCHER, PARENT} & changed.keys():
        changed[name] = str(forks().server.pid)  # a rank ends when its parent does, and so does a run of a sweep
    return Command("execute_module", [module, arguments], Path.cwd(), changed)


def run(script: str, arguments: list[object], cwd: Path, **environment: str) -> tuple[int, str, str]:
    """(exit code, standard output, standard error) of a whole command."""
    process = start(script, arguments, cwd, **environment)
    out, err = process.communicate()
    return process.returncode, out, err


# the functions below run in the fork


def execute(script: str, arguments: list[str]) -> None:
    """Runs a script of this project; the processes that it starts are forks too."""
    prepare()
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")


def execute_module(module: str, arguments: list[str]) -> int:
    """`python -m MODULE ARGUMENTS`; the processes that it starts are forks too."""
    prepare()
    return run_module(module, arguments)


def prepare() -> None:
    from vit.run.processes import launcher, separate_process

    follow_environment()
    forks = types.SimpleNamespace(Popen=fork_module, DEVNULL=subprocess.DEVNULL)
    separate_process.subprocess = launcher.subprocess = forks


def run_module(module: str, arguments: list[str]) -> int:
    from hydra.core.global_hydra import GlobalHydra

    from vit.cli import main as vit
    from vit.run.processes.rank import main as rank

    GlobalHydra.instance().clear()
    sys.argv = [module, *arguments]
    return {"vit": vit, "vit.run.processes.rank": rank}[module](arguments)


def fork_module(command: list[str], env: dict[str, str] | None = None, **_: object) -> ForkedProcess:
    """`python -m MODULE ARGUMENTS` in a fork of this process."""
    _, _, module, *arguments = command
    return ForkedProcess(lambda: run_module(module, arguments), env)
