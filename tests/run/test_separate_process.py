"""Runs in processes of their own, whose parent is killed."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.run.conftest import QUICK, start
from vit.files.checkpoints import without_weights
from vit.run import command
from vit.run.multirun.run_of_sweep import wait_until_unused
from vit.run.multirun.stopping_together import StopTogether
from vit.run.processes.separate_process import PARENT
from vit.run.records.folder import RunFolder
from vit.training import newest_valid

LONG = ["model.depth=1", *QUICK, "recipe.epochs=500", "trainer.accelerator=cpu", "calibrate=none"]
SECONDS = 60


def wait_for(condition):
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.skipif(sys.platform == "win32", reason="the id of the parent does not change there")
@pytest.mark.parametrize(("command", "name"), [
    (["-m", "hydra.sweep.dir=out", "seed=0,1"], "0"),
    (["run_dir=out", '+compare={one:["seed=0"],two:["seed=1"]}'], "one"),
])
def test_a_run_saves_its_state_and_ends_when_its_parent_is_killed(command, name, tmp_path):
    process, folder = start([*command, *LONG], tmp_path), tmp_path / "out" / name
    wait_for(lambda: process.poll() is not None or (folder / "checkpoints" / "last.ckpt").exists())
    killed_at = time.time()
    process.send_signal(signal.SIGKILL)
    wait_for(lambda: not RunFolder(folder, main=False).in_use)
    checkpoint, damaged = newest_valid(folder / "checkpoints")
    assert checkpoint.stat().st_mtime > killed_at and not damaged
    assert without_weights(checkpoint)["global_step"] > 0 and not RunFolder(folder, main=False).finished
    assert "SIGTERM" in process.communicate()[1]


def test_programs_that_a_run_starts_do_not_depend_on_its_parent(monkeypatch):
    parents = []
    monkeypatch.setenv(PARENT, "123")
    monkeypatch.setattr(command, "stop_with_parent", parents.append)
    monkeypatch.setattr(command, "run_command", lambda arguments, debug: int(PARENT in os.environ))
    assert command.main([]) == 0 and parents == [123]


def test_the_runs_of_a_killed_sweep_are_asked_to_stop(tmp_path):
    killed = subprocess.Popen([sys.executable, "-c", ""])
    killed.wait()
    assert StopTogether(tmp_path, killed.pid).requested() == signal.SIGTERM
    assert StopTogether(tmp_path).requested() is None


def test_a_sweep_waits_for_the_process_that_trains_its_run(tmp_path, capsys):
    code = ("import sys, time; from filelock import FileLock; lock = FileLock(sys.argv[1]); lock.acquire(); "
            "print('locked', flush=True); time.sleep(1)")
    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / ".lock")], stdout=subprocess.PIPE)
    holder.stdout.readline()
    wait_until_unused(tmp_path)
    assert f"{tmp_path} is in use" in capsys.readouterr().out.replace("\n", "")
    assert holder.poll() is not None or holder.wait(1) == 0
    wait_until_unused(tmp_path)
    assert not capsys.readouterr().out
