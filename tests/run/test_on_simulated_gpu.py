"""Training on a GPU that is simulated on the CPU: no step mixes devices or makes the host wait for the GPU, and the
losses are those of a CPU. `tests/gpu` has the tests of what only a real GPU shows.
"""

import csv

import pytest

import vit
from tests.run.conftest import QUICK, write_photos, write_questions, write_stories
from tests.simulated_gpu import simulated_apple_gpu, simulated_gpu
from vit.cli import main
from vit.generation import Generation
from vit.tasks import Task

TINY = [*QUICK, "recipe.epochs=1", "data.workers=0", "model.dim=16", "model.num_heads=2", "model.depth=1",
        "trainer.log_every_n_steps=1000", "debug=true"]
IMAGES = [*TINY, "recipe.batch_size=8", "calibrate=none"]
TEXTS = [*TINY, "recipe.batch_size=16", "model.dropout=0"]  # whose numbers differ between devices
PAIRS = ["data.train=200", "data.val=20", "data.test=8", "model.decoder_depth=1", "task.decode.beam=2"]
RUNS = {
    "images": [*IMAGES, "augment=randaugment", "recipe.crop=null", "recipe.progressive.patch_drop=[0.5,0.0]"],
    "cached images": [*IMAGES, "augment=randaugment", "recipe.crop=null", "data.cache=device"],
    "packed images": [*IMAGES, "data=folder", "data.root={photos}", "data.pack=true", "data.image_size=32",
                      "data.patch_size=8", "model.drop_path=0.1", "recipe.mixup=null"],
    "masked images": [*IMAGES, "task=masked_image", "model=mae", "recipe=mae", "recipe.crop=null",
                      "model.decoder_dim=16", "model.decoder_depth=1", "model.decoder_num_heads=2"],
    "texts": [*TEXTS, "data=text_table", "{questions}", "calibrate=none"],
    "masked texts": [*TEXTS, "data=corpus", "{stories}"],
    "translation": [*TEXTS, "data=spelled_numbers", "data.limit=1000", "data.max_target_len=32", *PAIRS],
    "text images": [*TEXTS, "data=digit_strips", "data.digits=2", *PAIRS],
}


@pytest.fixture
def files(tmp_path):
    """The values of the names in braces in `RUNS`."""
    return {"photos": write_photos(tmp_path / "photos", {"cat/a": 20, "dog/a": 20}), "stories": write_stories(tmp_path),
            "questions": write_questions(tmp_path / "questions.csv")}


def losses(folder):
    """Of the training and the validation of each epoch."""
    with (folder / "metrics.csv").open() as file:
        return [float(row[name]) for row in csv.DictReader(file) for name in ("train/loss", "val/loss")]


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
