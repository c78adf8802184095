"""Training on a GPU that is simulated on the CPU: no step mixes devices or makes the host wait for the GPU, and the
losses are those of a CPU. `tests/gpu` has the tests of what only a real GPU shows.
"""

import csv
import warnings
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import vit
from tests.run.conftest import QUICK, table, write_photos, write_questions, write_stories
from tests.run.test_resume import StopAfter, assert_same, stopped_and_resumed
from tests.simulated_gpu import OnGpu, simulated_apple_gpu, simulated_gpu
from tests.slow_values import quick_and_slow
from vit.benchmarking import hardware
from vit.cli import main
from vit.data.sets.builtin import digits
from vit.evaluation.columns import Columns
from vit.generation import Generation
from vit.generation.utf8 import Utf8
from vit.run.parts.compilation import unchanged
from vit.run.parts.devices import Devices
from vit.run.parts.head_fit import features
from vit.run.processes import separate_process
from vit.tasks import Task
from vit.tasks.classification import Classification
from vit.training import NonFiniteError
from vit.training.checkpointing.checkpoint import load_checkpoint

TINY = [*QUICK, "recipe.epochs=1", "data.workers=0", "model.dim=16", "model.num_heads=2", "model.depth=1",
        "trainer.log_every_n_steps=1000", "debug=true"]
IMAGES = [*TINY, "recipe.batch_size=8", "calibrate=none"]
TEXTS = [*TINY, "recipe.batch_size=16", "model.dropout=0"]  # whose numbers differ between devices
PAIRS = ["data.train=200", "data.val=20", "data.test=8", "model.decoder_depth=1", "task.decode.beam=2"]
PLAIN = ["recipe.crop=null", "augment=none"]
RUNS = {
    "images": [*IMAGES, "augment=randaugment", "recipe.crop=null", "recipe.progressive.patch_drop=[0.5,0.0]"],
    "cached images": [*IMAGES, "augment=randaugment", "recipe.crop=null", "data.cache=device"],
    "packed images": [*IMAGES, "data=folder", "data.root={photos}", "data.pack=true", "data.image_size=32",
                      "data.patch_size=8", "model.drop_path=0.1", "recipe.mixup=null"],
    "masked images": [*IMAGES, "task=masked_image", "model=mae", "recipe=mae", "recipe.crop=null",
                      "model.decoder_dim=16", "model.decoder_depth=1", "model.decoder_num_heads=2"],
    "multi-label images": [*IMAGES, *PLAIN, "data=table", "data.path={labels}", "data.label_separator='|'",
                           "data.image_size=32", "data.patch_size=8", "recipe.mixup=null", "recipe.ema=null",
                           "recipe.average_epochs=2", "recipe.progressive.image_size=[16,32]",
                           "recipe.progressive.stages=2", "recipe.optimizer.name=lookahead_lamb"],
    "distilled": [*IMAGES, *PLAIN, "distill=token", "distill.teacher={teacher}", "model.class_token=true",
                  "model.pool=class", "recipe.optimizer.name=muon", "compile=auto"],
    "fine-tuned": [*IMAGES, *PLAIN, "init_from={teacher}", "model=adopt", "finetune=lora", "finetune.head_init=fit",
                   "recipe.accumulate=2", "precision=bf16-mixed"],
    "texts": [*TEXTS, "data=text_table", "{questions}", "calibrate=none"],
    "masked texts": [*TEXTS, "data=corpus", "{stories}"],
    "translation": [*TEXTS, "data=spelled_numbers", "data.limit=1000", "data.max_target_len=32", *PAIRS],
    "text images": [*TEXTS, "data=digit_strips", "data.digits=2", *PAIRS],
}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """The folder of a run with a calibrated model of the digits."""
    return vit.train([*TINY, *PLAIN, "debug=false", "recipe.batch_size=64", "trainer.accelerator=cpu",
                      f"run_dir={tmp_path_factory.mktemp('teacher')}"]).path


@pytest.fixture
def files(tmp_path, teacher):
    """The values of the names in braces in `RUNS`."""
    photos = write_photos(tmp_path / "photos", {"cat/a": 20, "dog/a": 20})
    labels = [f"{file},{file.parts[-3]}{'|even' * (i % 2)}\n" for i, file in enumerate(sorted(photos.rglob("*.png")))]
    (tmp_path / "labels.csv").write_text("".join(["file,label\n", *labels]))
    return {"photos": photos, "stories": write_stories(tmp_path), "labels": tmp_path / "labels.csv",
            "questions": write_questions(tmp_path / "questions.csv"), "teacher": teacher / "model"}


def losses(folder):
    """Of the training and the validation of each epoch; only of the validation before the first step."""
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    return [float(row[name]) for row in rows for name in ("train/loss", "val/loss") if row[name]]


@pytest.mark.parametrize("name", RUNS)
def test_no_step_mixes_devices_or_waits_for_the_gpu(tmp_path, files, monkeypatch, name):
    """From the third step, when caches are filled, to the last update, with the transfer of the batches."""
    training_step, end, span = Task.training_step, Task.lr_scheduler_step, {}

    def begun(task, batch, batch_idx):
        if task.global_step == 2:
            span["start"] = len(waits)
        return training_step(task, batch, batch_idx)

    def ended(task, scheduler, metric):
        span["stop"] = len(waits)
        end(task, scheduler, metric)

    overrides = [override.format(**files) for override in RUNS[name]]
    expected = losses(vit.train([*overrides, f"run_dir={tmp_path / 'cpu'}", "trainer.accelerator=cpu"]).path)
    monkeypatch.setattr(Task, "training_step", begun)
    monkeypatch.setattr(Task, "lr_scheduler_step", ended)
    with simulated_gpu() as waits:
        run = vit.train([*overrides, f"run_dir={tmp_path / 'gpu'}", "trainer.accelerator=gpu"])
    assert losses(run.path) == pytest.approx(expected, rel=1e-3)
    in_steps = waits[span["start"] : span["stop"]]
    assert [each for each in in_steps if "progress.py" not in each] == []  # the progress line reads a loss at intervals


@pytest.mark.parametrize("name", quick_and_slow(
    [each for each in RUNS if each != "cached images"], "images", "translation"))
def test_a_run_on_the_cpu_does_not_use_the_gpu(tmp_path, files, monkeypatch, name):
    """Which may be full, or reserved for another process; pinned memory needs a context on it as well."""
    def used(*arguments):
        raise AssertionError("the GPU is used")

    overrides = [override.format(**files) for override in RUNS[name] if override != "calibrate=none"]
    monkeypatch.setattr(torch.Tensor, "pin_memory", used)
    monkeypatch.setattr(OnGpu, "__new__", used)
    with simulated_gpu():
        assert vit.train([*overrides, f"run_dir={tmp_path / 'run'}", "trainer.accelerator=cpu"]).metrics


def test_validation_does_not_wait_and_evaluation_waits_once_per_batch(tmp_path, teacher, monkeypatch):
    """To copy all results of the samples at once; the calibration of the teacher needs their probabilities before."""
    step, add, during = Classification.validation_step, Columns.append, {}

    def counted(function):
        def call(*args):
            start = len(waits)
            function(*args)
            during.setdefault(function, []).extend(waits[start:])
        return call

    monkeypatch.setattr(Classification, "validation_step", counted(step))
    monkeypatch.setattr(Columns, "append", counted(add))
    with simulated_gpu() as waits:
        vit.train([*RUNS["images"], f"run_dir={tmp_path}", "trainer.accelerator=gpu"])
        assert main(["evaluate", str(teacher / "model")]) == 0
    assert during == {step: [], add: []}


def test_the_constraint_to_utf8_copies_once_per_token():
    """For beams that end within different characters."""
    utf8, texts = Utf8([b"", b"", b"", *(bytes([i]) for i in range(256))]), [[[68], [198]], [[69], [229]]]
    expected = torch.zeros(2, 2, 260)
    utf8.suppress(expected, texts)
    assert (expected == 0).sum(-1).tolist() == [[180, 64], [180, 64]]  # 128 + 51 first bytes and the end; next bytes
    with simulated_gpu() as waits:
        found = torch.zeros(2, 2, 260, device="cuda")
        utf8.suppress(found, texts)
        before = len(waits)
        utf8.suppress(found, texts)
        assert len(waits) - before == 1 and found.cpu().equal(expected)


@pytest.mark.parametrize("name", ["masked images", "masked texts", "translation"])
def test_models_are_evaluated_on_an_apple_gpu(tmp_path, files, name):
    """Which has no float64."""
    run = vit.train([*(override.format(**files) for override in RUNS[name]), f"run_dir={tmp_path / 'run'}"])
    with simulated_apple_gpu() as waits:
        assert main(["evaluate", str(run.path / "model"), "--device", "mps"]) == 0
    assert waits


def test_texts_generated_on_an_apple_gpu_are_those_of_a_cpu(tmp_path):
    run = vit.train([*RUNS["translation"], f"run_dir={tmp_path / 'run'}"])
    settings = [Generation(max_len=8, beam=3), Generation(max_len=8, sample=True, top_k=9, n_best=2)]
    expected = [vit.load(run.path / "model", device="cpu").predict(["12", "407"], each) for each in settings]
    with simulated_apple_gpu():
        found = [vit.load(run.path / "model", device="mps").predict(["12", "407"], each) for each in settings]
    assert [[text.texts for text in each] for each in found] == [[text.texts for text in each] for each in expected]


LONGER = [*PLAIN, *QUICK, "data.workers=0", "calibrate=none", "recipe.batch_size=256", "model.dim=16",
          "model.num_heads=2", "model.depth=1"]


@pytest.mark.parametrize(("before", "after"), quick_and_slow([("cpu", "gpu"), ("gpu", "cpu")], ("cpu", "gpu")))
def test_a_run_is_resumed_on_another_device(tmp_path, monkeypatch, before, after):
    """After its seventh of ten batches, with the state of the optimizer and the averaged weights."""
    whole = vit.train([*LONGER, "trainer.accelerator=cpu", f"run_dir={tmp_path / 'whole'}"]).path
    on_gpu = {"cpu": nullcontext, "gpu": simulated_gpu}
    with on_gpu[before](), monkeypatch.context() as patch:
        StopAfter(patch, 7)
        with pytest.raises(SystemExit):
            vit.train([*LONGER, f"trainer.accelerator={before}", f"run_dir={tmp_path / 'cut'}"])
    with on_gpu[after]():
        vit.train([f"resume={tmp_path / 'cut'}", f"trainer.accelerator={after}"])
    assert losses(tmp_path / "cut") == pytest.approx(losses(whole), rel=1e-4)


@pytest.mark.parametrize("optimizer", quick_and_slow(["lamb", "adamw"], "lamb"))  # adamw divides by the scale itself
def test_steps_that_overflow_in_float16_are_skipped(tmp_path, monkeypatch, recwarn, optimizer):
    """They count as steps of the schedule, the scale of the loss is halved, and a resumed run is the same."""
    training_step, weights = Task.training_step, {}

    def overflowing(task, batch, batch_idx):
        weight = task.model.head.weight
        weights[task.global_step] = weight.detach().cpu().clone()
        if task.global_step == 0:
            weight.register_hook(lambda gradient: gradient * (torch.inf if task.global_step in (0, 4) else 1))
        return training_step(task, batch, batch_idx)

    monkeypatch.setattr(Task, "training_step", overflowing)
    options = [*LONGER, "precision=16-mixed", "trainer.accelerator=gpu", f"recipe.optimizer.name={optimizer}"]
    with simulated_gpu():
        whole = vit.train([*options, f"run_dir={tmp_path / 'whole'}"]).path
        changed = [not torch.equal(weights[step], weights[step + 1]) for step in range(9)]
        stopped_and_resumed(options, tmp_path / "cut", monkeypatch, 7)
    assert changed == [step not in (0, 4) for step in range(9)]
    checkpoint = load_checkpoint(whole / "checkpoints" / "last.ckpt")
    assert checkpoint["MixedPrecision"]["scale"] == 2**14 and checkpoint["global_step"] == 10
    assert_same(tmp_path / "cut", whole)
    assert [each for each in recwarn if "lr_scheduler.step()" in str(each.message)] == []


def test_commands_use_the_given_gpu_only(tmp_path, teacher, files):
    """The second of two, although the first one is the current device."""
    model, photos, image = str(teacher / "model"), str(files["photos"]), str(next(teacher.rglob("samples/*.png")))
    commands = [
        ["predict", model, photos, photos, "--fast", "--set", "0.9", "--tta", "2", "-o", str(tmp_path / "fast.csv")],
        ["predict", model, photos, "--precision", "16-mixed", "-o", str(tmp_path / "half.csv")],
        ["attention", model, image, "--similarity", "-o", str(tmp_path / "attention.html")],
        ["calibrate", model, "-o", str(tmp_path / "calibrated")],
        ["evaluate", model, "--tta", "2"],
        ["probe", model],
        ["next", model, photos, "--count", "5", "-o", str(tmp_path / "next")],
        ["report", model, "--attention", "1", "--seconds", "0", "-o", str(tmp_path / "report.html")],
    ]
    with simulated_gpu(1):
        assert [main([*each, "--device", "cuda:1"]) for each in commands] == [0] * len(commands)
    expected = vit.load(model, device="cpu").predict([photos])
    found = table(tmp_path / "half.csv")
    assert [row["label"] for row in found] == [each.label for each in expected]
    assert [float(row["probability"]) for row in found] == pytest.approx([x.probability for x in expected], abs=5e-3)


def test_benchmarks_run_on_the_given_gpu_only(monkeypatch, capsys):
    monkeypatch.setattr(hardware, "GPU_SIZE", 64)
    small = ["data.image_size=16", "data.patch_size=8", "model.dim=16", "model.num_heads=2", "model.depth=1"]
    options = ["--batch", "2", "--rounds", "1", "--device", "cuda:1"]
    with simulated_gpu(1):
        assert main(["bench", "step", "inference", *small, *options, "--against", "timm", "--precision",
                     "32-true,16-mixed,bf16-residual"]) == 0
        assert main(["bench", "generation", "--tokens", "2", "--beam", "2", "--precision", "32-true", *options]) == 0
    assert "100.0%" in capsys.readouterr().out  # same results of the two generations


class RunHere:
    """In place of `subprocess.Popen`: a command of vit that runs in this process, which has the simulated GPU."""

    def __init__(self, command, **_):
        self.code = main(command[3:])

    def poll(self):
        return self.code

    def wait(self):
        return self.code


@pytest.mark.parametrize("command", quick_and_slow([
    "cross-validate folds=2",
    "compare-finetuning init_from={teacher} model=adopt --methods lora,head",
    "train -m seed=0,1 hydra.sweep.dir=sweep",
], "train -m seed=0,1 hydra.sweep.dir=sweep"))
def test_commands_with_several_runs_train_on_the_gpu(tmp_path, teacher, monkeypatch, command):
    command = [each.format(teacher=teacher / "model") for each in command.split()]
    monkeypatch.setattr(separate_process, "subprocess", SimpleNamespace(Popen=RunHere))
    monkeypatch.chdir(tmp_path)
    with simulated_gpu() as waits:
        assert main([*command, *IMAGES, *PLAIN, "trainer.accelerator=gpu", "runs=runs"]) == 0
    assert len([*tmp_path.rglob("metrics.json")]) >= 2 and waits


def test_a_run_that_the_guard_stops_has_the_message_of_a_cpu(tmp_path):
    """The host reads the result of a step after the next one, which changes no weight."""
    overrides, found = [*IMAGES, *PLAIN, "recipe.optimizer.lr=1e25", "recipe.schedule.warmup=0"], []
    for accelerator, device in (("cpu", nullcontext()), ("gpu", simulated_gpu())):
        with device, pytest.raises(NonFiniteError) as error:
            vit.train([*overrides, f"trainer.accelerator={accelerator}", f"run_dir={tmp_path / accelerator}"])
        found.append(str(error.value))
    assert found[0] == found[1] and "the weight embed.pos_embed is 1e+25 at optimizer step 2" in found[0]


def test_measuring_whether_to_compile_does_not_touch_other_gpus(teacher):
    """Torch would warn that it initializes each of them."""
    model, before = vit.load(teacher / "model", device="cpu").bundle.model, torch.get_rng_state()
    with simulated_gpu(1), warnings.catch_warnings():
        warnings.simplefilter("error")
        with unchanged(model):
            torch.rand(1)
    assert torch.get_rng_state().equal(before)


def test_a_new_head_is_fitted_on_the_gpu_of_the_rank(monkeypatch, teacher):
    """Which is not the current device before training starts."""
    bundle, split = vit.load(teacher / "model", device="cpu").bundle, digits().splits["val"].take(np.arange(8))
    monkeypatch.setenv("LOCAL_RANK", "1")
    with simulated_gpu(1):
        found = features(bundle.model, split, bundle.preprocessing, Devices("gpu", 2, 1), "error")
    assert len(found.labels) == 8
