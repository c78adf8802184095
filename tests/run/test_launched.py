"""Processes that srun, torchrun or commands on several machines started."""

import os
import signal
import socket
import subprocess
import sys

import pytest
import yaml

import vit
from tests.run.conftest import QUICK, start, table
from vit.run.config.composing import ConfigError, compose, resolve
from vit.run.console import command
from vit.run.parts.devices import Devices
from vit.run.processes.launched import check_number, own_run
from vit.run.processes.launcher import LAUNCHER, RankError, is_launched, run_ranks
from vit.run.records.folder import RunFolder
from vit.run.training_run import explain_errors

ONE_EPOCH = [*QUICK, "recipe.epochs=1", "calibrate=none", "trainer.accelerator=cpu"]
TASK = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NAME": "vit", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2",
        "SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_NODEID": "0", "SLURM_NODELIST": "127.0.0.1"}


@pytest.mark.parametrize("variables", [TASK, {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}])
def test_a_process_with_the_strategy_single_is_a_run_of_its_own(tmp_path, variables):
    """The second of two processes took the folder of the first, and its result."""
    first = {**variables, **{name: "0" for name in ("SLURM_PROCID", "RANK") if name in variables}}
    one, other = (start([*ONE_EPOCH, "run_dir=" + name, f"seed={i}"], tmp_path, **each)
                  for i, (name, each) in enumerate([("first", first), ("second", variables)]))
    (out, err), (second, error) = one.communicate(), other.communicate()
    assert one.returncode == other.returncode == 0, err + error
    assert "started 2 processes: with strategy=single each of them is a run of its own" in out
    assert "run folder: second" in second and "started 2" not in second
    assert len(table(tmp_path / "second" / "metrics.csv")) == 1


@pytest.mark.parametrize(("strategy", "variables"), [
    ({"name": "single", "_target_": "pytorch_lightning.strategies.DDPStrategy"}, {}), ({"name": "ddp"}, {}),
    ({"name": "single"}, {LAUNCHER: "1"}),
], ids=["a strategy of Lightning", "ddp", "started by this project"])
def test_a_rank_of_a_run_with_several_processes_stays_one(monkeypatch, strategy, variables):
    """Without its variables a rank would start ranks, and each of those more."""
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", **variables}.items():
        monkeypatch.setenv(name, value)
    with own_run({"strategy": strategy}) as warnings:
        assert not warnings and is_launched()


def test_an_error_of_all_processes_of_torchrun_is_left_to_the_first():
    """torchrun ends the others when the first has failed. Each of them printed the same error."""
    code = """if True:
        import os, signal, threading, vit.run.processes.launched
        from vit.run.command import report_error
        from vit.training.fault_tolerance.interrupts import StopSignals
        threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGTERM]).start()
        with StopSignals().handled():
            report_error(ValueError("wrong"))
    """
    variables = {**os.environ, "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == -signal.SIGTERM and not done.stdout + done.stderr


def test_a_rank_starts_no_ranks(tmp_path, monkeypatch):
    monkeypatch.setenv(LAUNCHER, "1")
    with pytest.raises(RuntimeError, match="starts no ranks"):
        run_ranks([], Devices("cpu", 2, 1), tmp_path, None)


def test_another_number_of_processes_than_devices_is_an_error_before_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="4 on 1 machine means 4 processes, but torchrun started 2"):
        vit.train([*ONE_EPOCH, "strategy=ddp", "trainer.devices=4", f"run_dir={tmp_path / 'run'}"])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("variables", [TASK, {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}])
def test_one_device_by_default_but_several_processes_is_an_error_before_the_run(tmp_path, monkeypatch, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="devices=1 on 1 machine means 1 process, but (srun|torchrun) started 2"):
        vit.train([*ONE_EPOCH, "strategy=ddp", f"run_dir={tmp_path / 'run'}"])
    assert not (tmp_path / "run").exists()


def test_the_tasks_of_a_slurm_job_are_set_per_machine(monkeypatch):
    for name, value in TASK.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="SLURM's --ntasks=2 .* use --nodes=1 --ntasks-per-node=2$"):
        check_number(Devices("cpu", 2, 1))
    monkeypatch.setenv("SLURM_NTASKS_PER_NODE", "2")
    check_number(Devices("cpu", 2, 1))


def test_the_only_task_of_a_slurm_job_starts_ranks_itself(monkeypatch):
    for name, value in TASK.items():
        monkeypatch.setenv(name, value)
    assert is_launched()
    monkeypatch.setenv("SLURM_NTASKS", "1")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    check_number(Devices("cpu", 2, 1))
    assert not is_launched()


def test_the_tasks_of_srun_in_an_interactive_job_are_the_ranks_of_one_run(tmp_path):
    """Each of them started all ranks, and the second one failed, because another run wrote into its folder."""
    variables = {**TASK, "SLURM_JOB_NAME": "interactive", "SLURM_NTASKS_PER_NODE": "2"}
    tasks = [start([*ONE_EPOCH, "strategy=ddp", "trainer.devices=2"], tmp_path,
                   **variables | {"SLURM_PROCID": rank, "SLURM_LOCALID": rank}) for rank in "01"]
    for task in tasks:
        out, err = task.communicate()
        assert task.returncode == 0, out + err
    (folder,) = (tmp_path / "runs" / "digits").iterdir()
    assert len(table(folder / "metrics.csv")) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("terminal", [False, True])
def test_a_command_in_the_shell_of_srun_starts_its_ranks_itself(monkeypatch, terminal):
    """That shell, of `srun --pty bash`, is a task with a terminal; the other tasks have ended."""
    own, other = os.openpty() if terminal else os.pipe()[::-1]
    with subprocess.Popen(["sleep", "60"], stdin=other) as task:
        for name, value in {**TASK, "SLURM_JOB_NAME": "bash", "SLURM_TASK_PID": str(task.pid)}.items():
            monkeypatch.setenv(name, value)
        assert is_launched() is not terminal
        task.kill()
    for descriptor in (own, other):
        os.close(descriptor)


def test_two_machines_without_a_launcher_have_one_run_folder(tmp_path):
    """The second one named a folder of its own and failed at the end, because that had no results."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    overrides = [*ONE_EPOCH, "strategy=ddp", "trainer.num_nodes=2"]
    nodes = [start(overrides, tmp_path, MASTER_ADDR="127.0.0.1", MASTER_PORT=port, NODE_RANK=str(node))
             for node in (1, 0)]
    for node in nodes:
        out, err = node.communicate()
        assert node.returncode == 0, out + err
    (folder,) = (tmp_path / "runs" / "digits").iterdir()
    assert len(table(folder / "metrics.csv")) == 1


@pytest.mark.parametrize(("variables", "kind"), [(TASK, RankError), ({**TASK, LAUNCHER: "1"}, RuntimeError),
                                                 ({}, RuntimeError)])
def test_a_lost_connection_is_explained_where_no_launcher_of_this_project_does(tmp_path, monkeypatch, variables, kind):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    gloo = "[gloo/pair.cc:545] Read error [10.0.0.7]:1763: Connection reset by peer. This is typically caused by ..."
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({**resolve(compose([])), "overrides": []}))
    with (pytest.raises(kind) as caught,
          explain_errors(resolve(compose([])), RunFolder(tmp_path, main=False), [])):
        raise RuntimeError(gloo)
    expected = (f"the connection to another rank broke ({gloo.partition('. ')[0]}); its own output says why it ended. "
                f"Resume with:\n  {command('train', f'resume={tmp_path}')}")
    assert str(caught.value) == (expected if kind is RankError else gloo)
