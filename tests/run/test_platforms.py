"""Where parts of POSIX are missing: Windows as far as it can be imitated, and threads."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import vit
from tests.run.conftest import ROOT

TINY = ["recipe.epochs=1", "precision=32-true", "logger=csv", "report=false", "model=micro", "recipe.batch_size=256"]
WINDOWS = """
import os, signal, sys
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
for name in ("SIGKILL", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGSTOP"):
    delattr(signal, name)
for name in ("killpg", "sched_getaffinity", "getsid"):
    delattr(os, name)
from vit.run import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_run_without_the_modules_and_signals_that_windows_lacks(tmp_path):
    variables = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", WINDOWS, *TINY, "run_dir=run"]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "test/accuracy" in json.loads((tmp_path / "run" / "metrics.json").read_text())


def train_in_thread(overrides: list[str], results: list) -> threading.Thread:
    def train():
        try:
            results.append(vit.train(overrides))
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=train)
    thread.start()
    return thread


def test_training_in_a_thread_without_a_terminal(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    results: list = []
    train_in_thread([*TINY, f"run_dir={tmp_path / 'run'}"], results).join()
    assert isinstance(results[0], vit.run.Run), results
    assert len(vit.load(results[0].path).predict(results[0].path / "samples")) == 8


def test_two_threads_at_once_each_have_a_folder(tmp_path):
    results: list = []
    threads = [train_in_thread([*TINY, f"runs={tmp_path}"], results) for _ in range(2)]
    for thread in threads:
        thread.join()
    assert all(isinstance(found, vit.run.Run) for found in results), results
    assert len({found.path for found in results}) == 2


def test_two_threads_cannot_share_a_folder(tmp_path):
    from vit.run.records.folder import RunFolder

    results: list = []
    with RunFolder(Path(tmp_path / "run")):
        train_in_thread([*TINY, f"run_dir={tmp_path / 'run'}"], results).join()
    assert "another run is writing there" in str(results[0])
