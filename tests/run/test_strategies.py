"""Two processes on the CPU, from the command line: the losses, the folder and the model of a single process."""

import json
import os
import signal
import time

import pytest
import torch
from safetensors.torch import load_file

import vit
from tests.forking import forks
from tests.run.conftest import run, start, table
from vit.cli import main
from vit.run import command

# one step per epoch: then every row of metrics.csv is the loss of a step, over both processes; nothing random but
# augmentation
STEPS = [
    "recipe.batch_size=1256",
    "recipe.epochs=12",
    "recipe.optimizer.lr=0.001",
    "precision=32-true",
    "logger=csv", "report=false",
    "recipe.loss.label_smoothing=0.0",
    "runs=runs",
]
TWO = ["trainer.devices=2", "trainer.accelerator=cpu"]


def losses(folder):
    """Of every epoch: training losses, validation losses."""
    rows = [row for row in table(folder / "metrics.csv") if row["epoch"] != "0"]  # before training
    return [float(row["train/loss"]) for row in rows], [float(row["val/loss"]) for row in rows]


def the_run(tmp_path):
    (folder,) = (tmp_path / "runs" / "digits").iterdir()
    return folder


def assert_like_one_process(folder, single):
    for got, alone in zip(losses(folder), losses(single), strict=True):
        assert len(got) == 12 and got == pytest.approx(alone, rel=1e-5)
    state, alone = (load_file(path / "model" / "model.safetensors") for path in (folder, single))
    assert state.keys() == alone.keys()
    for name in alone:
        torch.testing.assert_close(state[name], alone[name], rtol=1e-3, atol=1e-4)
    assert len(vit.load(folder).predict(folder / "samples")) == 8


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    return vit.train([*STEPS[:-1], f"run_dir={tmp_path_factory.mktemp('single')}"]).path


def test_shards_learn_like_one_process(tmp_path, single):
    code, out, err = run([*STEPS, *TWO, "strategy=fsdp", "strategy.options.reshard_after_forward=false"], tmp_path)
    assert code == 0 and err == "", err
    assert out.count("run folder:") == 1 and out.count("Next:") == 1
    assert_like_one_process(the_run(tmp_path), single)


def test_replicas_learn_like_one_process_and_stop_together(tmp_path, single):
    """Ctrl-C reaches both processes; the steps before and after it are those of a single process that never stopped."""
    options = ["strategy.options.bucket_cap_mb=1", "strategy.options.find_unused_parameters=true"]
    overrides = [*STEPS, *TWO, "strategy=ddp", *options]
    process = start(overrides, tmp_path)
    while not list(tmp_path.glob("runs/digits/*/checkpoints/last.ckpt")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130 and "Traceback" not in err, err
    assert len(losses(the_run(tmp_path))[0]) < 12
    code, out, err = run([*overrides, "resume=auto"], tmp_path)
    assert code == 0 and out.count("resuming runs") == 1, err
    assert_like_one_process(the_run(tmp_path), single)


def test_a_static_graph_averages_the_gradients_of_every_step(tmp_path, single):
    code, _, err = run([*STEPS, *TWO, "strategy=ddp", "+strategy.options.static_graph=true"], tmp_path)
    assert code == 0, err
    assert_like_one_process(the_run(tmp_path), single)


def train_on_one_core(overrides):
    """In a fork: a training run."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    return command.main(overrides)


def test_replicas_share_the_copies_of_images(tmp_path):
    overrides = [*STEPS, "recipe.repeats=3", "recipe.batch_size=400", "recipe.epochs=2"]
    alone = losses(vit.train([*overrides[:-4], *overrides[-3:], f"run_dir={tmp_path / 'alone'}"]).path)
    function, overrides = "tests.run.test_strategies:train_on_one_core", [*overrides, *TWO, "strategy=ddp"]
    done = forks().run(function, overrides, folder=tmp_path)
    assert done.code == 0, done.output
    assert done.output.count("trainer.devices=2: the processes wait for each other, since this machine has 1 core") == 1
    for got, expected in zip(losses(the_run(tmp_path)), alone, strict=True):
        assert len(got) == 2 and got == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("options", [["strategy=ddp", "+strategy.options.broadcast_buffers=false"], ["strategy=fsdp"]])
def test_the_validation_is_of_the_saved_model_with_batch_norms_too(tmp_path, options):
    """Whose running averages differ between the processes after a training step."""
    code, _, err = run([*STEPS, *TWO, *options, "recipe.epochs=1", "recipe.batch_size=64", "model.norm=batch",
                        "model.dim=16", "model.depth=1", "calibrate=none"], tmp_path)
    assert code == 0, err
    folder, file = the_run(tmp_path), tmp_path / "val.json"
    assert main(["evaluate", str(folder / "model"), "--split", "val", "--json", str(file)]) == 0
    assert json.loads(file.read_text())["val/loss"] == pytest.approx(losses(folder)[1][0], rel=1e-5)


def test_a_strategy_and_a_callback_of_lightning(tmp_path, single):
    """Both named by `_target_`; a run folder may define neither."""
    overrides = ["+strategy._target_=pytorch_lightning.strategies.DDPStrategy", "+strategy.process_group_backend=gloo",
                 "+callbacks.stop._target_=pytorch_lightning.callbacks.EarlyStopping",
                 "+callbacks.stop.monitor=val/loss", "+callbacks.stop.stopping_threshold=100"]
    code, out, err = run([*STEPS, *TWO, *overrides], tmp_path)
    assert code == 0, err
    for got, alone in zip(losses(the_run(tmp_path)), losses(single), strict=True):
        assert len(got) == 1 and got == pytest.approx(alone[:1], rel=1e-5)
    (the_run(tmp_path) / "metrics.json").unlink()
    code, _, err = run([f"resume={the_run(tmp_path)}"], tmp_path)
    assert code == 2 and "_target_" in err


@pytest.mark.parametrize(("overrides", "texts"), [
    (["strategy=ddp", "+strategy.options.bucket=3"], ["no option bucket", "bucket_cap_mb"]),
    (["strategy=fsdp", "+strategy.options.bucket_cap_mb=3"], ["no option bucket_cap_mb", "cpu_offload"]),
    (["+strategy.options.bucket_cap_mb=3"], ["strategy=single has no option"]),
    (["strategy=ddp", "strategy.option.bucket_cap_mb=3"], ["did you mean strategy.options.bucket_cap_mb?"]),
    (["+strategy._target_=pytorch_lightning.strategies.DDP"], ["strategy._target_=", "no such class or function"]),
    (["+callbacks.patients=3"], ["did you mean patience?"]),
    (["+callbacks.mine._target_=pytorch_lightning.callbacks.Mine"], ["callbacks.mine", "Mine"]),
])
def test_a_wrong_option_is_one_sentence(overrides, texts, tmp_path):
    with pytest.raises(vit.run.ConfigError) as error:
        vit.train([*STEPS[:-1], *overrides, "trainer.devices=1", f"run_dir={tmp_path}"])
    assert all(text in str(error.value) for text in texts), error.value
