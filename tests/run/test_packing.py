"""`data.pack=true`: whole runs on images that keep their aspect ratio, and the commands that use their models."""

import csv
import json

import pytest
import torch
from safetensors.torch import load_file

import vit
from tests import commands
from tests.run.conftest import QUICK, SMALL, run, table, write_photos
from tests.run.test_resume import DIGITS, assert_same, stopped_and_resumed
from vit.bundle import save_bundle
from vit.data import PackedPreprocessing, Preprocessing
from vit.run import main
from vit.run.config.composing import ConfigError, compose, resolve
from vit.run.jobs import build_job
from vit.run.parts.devices import find_devices

PACKED = [*QUICK, *SMALL, "data=folder", "data.pack=true", "model.drop_path=0.1"]


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    """Three classes of pictures in three shapes, each in a folder of its own within the class."""
    root = tmp_path_factory.mktemp("shapes")
    for name, size in {"wide": (12, 40), "tall": (40, 16), "square": (24, 24)}.items():
        write_photos(root / name, {"cat": 16, "dog": 14, "emu": 12}, size)
    for kind in ("cat", "dog", "emu"):
        (root / "photos" / kind).mkdir(parents=True)
        for name in ("wide", "tall", "square"):
            for file in (root / name / kind).iterdir():
                file.rename(root / "photos" / kind / f"{name}_{file.name}")
    return root / "photos"


@pytest.fixture(scope="module")
def whole(shapes, tmp_path_factory):
    return vit.train([*PACKED, f"data.root={shapes}", f"run_dir={tmp_path_factory.mktemp('whole')}"]).path


def test_images_of_the_size_of_the_model_train_as_without_packing(tmp_path):
    """Digits are all of one size: the same bits, with random numbers in the augmentation, in dropout and drop path."""
    overrides = [*DIGITS, "recipe.epochs=2", "recipe.mixup=null", "data.patch_size=2", "model.dropout=0.1",
                 "model.drop_path=0.2", "calibrate=none"]
    plain = vit.train([*overrides, f"run_dir={tmp_path / 'plain'}"]).path
    packed = vit.train([*overrides, "data.pack=true", f"run_dir={tmp_path / 'packed'}"]).path
    weights, others = (load_file(folder / "model" / "model.safetensors") for folder in (plain, packed))
    assert weights.keys() == others.keys() and all(torch.equal(weights[name], others[name]) for name in weights)
    assert (plain / "predictions.csv").read_text() == (packed / "predictions.csv").read_text()


def test_a_resumed_run_ends_with_the_same_bits(tmp_path, shapes, whole, monkeypatch):
    stopped_and_resumed([*PACKED, f"data.root={shapes}"], tmp_path, monkeypatch, 14)
    assert_same(tmp_path, whole)


def test_workers_load_the_same_images(tmp_path, shapes, whole):
    made = vit.train([*PACKED, f"data.root={shapes}", "data.cache=none", "data.workers=2", f"run_dir={tmp_path}"])
    assert_same(made.path, whole)


def test_a_resumed_run_draws_the_same_numbers_of_patches(tmp_path, shapes, monkeypatch):
    overrides = [*PACKED, f"data.root={shapes}", "data.image_size=32", "data.min_patches=4"]
    made = vit.train([*overrides, f"run_dir={tmp_path / 'whole'}"])
    stopped_and_resumed(overrides, tmp_path / "stopped", monkeypatch, 14)
    assert_same(tmp_path / "stopped", made.path)


def test_min_patches_above_those_of_an_image_are_an_error(tmp_path, shapes):
    with pytest.raises(ConfigError, match="data.min_patches=5 is larger than the 4 patches that an image has at most"):
        vit.train([*PACKED, f"data.root={shapes}", "data.min_patches=5", f"run_dir={tmp_path}"])
    overrides = [*PACKED, f"data.root={shapes}", "data.min_patches=4"]  # each image has 4
    config = resolve(compose(overrides)) | {"overrides": overrides, "resumed": False}
    assert build_job(config, find_devices(config["trainer"])).preprocessing.max_patches == 4


@pytest.mark.slow
def test_two_processes_train_the_same(tmp_path, shapes, whole):
    two = ["trainer.devices=2", "trainer.accelerator=cpu", "strategy=ddp", "run_dir=two", "model.drop_path=0"]
    one = vit.train([*PACKED, f"data.root={shapes}", f"run_dir={tmp_path / 'one'}", "model.drop_path=0"]).path
    code, _, err = run([*PACKED, f"data.root={shapes}", *two], tmp_path)
    assert code == 0, err
    losses = [[float(row["train/loss"]) for row in table(folder / "metrics.csv") if row["epoch"] != "0"]
              for folder in (one, tmp_path / "two")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_the_model_records_how_it_prepares_images_and_learns(whole):
    preprocessing = vit.load(whole).preprocessing
    assert isinstance(preprocessing, PackedPreprocessing)
    assert (preprocessing.max_patches, preprocessing.patch_size, preprocessing.size) == (4, (8, 8), (16, 16))
    assert json.loads((whole / "metrics.json").read_text())["test/accuracy"] > 0.5
    log = (whole / "log.txt").read_text()
    assert "at most 4 patches each" in log and "are not mixed (recipe.mixup=null)" in log


def test_predictions_are_those_of_the_evaluation_in_any_batch(whole, shapes):
    with open(whole / "predictions.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    predictor, files = vit.load(whole), [shapes / row["file"] for row in rows]
    for size in (1, 7, 64):
        found = predictor.predict(files, batch_size=size)
        assert [each.label for each in found] == [row["label"] for row in rows]
        assert [each.probability for each in found] == pytest.approx(
            [float(row["probability"]) for row in rows], abs=1e-4)
    assert len(predictor.predict(files, tta=2)) == len(files)


def test_the_commands_use_the_model(whole, shapes, tmp_path):
    one = str(next(shapes.rglob("wide_*.png")))
    for arguments, text in (
        (["evaluate", str(whole)], "accuracy"),
        (["predict", str(whole), one], "wide_"),
        (["report", str(whole), "--output", "page.html", "--corruptions", "--severity", "2", "--attention", "2"],
         "page.html"),
        (["attention", str(whole), one, "--output", "attention.png"], "attention.png"),
        (["probe", str(whole), "--save", "features.npz"], "features.npz"),
        (["calibrate", str(whole), "--output", "calibrated"], "temperature"),
        (["card", str(whole)], "README.md"),
        (["predict", "calibrated", one, "--set", "0.8"], "wide_"),
    ):
        code, out, err = commands.run(commands.VIT, arguments, tmp_path)
        assert code == 0, (arguments, err)
        assert text in out + err
    assert "aspect" in (whole / "model" / "README.md").read_text()


def test_commands_for_images_of_one_size_refuse_the_model(whole, tmp_path):
    code, _, err = commands.run(commands.VIT, ["convert", str(whole), "model.pt2", "--to", "torch_export"], tmp_path)
    assert code == 1 and "a program accepts images of one size" in err
    measured = ["bench", "step", "data=folder", "data.root=photos", "data.pack=true"]
    code, _, err = commands.run(commands.VIT, measured, tmp_path)
    assert code != 0 and "data.pack=true: step, inference and predict measure images of one size" in err
    with pytest.raises(ValueError, match="fast=True measures batches of images of one size"):
        vit.load(whole, fast=True)


def test_a_cross_validation_has_predictions_and_no_ensemble(shapes, tmp_path):
    overrides = [*PACKED, f"data.root={shapes}", "recipe.epochs=1", "calibrate=none"]
    code, out, err = commands.run(commands.VIT, ["cross-validate", "folds=2", *overrides], tmp_path)
    assert code == 0, err
    (result,) = tmp_path.rglob("cross_validation.json")
    found = json.loads(result.read_text())
    assert found["ensemble"] is None and found["out_of_fold"]["samples"] == 126
    assert "no ensemble: with data.pack=true images have different sizes" in out + err


@pytest.mark.parametrize("pack", ["true", "false"])
def test_a_run_starts_from_a_packed_model(whole, shapes, tmp_path, pack):
    made = vit.train(["data=folder", f"data.root={shapes}", *QUICK, f"init_from={whole}", f"data.pack={pack}",
                      "recipe.epochs=1", "recipe.batch_size=8", f"run_dir={tmp_path}"])
    assert isinstance(vit.load(made.path).preprocessing, PackedPreprocessing) == (pack == "true")


def test_a_new_head_is_fitted_to_the_features_of_packed_images(whole, tmp_path):
    root = write_photos(tmp_path / "photos", {"yak": 16, "zebra": 14}, (12, 30))
    made = vit.train(["data=folder", f"data.root={root}", *QUICK, f"init_from={whole}", "data.pack=true",
                      "data.preprocessing.draft=false", "recipe.epochs=1", "recipe.batch_size=8",
                      "recipe.optimizer.lr=1e-30",
                      f"run_dir={tmp_path / 'run'}"])
    assert "head: logistic regression on the features of 23 training images" in (made.path / "log.txt").read_text()
    assert made.metrics["test/accuracy"] == 1


@pytest.mark.parametrize(("values", "text"), [
    ({"positions": "relative"}, "model.positions=relative has a bias for each pair of patches, but data.pack=true"),
    ({"library": "timm"}, "data.pack=true is for the Vision Transformers of this project, not for timm models"),
])
def test_a_model_of_init_from_that_needs_images_of_one_size_is_an_error(shapes, tmp_path, values, text):
    size = {"image_size": 16, "num_classes": 2}
    network = vit.create_model("timm:resnet10t", **size) if "library" in values else vit.create_model(
        "vit_micro", patch_size=8, depth=1, **size, **values)
    save_bundle(tmp_path / "model", network, ["a", "b"], Preprocessing((16, 16)))
    with pytest.raises(ConfigError, match=text):
        vit.train(["data=folder", f"data.root={shapes}", *QUICK, f"init_from={tmp_path / 'model'}", "data.pack=true",
                   f"run_dir={tmp_path / 'run'}"])


@pytest.mark.parametrize(("overrides", "text"), [
    (["recipe.mixup.mixup=0.5"], "recipe.mixup mixes images of one size, but data.pack=true has images of "
     "different sizes; set recipe.mixup=null, or data.pack=false"),
    (["recipe.crop.scale=null"], "recipe.crop.scale=null crops to the aspect ratio of one size"),
    (["recipe.progressive.image_size=[8,16]"], "recipe.progressive.image_size scales all images to one size"),
    (["recipe.progressive.patch_drop=[0.5,0.0]"],
     "recipe.progressive.patch_drop keeps the same number of patches of every image"),
    (["data.preprocessing.resize=squash"], "data.preprocessing.resize is for images of one size"),
    (["data.preprocessing.crop_pct=0.9"], "data.preprocessing.crop_pct is for images of one size"),
    (["data.preprocessing.draft=true"], "data.preprocessing.draft is for images of one size"),
    (["data.cache=memory"], "data.cache=memory stores images for one size"),
    (["data.cache=disk"], "data.cache=disk stores images for one size"),
    (["data.cache=device"], "data.cache=device stores images for one size"),
    (["compile=true"], "compile=true compiles for images of one size"),
    (["strategy=fsdp"], "strategy=fsdp gathers the weights"),
    (["distill=soft", "distill.teacher=empty"], "distill=soft has a teacher for images of one size"),
    (["model=timm", "model.name=test_vit"], "model.library=timm computes images of one size"),
    (["model.stem=conv"], "model.stem=conv has convolutions over the borders"),
    (["model.positions=relative"], "model.positions=relative has a bias for each pair of patches"),
    (["model.mixer=lstm"], "model.mixer=lstm depends on the order"),
    (["model.attention=local"], "model.attention=local has a window"),
    (["model.norm=batch"], "model.norm=batch has means over all tokens"),
    (["model.patch_dropout=0.5"], "model.patch_dropout=0.5 keeps the same number of patches"),
    (["task=masked_image", "model=mae", "recipe=mae"], "task=masked_image masks equally many patches"),
    (["data.pack=false", "data.max_patches=9"], "data.max_patches=9 is for images that keep their aspect ratio"),
    (["data.pack=false", "data.min_patches=9"], "data.min_patches=9 is for images that keep their aspect ratio"),
    (["data.max_patches=0"], "data.max_patches=0"),
])
def test_what_needs_one_size_is_an_error_before_the_data_is_read(overrides, text, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    assert main(["data=folder", "data.root=empty", "data.pack=true", *overrides]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: ") and printed.count("\n") == 1 and text in printed, printed
