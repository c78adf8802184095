"""`compile=auto`: measured before training, recorded, and without influence on the numbers of an eager run."""

import os
import subprocess
import sys

import pytest
import torch
import yaml
from pytorch_lightning import Trainer
from safetensors.torch import load_file
from torch import nn
from torch._inductor import list_mode_options

import vit
from tests.run.conftest import table
from tests.run.test_resume import DIGITS, StopAfter, assert_same, stopped_and_resumed
from vit.run import main
from vit.run.config.valid_values import VALID_VALUES
from vit.run.parts import compilation, devices
from vit.run.parts.compilation import Compilation, seconds_per_call, training_pass, unchanged
from vit.run.records.folder import RunFolder

SHORT = [*DIGITS, "recipe.epochs=2", "model.dropout=0.1", "data.patch_size=4", "model.stem=pooled_conv"]  # BatchNorm


def is_compiled(folder):
    return yaml.safe_load((folder / "config.yaml").read_text())["compile"]


def log_of(folder):
    return (folder / "log.txt").read_text()


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A run that is not compiled."""
    return vit.train([*SHORT, f"run_dir={tmp_path_factory.mktemp('plain')}"]).path


@pytest.fixture
def measured(monkeypatch):
    """measured(eager, compiled): a step seems to take so many seconds; compilation uses dynamo alone, for speed, and
    needs no C++ compiler.
    """
    build = nn.Module.compile
    monkeypatch.setattr(compilation, "check_compiler", lambda *arguments: None)

    def pretend(eager, compiled):
        seconds = iter([eager, compiled])
        monkeypatch.setattr(compilation, "seconds_per_call", lambda step: next(seconds))
        monkeypatch.setattr(nn.Module, "compile", lambda module, mode: build(module, backend="eager"))
        return seconds

    yield pretend
    torch.compiler.reset()


def test_torch_has_the_modes():
    assert set(VALID_VALUES["compile_mode"].names) <= set(list_mode_options())


@pytest.mark.slow
@pytest.mark.parametrize("choice", ["true", "auto"])
def test_the_mode_is_that_of_torch_compile(tmp_path, measured, monkeypatch, choice):
    measured(eager=100.0, compiled=50.0)
    build, modes = nn.Module.compile, []

    def recorded(module, mode):
        modes.append(mode)
        build(module, mode)

    monkeypatch.setattr(nn.Module, "compile", recorded)
    vit.train([*SHORT, "recipe.epochs=1", f"compile={choice}", "compile_mode=max-autotune", f"run_dir={tmp_path}"])
    assert modes == ["max-autotune"]


@pytest.mark.parametrize(("eager", "compiled", "batches", "stages", "pays"), [
    (1.0, 0.8, 1000, 1, True),  # saves 200 s; 15 s of compilation are to come
    (1.0, 0.8, 70, 1, False),  # saves 14 s
    (1.0, 0.8, 80, 1, True),  # saves 16 s
    (1.0, 0.8, 500, 5, False),  # saves 100 s; 135 s for four more stages and evaluation
    (1.0, 1.1, 10**6, 1, False),
])
def test_the_gain_must_exceed_the_cost_to_come(eager, compiled, batches, stages, pays):
    assert Compilation(eager, compiled, cost=30.0, batches=batches, stages=stages).pays_off is pays


def test_a_short_run_is_not_compiled_and_has_the_same_bits_as_without_auto(tmp_path, plain, monkeypatch):
    monkeypatch.setattr(nn.Module, "compile", lambda *_, **__: pytest.fail("a short run was compiled"))
    auto = vit.train([*SHORT, "compile=auto", f"run_dir={tmp_path / 'auto'}"]).path
    assert_same(auto, plain)
    assert is_compiled(auto) is False
    assert "compile: false (auto: all 38 batches take" in log_of(auto)


def test_a_compiled_model_that_is_slower_is_not_used(tmp_path, plain, measured):
    measured(eager=100.0, compiled=101.0)
    auto = vit.train([*SHORT, "compile=auto", f"run_dir={tmp_path / 'auto'}"]).path
    assert_same(auto, plain)
    assert is_compiled(auto) is False
    assert "compile: false (auto: 101 s per batch instead of 100 s; over 38 batches that saves -38 s" in log_of(auto)


def test_the_decision_is_recorded_and_remains_on_resuming(tmp_path, measured, monkeypatch):
    measured(eager=100.0, compiled=50.0)
    whole = vit.train([*SHORT, "compile=auto", f"run_dir={tmp_path / 'whole'}"]).path
    assert is_compiled(whole) is True
    assert "compile: true (auto: 50 s per batch instead of 100 s; over 38 batches that saves 1900 s" in log_of(whole)
    seconds = measured(eager=100.0, compiled=50.0)
    overrides, folder = [*SHORT, "compile=auto"], tmp_path / "parts"
    stopped_and_resumed(overrides, folder, monkeypatch, 10, [*overrides, f"run_dir={folder}"])
    assert next(seconds, None) is None  # the second command has measured nothing
    assert is_compiled(folder) is True and log_of(folder).count("compile: true") == 1
    assert_same(folder, whole)


def test_a_run_that_auto_left_eager_is_resumed_with_its_mode(tmp_path, plain, measured, monkeypatch):
    measured(eager=100.0, compiled=101.0)
    stopped_and_resumed([*SHORT, "compile=auto", "compile_mode=max-autotune"], tmp_path, monkeypatch, 10)
    assert is_compiled(tmp_path) is False
    assert_same(tmp_path, plain)


def test_a_run_of_a_version_without_modes_is_resumed(tmp_path, plain, monkeypatch):
    """Nor with `callbacks.start_margin` and `trainer.timeout`."""
    write = RunFolder.write

    def write_earlier(folder, name, value):
        value = {key: each for key, each in value.items() if key != "compile_mode"}
        for node, key in (("callbacks", "start_margin"), ("trainer", "timeout")):
            value |= {node: {name: each for name, each in value[node].items() if name != key}} if node in value else {}
        write(folder, name, value)

    with monkeypatch.context() as earlier:
        earlier.setattr(RunFolder, "write", write_earlier)
        StopAfter(earlier, 10)
        with pytest.raises(SystemExit):
            vit.train([*SHORT, f"run_dir={tmp_path}"])
    recorded = (tmp_path / "config.yaml").read_text()
    assert not [key for key in ("compile_mode", "start_margin", "timeout") if key in recorded]
    vit.train([f"resume={tmp_path}"])
    assert_same(tmp_path, plain)


def test_a_time_limit_ends_the_run_before_the_gain(tmp_path, measured):
    measured(eager=10.0, compiled=5.0)
    auto = vit.train([*SHORT, "trainer.max_time=1m", "compile=auto", f"run_dir={tmp_path}"]).path
    assert "compile: false (auto: all 6 batches take 60 s, too few for a compilation)" in log_of(auto)


@pytest.mark.parametrize(("eager", "stages", "tried"), [(11.0, 1, False), (13.0, 1, True), (18.0, 2, False)])
def test_a_run_is_measured_only_if_the_compilations_may_pay_off(tmp_path, measured, eager, stages, tried):
    """A fifth of 38 batches, against a minute for the training step of each stage and half of one for evaluation."""
    measured(eager=eager, compiled=eager + 1)
    more = [] if stages == 1 else ["recipe.progressive.image_size=[4,8]", "recipe.progressive.stages=2",
                                   "model.stem=linear"]
    auto = vit.train([*SHORT, *more, "compile=auto", f"run_dir={tmp_path}"]).path
    assert ("s per batch instead of" in log_of(auto)) is tried
    assert ("s, too few for a compilation)" in log_of(auto)) is not tried


def test_a_micro_batch_is_measured(tmp_path, monkeypatch):
    shapes, build = [], compilation.training_pass
    monkeypatch.setattr(compilation, "training_pass", lambda model, images, trainer: shapes.append(
        tuple(images.shape)) or build(model, images, trainer))
    vit.train([*SHORT, "recipe.epochs=1", "recipe.batch_size=64", "recipe.accumulate=2", "compile=auto",
               f"run_dir={tmp_path}"])
    assert shapes == [(32, 3, 8, 8)]


def test_a_model_that_torch_cannot_compile_trains_in_eager_mode(tmp_path, plain, measured, monkeypatch):
    build = nn.Module.compile

    def fails(graph, inputs):
        raise RuntimeError("no such operation")

    measured(eager=100.0, compiled=50.0)
    monkeypatch.setattr(nn.Module, "compile", lambda module, mode: build(module, backend=fails))
    auto = vit.train([*SHORT, "compile=auto", f"run_dir={tmp_path}"]).path
    assert is_compiled(auto) is False and "compile: false (auto: " in log_of(auto)
    assert_same(auto, plain)


def test_a_measured_step_is_one_of_training_and_leaves_no_gradients():
    model = vit.create_model("vit_micro", image_size=8, patch_size=4, num_classes=3, depth=1, class_token=True,
                             pool="class", dist_token=True).eval()
    model.set_distilled_training()  # in training a tuple of the logits of both heads
    seen = []
    model.head.register_forward_hook(lambda layer, inputs, output: seen.append((layer.training, output.dtype)))
    model.head_dist.weight.register_hook(lambda gradient: seen.append(gradient.shape))
    trainer = Trainer(accelerator="cpu", devices=1, precision="bf16-mixed", logger=False, barebones=True)
    training_pass(model, torch.zeros(2, 3, 8, 8), trainer)()
    assert seen == [(True, torch.bfloat16), model.head_dist.weight.shape]
    assert all(parameter.grad is None for parameter in model.parameters())


def test_what_a_measurement_changes_is_restored():
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout(0.5)).train()
    model[0].eval()
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    with unchanged(model):
        model.train()(torch.rand(4, 2))
        assert model[0].running_mean.any() and model[0].num_batches_tracked == 1
    assert not model[0].running_mean.any() and model[0].num_batches_tracked == 0
    assert (model.training, model[0].training, model[1].training) == (True, False, True)
    assert torch.rand(1) == expected


@pytest.mark.parametrize(("seconds", "calls", "median"), [
    ([5.0, 1.0, 3.0], 3, 3.0), ([0.45] * 9, 5, 0.45), ([0.01] * 30, 20, 0.01),
])
def test_a_measurement_has_three_to_twenty_calls_in_two_seconds(monkeypatch, seconds, calls, median):
    made, remaining = [], iter(seconds)
    monkeypatch.setattr(compilation, "seconds_of", lambda program: made.append(program()) or next(remaining))
    assert seconds_per_call(lambda: None) == median and len(made) == calls


def test_without_a_compiler_the_run_is_eager(tmp_path, measured, monkeypatch):
    measured(eager=100.0, compiled=50.0)
    monkeypatch.setattr(compilation, "check_compiler", devices.check_compiler)
    monkeypatch.setattr(devices.shutil, "which", lambda name: None)
    auto = vit.train([*SHORT, "compile=auto", f"run_dir={tmp_path}"]).path
    assert is_compiled(auto) is False and "compile: false (auto: torch.compile needs a C++ compiler" in log_of(auto)


@pytest.mark.slow
def test_a_real_compilation_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(compilation, "LIKELY_COST", 0.0)
    done = vit.train([*DIGITS, "recipe.epochs=1", "compile=auto", f"run_dir={tmp_path}"]).path
    assert "s per batch instead of" in log_of(done) and len(table(done / "metrics.csv")) == 1
    assert load_file(done / "model" / "model.safetensors")


@pytest.mark.parametrize(("overrides", "text"), [
    (["compile_mode=reduce-overhead"], "compile_mode=reduce-overhead has no effect with compile=false; add"),
    (["compile=true", "compile_mode=fast"], "compile_mode=fast"),
    (["compile=maybe"], "compile=maybe: must be true, false or auto"),
    (["compile=auto", "trainer.devices=2", "trainer.accelerator=cpu", "strategy=ddp"],
     "compile=auto measures in one process with strategy=single, but this run has strategy=ddp and 2 devices"),
    (["compile=auto", "trainer.accelerator=cpu", "strategy=ddp"], "but this run has strategy=ddp and 1 device;"),
    (["compile=auto", "data=spelled_numbers"], "compile=auto measures batches of images of one size, but this is"),
])
def test_runs_that_cannot_measure(overrides, text, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(overrides) == 2
    assert text in capsys.readouterr().err and not list(tmp_path.rglob("*.ckpt"))


WORKERS = """
import os, signal, vit.run.parts.compilation as compilation
compilation.start_compile_workers()
children = [pid for pid in os.listdir("/proc") if pid.isdigit() and os.path.exists(f"/proc/{pid}/stat")
            and open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[1] == str(os.getpid())]
for pid in (str(os.getpid()), *children):
    line = next(line for line in open(f"/proc/{pid}/status") if line.startswith("SigBlk:"))
    print(int(line.split()[1], 16) >> signal.SIGTERM - 1 & 1)
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="reads /proc")
def test_a_stop_signal_for_the_process_group_does_not_end_the_compile_workers():
    environment = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "2"}
    found = subprocess.run([sys.executable, "-c", WORKERS], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["0", "1"]  # the run, its compile workers
