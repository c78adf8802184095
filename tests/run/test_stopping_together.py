"""A stop of a sweep whose runs are trained at the same time."""

import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from tests.faults.tiny_training import is_alive
from tests.run.conftest import QUICK, ROOT
from vit.files.checkpoints import without_weights
from vit.run.multirun.run_of_sweep import train_beside_others
from vit.run.multirun.stopping_together import StopTogether
from vit.run.records.folder import RunFolder
from vit.training import newest_valid

COMMAND = ["-m", "hydra/launcher=joblib", "hydra.launcher.n_jobs=3", "hydra.sweep.dir=out", "seed=0,1", "model.depth=1",
           *QUICK, "recipe.epochs=500", "trainer.accelerator=cpu", "calibrate=none"]
IDLE = """
import os, sys, time
from pathlib import Path
from joblib import Parallel, delayed
from joblib.externals.loky import reusable_executor
from vit.run.multirun.stopping_together import StopTogether

with StopTogether(Path(sys.argv[1])).handled():
    Parallel(n_jobs=3, backend="loky")(delayed(os.getpid)() for _ in range(2))
    print(*reusable_executor._executor._processes, flush=True)
    time.sleep(60)
"""


@pytest.mark.slow
def test_ctrl_c_saves_the_current_step_of_every_run(tmp_path):
    """Also with a process of the launcher that has no run: it would end at once, and the others with it."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    process = subprocess.Popen([sys.executable, ROOT / "train.py", *COMMAND], cwd=tmp_path, env=environment, text=True,
                               start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    runs = [tmp_path / "out" / name for name in "01"]
    while process.poll() is None and not all((run / "checkpoints" / "last.ckpt").exists() for run in runs):
        time.sleep(0.1)
    stopped_at = time.time()
    os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C in a terminal
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert all(f"resume=out/{run.name}" in output for run in runs), output
    for run in runs:
        checkpoint, damaged = newest_valid(run / "checkpoints")
        assert checkpoint.stat().st_mtime > stopped_at - 1 and not damaged
        assert without_weights(checkpoint)["global_step"] > 0 and not RunFolder(run, main=False).finished
    assert not [path for path in (tmp_path / "out").iterdir() if path.name.startswith(".")]


def test_a_run_that_was_stopped_alone_waits_for_the_others(tmp_path, monkeypatch):
    """Before it ends the sweep, with which the launcher kills them."""
    together, ended = StopTogether(tmp_path), []
    begun = threading.Event()

    def other_run():
        with together.one_run(1):
            begun.set()
            while not together.requested():
                time.sleep(0.01)
            time.sleep(0.3)
            ended.append(together.requested())

    thread = threading.Thread(target=other_run)
    thread.start()
    begun.wait()
    monkeypatch.setattr("vit.run.multirun.run_of_sweep.train_in_new_process", lambda *_: 128 + signal.SIGTERM)
    assert train_beside_others([], together, 0) == 128 + signal.SIGTERM
    assert ended == [signal.SIGTERM]
    thread.join()
    with pytest.raises(SystemExit, match="143"):  # no further run starts
        train_beside_others([], together, 2)


def test_a_stop_before_the_first_run(tmp_path):
    """The launcher has not made the folder of the sweep yet."""
    with pytest.raises(SystemExit, match="143"), StopTogether(tmp_path / "new").handled():
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(200):  # another thread receives it, which does not end a longer sleep
            time.sleep(0.05)
    assert not (tmp_path / "new").exists()


def test_a_stop_does_not_wait_for_a_run_whose_process_was_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("vit.run.multirun.stopping_together.os", SimpleNamespace(getpid=lambda: 2**22 + 1))
    together = StopTogether(tmp_path)
    with together.one_run(0):
        together.wait()


@pytest.mark.skipif(sys.platform == "win32", reason="the id of the parent does not change there")
def test_the_idle_processes_of_a_killed_sweep_end(tmp_path):
    """Also one that never had a run. joblib would keep them for 5 minutes."""
    sweep = subprocess.Popen([sys.executable, "-c", IDLE, tmp_path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                             env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    workers = [int(pid) for pid in sweep.stdout.readline().split()]
    assert len(workers) == 3 and all(map(is_alive, workers))
    sweep.kill()
    sweep.wait()  # its output has no end while they live
    end = time.monotonic() + 30  # of which a busy machine needs some to import
    while any(map(is_alive, workers)) and time.monotonic() < end:
        time.sleep(0.1)
    left = [pid for pid in workers if is_alive(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left
