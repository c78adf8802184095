"""Two processes on the CPU, as replicas and as shards, against one process on the same global batches."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
from lightning_fabric.plugins.environments import LightningEnvironment
from pytorch_lightning.strategies import ModelParallelStrategy
from torch.distributed.device_mesh import init_device_mesh

from tests.forking import forks
from tests.training.tiny_run import Data, Task, trainer
from vit.training import build_optimizer, build_schedule, build_strategy, newest_valid
from vit.training.checkpointing.checkpoint_io import AtomicCheckpointIO
from vit.training.strategy import shard

PROGRAM = Path(__file__).with_name("tiny_run.py")
EPOCHS = 4


def start(folder, *options, **environment):
    """Lets Lightning start the second process."""
    root = Path(__file__).parents[2]
    environment |= {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, str(PROGRAM), str(folder), "--devices", "2", *options]
    return subprocess.Popen(
        command, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def run_two(folder, *options):
    """Both processes at once, as a cluster starts them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "NODE_RANK": "0"}
    arguments = [str(folder), "--devices", "2", *options]
    ranks = [forks().start("tests.training.tiny_run:main", arguments, folder=folder,
                           environment=variables | {"LOCAL_RANK": str(rank)}) for rank in (0, 1)]
    for rank in ranks:
        done = forks().wait(rank)
        assert done.code == 0, done.output


def losses(folder):
    """The mean over the two processes of every training step, by (epoch, batch)."""
    ranks = [json.loads((folder / f"log{rank}.json").read_text()) for rank in (0, 1)]
    return {(a[1], a[2]): (a[4] + b[4]) / 2 for a, b in zip(*ranks, strict=True) if a[0] == "train"}


def assert_like_one_process(got, alone):
    for key, loss in got.items():
        assert loss == pytest.approx(alone[key], rel=1e-5), key


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    task = Task(dropout=0.0)
    trainer(tmp_path_factory.mktemp("alone"), epochs=EPOCHS).fit(task, datamodule=Data())
    steps = {(line[1], line[2]): line[4] for line in task.log_lines if line[0] == "train"}
    assert len(steps) == 24
    return steps, task.model.state_dict()


def check_checkpoint(folder, state):
    saved = AtomicCheckpointIO().load_checkpoint(folder / "last.ckpt")
    assert saved["state_dict"].keys() == {f"model.{name}" for name in state}
    assert saved["callbacks"]["AverageWeights"]["average"].keys() == state.keys()
    for name, tensor in state.items():
        torch.testing.assert_close(saved["state_dict"][f"model.{name}"], tensor, rtol=1e-4, atol=1e-5)


def test_replicas_learn_like_one_process(tmp_path, alone):
    run_two(tmp_path, "--strategy", "ddp", "--epochs", str(EPOCHS))
    got = losses(tmp_path)
    assert len(got) == 24
    assert_like_one_process(got, alone[0])
    check_checkpoint(tmp_path, alone[1])


@pytest.mark.slow
def test_shards_stop_together_resume_and_learn_like_one_process(tmp_path, alone):
    """SIGTERM reaches the second process alone; both stop at the same step, with one checkpoint."""
    options = ["--strategy", "fsdp", "--epochs", str(EPOCHS)]
    run = start(tmp_path, *options, "--slow", "0.05")
    for line in run.stdout:
        if line.startswith("started 1"):
            os.kill(int(line.split()[2]), signal.SIGTERM)
            break
    _, errors = run.communicate(timeout=120)
    assert run.returncode == 143, errors
    path, skipped = newest_valid(tmp_path)
    assert path and not skipped

    run_two(tmp_path, *options, "--resume", str(path))
    got = losses(tmp_path)
    assert 0 < len(got) < 24 and (EPOCHS - 1, 5) in got
    assert_like_one_process(got, alone[0])
    check_checkpoint(tmp_path, alone[1])


class SavesAtTheStart(pl.Callback):
    """As `Checkpoints` does with the initial model of a run with `init_from`."""

    def on_train_start(self, trainer, module):
        trainer.save_checkpoint(Path(trainer.default_root_dir, "start.ckpt"))


@pytest.mark.parametrize("name", ["adamw", "sgd"])
@pytest.mark.parametrize("strategy", ["fsdp", "auto"])
def test_a_checkpoint_before_the_first_step_changes_no_later_one(tmp_path, own_processes, name, strategy):
    class Chosen(Task):
        def configure_optimizers(self):
            options = {"momentum": 0.9, "dampening": 0.5} if name == "sgd" else {}
            return build_optimizer(self.model, name, lr=1e-2, options=options)

    found, start = [], tmp_path / "start.ckpt"
    for callbacks, resumed, kind in (([], None, strategy), ([SavesAtTheStart()], None, strategy), ([], start, "fsdp")):
        task, run = Chosen(), trainer(tmp_path, callbacks, kind, epochs=1)
        run.fit(task, datamodule=Data(), ckpt_path=resumed)
        saved = AtomicCheckpointIO().load_checkpoint(tmp_path / "last.ckpt")
        found.append((saved["state_dict"], saved["optimizer_states"][0]["state"]))
    assert not AtomicCheckpointIO().load_checkpoint(start)["optimizer_states"][0]["state"]
    for weights, _ in found[1:]:
        torch.testing.assert_close(weights, found[0][0])
    if name != "sgd":
        assert [{float(each["step"]) for each in states.values()} for _, states in found] == 3 * [{6.0}]


class SavesAfterAnEpoch(pl.Callback):
    def on_train_epoch_end(self, trainer, module):
        if trainer.current_epoch == 0:
            trainer.save_checkpoint(Path(trainer.default_root_dir, "epoch.ckpt"))


@pytest.mark.parametrize(("before", "name", "momentum"), [
    ("fsdp", "sgd", 0.0),  # without state, of which the checkpoint only has the rate
    ("auto", "sgd", 0.0),
    ("auto", "sgd", 0.9),  # in one process with a fused kernel, which torch has not for shards
    ("auto", "adagrad", None),
])
def test_shards_resume_at_the_rate_of_the_checkpoint_with_their_own_kernels(
    tmp_path, own_processes, before, name, momentum
):
    class Chosen(Task):
        def configure_optimizers(self):
            options = {} if momentum is None else {"momentum": momentum}
            optimizer = build_optimizer(self.model, name, lr=1e-2, options=options)
            schedule = build_schedule(optimizer, "cosine", int(self.trainer.estimated_stepping_batches), 4)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    found = []
    for callbacks, kind, resumed in (([SavesAfterAnEpoch()], before, None), ([], "fsdp", tmp_path / "epoch.ckpt")):
        task, run = Chosen(), trainer(tmp_path, callbacks, kind, epochs=2)
        run.fit(task, datamodule=Data(), ckpt_path=resumed)
        found.append(AtomicCheckpointIO().load_checkpoint(tmp_path / "last.ckpt")["state_dict"])
    torch.testing.assert_close(found[1], found[0], rtol=1e-6, atol=1e-7)


def test_shards_are_validated_and_trained_with_the_right_weights_where_an_epoch_has_several_validations(
    tmp_path, own_processes
):
    """A validation leaves gathered weights behind, those of the average, with which the next step was computed."""
    found = []
    for strategy in ("auto", "fsdp"):
        task, run = Task(dropout=0.0), trainer(tmp_path / strategy, strategy=strategy, epochs=2, val_check_interval=2)
        run.fit(task, datamodule=Data())
        found.append([line[4] for line in task.log_lines])
    assert len(found[0]) == 2 * (6 + 3 * 2) and found[1] == pytest.approx(found[0], rel=1e-5)


def test_strategies_by_name():
    assert build_strategy("auto", "cpu", 1) == build_strategy("single", "cpu", 1) == "auto"
    assert build_strategy("auto", "cpu", 2).process_group_backend == "gloo"
    assert build_strategy("ddp", "gpu", 2)._process_group_backend is None  # torch's own for the device: nccl
    assert isinstance(build_strategy("fsdp", "cpu", 2), ModelParallelStrategy)
    with pytest.raises(ValueError, match="'dpp'.*auto, single, ddp, fsdp"):
        build_strategy("dpp")
    with pytest.raises(ValueError, match="strategy=single uses 1 device, but trainer.devices=2"):
        build_strategy("single", "cpu", 2)
    with pytest.raises(ValueError, match="strategy=ddp has no option shards; its options are .*bucket_cap_mb"):
        build_strategy("ddp", "cpu", 2, options={"shards": 1})
    for name, option in (("ddp", "find_unused_parameters"), ("ddp", "broadcast_buffers"), ("fsdp", "cpu_offload")):
        with pytest.raises(ValueError, match=f"options.{option}=no of strategy={name} must be true or false"):
            build_strategy(name, "cpu", 2, options={option: "no"})


@pytest.mark.parametrize(("offloads", "shards"), [(True, "cpu"), (False, "meta")])
def test_offloaded_shards_stay_on_the_cpu(own_processes, offloads, shards):
    """Where FSDP2 requires them; all other tensors are moved to the device of the rank, here one without values."""
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
    module, strategy = Task(), build_strategy("fsdp", "cpu", options={"cpu_offload": offloads})
    module.model.register_buffer("table", torch.ones(2))
    shard(module.model, init_device_mesh("cpu", (1,)), cpu_offload=offloads)
    strategy.parallel_devices, strategy._lightning_module, strategy.model = [torch.device("meta")], module, module
    strategy.cluster_environment = LightningEnvironment()
    strategy.model_to_device()
    devices = {parameter.to_local().device.type for parameter in module.model.parameters()}
    assert devices == {shards} and module.model.table.device.type == "meta"
