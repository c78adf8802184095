"""Masked pre-training on images, and a classifier that starts from it."""

import csv
import json
import os
import shlex
import signal
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import vit
from tests.run.conftest import QUICK, run, write_photos
from vit.bundle import load_bundle
from vit.cli import main
from vit.run.config.composing import ConfigError
from vit.run.jobs.masked_images import MaskedImageJob
from vit.tasks import MaskedImages

TINY = ["experiment=mae", "data.image_size=16", "model.dim=32", "model.num_heads=2", "model.depth=2", "recipe.epochs=2"]
TINY += ["model.decoder_dim=16", "model.decoder_depth=1", "recipe.batch_size=64", "precision=32-true"]
QUIET = [*TINY, "logger=csv", "report=false", "task.examples=0"]


@pytest.fixture(scope="module", autouse=True)
def blank_pictures():
    """Overrides the fixture of the same name, which replaces figures by blank pictures: here they are drawn."""


def rows_of(file):
    return csv.DictReader(file.read_text().splitlines())


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    overrides = [*TINY, "task.examples=3", "task.examples_every=2",
                 f"run_dir={tmp_path_factory.mktemp('runs') / 'mae'}"]
    return vit.train(overrides)


def test_files_of_a_masked_pre_training(pretrained):
    folder = pretrained.path
    assert [file.name for file in (folder / "reconstructions").iterdir()] == ["epoch_002.png"]
    assert (folder / "reconstructions.png").stat().st_size > 5000
    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"images": 0}).Reload()
    (shown,) = events.Images("reconstructions")
    drawn = Image.open(folder / "reconstructions" / "epoch_002.png")
    assert (shown.width, shown.height) == drawn.size and shown.step == pretrained.metrics["steps"]
    assert len(np.unique(np.array(drawn.convert("L")))) > 50
    rows = list(rows_of(folder / "metrics.csv"))
    assert float(rows[1]["val/loss"]) < float(rows[0]["val/loss"])
    assert pretrained.metrics["test/loss"] < 1.5 and pretrained.metrics["val/loss"] == float(rows[1]["val/loss"])
    bundle = load_bundle(folder)
    assert bundle.classes == [] and bundle.preprocessing.size == (16, 16) and bundle.record["names"] == "vit"
    assert "labels are not used" in (folder / "log.txt").read_text()


def test_evaluate_reproduces_the_loss_and_predict_is_an_error(pretrained, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("vit.exchange.hub.fetch", lambda name: pretrained.path / "model")
    data = ["data=digits", "data.image_size=16"]
    for model in ([str(pretrained.path)], [str(pretrained.path), *data], ["hub:me/mae", *data]):
        assert main(["evaluate", *model, "--json", str(tmp_path / "again.json")]) == 0
        again = json.loads((tmp_path / "again.json").read_text())
        assert again["test/loss"] == pretrained.metrics["test/loss"] and again["images"] == 360
    assert "loss per masked patch" in capsys.readouterr().out
    assert main(["predict", str(pretrained.path), str(pretrained.path / "reconstructions.png")]) == 1
    printed = capsys.readouterr().err
    assert "pre-trained model (mae), which makes no predictions; train it for a task with init_from=" in printed
    assert main(["evaluate", str(pretrained.path), "data=corpus"]) == 1
    assert "holds no images" in capsys.readouterr().err


def frozen_run(run_dir, *overrides):
    """A run whose learning rate is 0, so that its metrics are those of the weights that were loaded."""
    fixed = ["recipe.epochs=1", "recipe.optimizer.lr=0.0", "recipe.ema=null", "precision=32-true", "logger=csv",
             "report=false"]
    return vit.train([*overrides, *fixed, f"run_dir={run_dir}"])


def assert_begins_with(classifier, pretrained, classes):
    model, source = load_bundle(classifier.path).model, load_bundle(pretrained.path)
    body = {name: tensor for name, tensor in source.model.state_dict().items() if not name.startswith("decoder.")}
    assert body.keys() == {name for name in model.state_dict() if not name.startswith("head.")}
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in body.items())
    assert model.config.num_classes == classes and model.config.pool == "mean"
    log = (classifier.path / "log.txt").read_text()
    assert "2 new, " in log and "unused  decoder.mask_token" in log and "head.weight" in log
    assert vit.load(classifier.path).preprocessing == source.preprocessing


def test_fine_tuning_loads_the_encoder_and_the_preprocessing(pretrained, tmp_path):
    photos = write_photos(tmp_path / "photos", {"cat": 12, "dog": 12})
    overrides = ["experiment=finetune", f"data.root={photos}", "recipe.batch_size=8", "data.audit_seconds=1"]
    tuned = frozen_run(tmp_path / "tuned", *overrides, f"init_from={pretrained.path}")
    assert_begins_with(tuned, pretrained, 2)
    assert load_file(tuned.path / "model" / "model.safetensors").keys() >= {"blocks.0.attn.qkv.weight", "pos_embed"}
    config = json.loads((tuned.path / "model" / "config.json").read_text())
    assert config["architecture"].startswith("vit_")  # a timm folder as of any other classifier


@pytest.mark.slow
def test_a_named_model_loads_what_fits(pretrained, tmp_path):
    """As experiment=cifar10 does: the model is chosen, and its sizes are those that were pre-trained."""
    overrides = ["data=digits", "data.image_size=16", "model=micro", "model.dim=32", "model.num_heads=2",
                 "model.depth=2"]
    assert_begins_with(frozen_run(tmp_path / "tuned", *overrides, f"init_from={pretrained.path}"), pretrained, 10)


@pytest.mark.slow
def test_start_from_a_checkpoint_and_continued_pre_training(pretrained, tmp_path):
    checkpoint = pretrained.path / "checkpoints" / "last.ckpt"
    overrides = ["data=digits", "data.image_size=16"]
    assert_begins_with(frozen_run(tmp_path / "tuned", *overrides, f"init_from={checkpoint}"), pretrained, 10)
    more = frozen_run(tmp_path / "more", *TINY, "task.examples=0", f"init_from={pretrained.path}")
    weights = (load_file(each.path / "model" / "model.safetensors") for each in (more, pretrained))
    for one, other in zip(*(sorted(each.items()) for each in weights), strict=True):
        assert one[0] == other[0] and torch.equal(one[1], other[1])
    assert more.metrics["test/loss"] == pretrained.metrics["test/loss"]


@pytest.mark.slow
def test_validation_masks_the_same_patches_for_any_seed(pretrained, tmp_path):
    overrides = [*QUIET, f"init_from={pretrained.path}"]
    runs = [frozen_run(tmp_path / f"seed{seed}", *overrides, f"seed={seed}") for seed in (1, 2)]
    assert runs[0].metrics["val/loss"] == runs[1].metrics["val/loss"] == pretrained.metrics["val/loss"]
    losses = [[row["train/loss"] for row in rows_of(each.path / "metrics.csv")] for each in runs]
    assert losses[0] != losses[1]


def test_a_resumed_run_ends_with_the_same_bits(tmp_path, monkeypatch):
    overrides = [*QUIET, "recipe.epochs=3"]
    whole = vit.train([*overrides, f"run_dir={tmp_path / 'whole'}"])
    step, seen = MaskedImages.training_step, []

    def counted(task, batch, batch_idx):
        seen.append(batch_idx)
        if len(seen) == 29:  # in the middle of the second epoch
            os.kill(os.getpid(), signal.SIGINT)
        return step(task, batch, batch_idx)

    with monkeypatch.context() as patch:
        patch.setattr(MaskedImages, "training_step", counted)
        with pytest.raises(SystemExit):
            vit.train([*overrides, f"run_dir={tmp_path / 'run'}"])
    resumed = vit.train([f"resume={tmp_path / 'run'}"])
    weights = [load_file(each.path / "model" / "model.safetensors") for each in (whole, resumed)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    for name in ("train/loss", "val/loss"):
        rows = [[row[name] for row in rows_of(each.path / "metrics.csv")] for each in (whole, resumed)]
        assert rows[0] == rows[1] and len(rows[0]) == 3
    assert resumed.metrics["test/loss"] == whole.metrics["test/loss"]


@pytest.mark.slow
def test_two_processes_have_the_losses_of_one(tmp_path):
    overrides = [*TINY, "logger=csv", "report=false", "task.examples=2", "task.examples_every=1",
                 "recipe.batch_size=100"]
    alone = vit.train([*overrides, f"run_dir={tmp_path / 'alone'}"])
    two = ["trainer.devices=2", "trainer.accelerator=cpu", "strategy=ddp", "run_dir=two"]
    code, _, err = run([*overrides, *two], tmp_path)
    assert code == 0, err
    for name in ("train/loss", "val/loss"):
        one, both = ([float(row[name]) for row in rows_of(path / "metrics.csv")]
                     for path in (alone.path, tmp_path / "two"))
        assert both == pytest.approx(one, rel=1e-5) and len(one) == 2
    assert len(list((tmp_path / "two" / "reconstructions").iterdir())) == 2


def test_unlabelled_photos(tmp_path):
    photos = write_photos(tmp_path / "photos", {"": 20, "more/inside": 20}, (20, 24))
    overrides = [*QUIET, "data=unlabelled_images", f"data.root={photos}", "recipe.batch_size=8", "data.audit_seconds=1"]
    overrides += ["recipe.augment.shift=null", "recipe.crop={scale:[0.2,1.0],ratio:[0.75,1.3333]}"]
    found = vit.train([*overrides, f"run_dir={tmp_path / 'run'}"])
    config = yaml.safe_load((found.path / "config.yaml").read_text())
    assert config["classes"] == [] and config["recipe"]["crop"]["scale"] == [0.2, 1.0]
    assert sum(len(file.read_text().splitlines()) for file in (found.path / "splits").iterdir()) == 40
    with pytest.raises(ConfigError, match="its images have no labels, which task=classification needs"):
        vit.train(["data=unlabelled_images", "task=classification", "model=micro", f"data.root={photos}"])


@pytest.mark.slow
def test_the_next_command_reads_the_same_table(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    photos = write_photos(tmp_path / "photos", {"cat": 20, "dog": 20})
    rows = [f"{file.relative_to(tmp_path)},{file.parent.name}\n" for file in sorted(photos.glob("*/*"))]
    (tmp_path / "photos.csv").write_text("".join(["file,animal\n", *rows]))
    named = ["data.image=file", "data.label=animal", "data.patch_size=4"]
    overrides = [*QUIET, "data=table", "data.path=photos.csv", *named, "recipe.batch_size=8", "run_dir=run"]
    vit.train([*overrides, "recipe.epochs=1"])
    command = shlex.split(next(line for line in capsys.readouterr().out.splitlines() if "Next:" in line))
    own = command[command.index("train") + 1:]
    assert own == ["data=table", *named[:2], f"data.path={tmp_path / 'photos.csv'}", "data.image_size=16",
                   "init_from=run"]
    assert vit.train([*own, *QUICK, "finetune=head", "run_dir=next"]).metrics["test/images"] > 0


@pytest.mark.parametrize(("overrides", "classes", "command"), [
    (["data=folder", "data.root=a", "data.patch_size=4"], ["cat"],
     ["data=folder", "data.root=/a", "data.image_size=[8,16]"]),
    (["seed=3"], ["cat"], ["data=photos", "data.root=/a", "data.image_size=[8,16]"]),
    (["data=folder", "data.root=a"], [], ["experiment=finetune", "data.root=PHOTOS"]),
])
def test_the_next_command_has_the_size_of_the_images_or_other_photos_where_these_have_no_labels(
    overrides, classes, command
):
    job = SimpleNamespace(config={"overrides": overrides, "data": {"name": "photos", "root": "/a"}},
                          source=SimpleNamespace(classes=classes), preprocessing=SimpleNamespace(size=(8, 16)))
    found = MaskedImageJob.next_command(job, SimpleNamespace(path="run"), None)
    assert found == ("train", *command, "init_from=run")


@pytest.mark.parametrize(("overrides", "message"), [
    (["model.name=vit_tiny"], "model=vit_tiny: task=masked_image trains masked autoencoders; use model=mae"),
    (["model.mask_ratio=0.95", "data.image_size=8"], "model: mask_ratio 0.95 leaves 0 of 4 patches"),
    (["model.decoder_dim=30"], "decoder_dim 30 is not divisible by 4"),
    (["task.examples_every=0"], "task.examples_every=0: must be a whole number, 1 or more"),
    (["callbacks.monitor=val/accuracy"], "callbacks.monitor=val/accuracy: must be one of val/loss, train/loss"),
])
def test_invalid_combinations_are_errors(overrides, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        vit.train(["experiment=mae", *overrides, f"run_dir={tmp_path / 'run'}"])
