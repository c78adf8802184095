"""Recipe values that are `auto`: their resolved values, and where they are recorded."""

import json
import logging

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file
from sklearn.linear_model import LogisticRegression

import vit
from tests.run.conftest import write_photos
from vit.bundle import save_bundle
from vit.data import Preprocessing, folder
from vit.evaluation.features.probe import Labelled, choose_c, fit_linear
from vit.run import main
from vit.run.config.composing import ConfigError, compose, resolve
from vit.run.jobs import build_job
from vit.run.parts import head_fit
from vit.run.parts.batches import check_batch, check_devices
from vit.run.parts.devices import find_devices
from vit.run.parts.head_fit import class_balanced
from vit.run.parts.recipe import fit_recipe, steps_per_epoch

FAST = ["trainer.accelerator=cpu", "precision=32-true", "logger=csv", "report=false", "data.audit_seconds=1",
        "data.image_size=16", "data.patch_size=8"]


def recipe_of(samples, *overrides, world=1):
    config = resolve(compose(["data=folder", "data.root=x", *overrides]))
    fit_recipe(config, samples, world)
    return config["recipe"]


@pytest.mark.parametrize(
    ("samples", "batch", "epochs"),
    [(10, 8, 100), (40, 8, 60), (122, 8, 30), (300, 16, 30), (900, 32, 30), (1024, 64, 30), (50_000, 64, 25),
     (1_281_167, 64, 5)],
)
def test_fine_tuning_fits_the_set(samples, batch, epochs):
    recipe = recipe_of(samples, "recipe=finetune")
    assert (recipe["batch_size"], recipe["epochs"]) == (batch, epochs)
    steps = epochs * steps_per_epoch(recipe, samples)
    reach = 1 / (1 - recipe["ema"])  # steps
    assert reach == pytest.approx(min(max(steps / 20, 10), 5000), rel=1e-3)


@pytest.mark.parametrize(("batch", "accumulate", "devices", "near"), [
    (63, 1, 2, 62), (31, 4, 1, 32), (31, 4, 3, 36), (1, 4, 2, 8), (28, 4, 3, 24),
])
def test_the_named_batch_size_is_the_nearest_valid_one(batch, accumulate, devices, near):
    config = {"recipe": {"batch_size": batch, "accumulate": accumulate}}
    with pytest.raises(ConfigError, match=f"nearest: {near}$"):
        check_devices(config, devices)
    config["recipe"]["batch_size"] = near
    check_devices(config, devices)


@pytest.mark.parametrize(("samples", "accumulate", "devices", "fix"), [
    (30, 1, 1, "use recipe.batch_size=15"), (30, 1, 2, "use recipe.batch_size=14"),
    (30, 3, 2, "use recipe.batch_size=12"),
    (6, 2, 2, "use recipe.batch_size=4"), (1, 1, 1, "use recipe.batch_size=1"),
    (3, 4, 2, "recipe.accumulate=4 on 2 devices needs at least 8 images"),
])
def test_the_batch_size_for_few_images_fits_micro_batches_and_devices(samples, accumulate, devices, fix):
    recipe = {"batch_size": 64, "accumulate": accumulate}
    with pytest.raises(ConfigError, match=f"^recipe.batch_size=64 is larger than .* of {samples} images?; {fix}$"):
        check_batch(recipe, samples, "images", devices)
    check_batch(recipe, 64, "images", devices)


def test_an_automatic_batch_size_is_no_larger_than_the_training_set():
    sizes = {(samples, devices): recipe_of(samples, world=devices)["batch_size"]
             for samples, devices in ((7, 1), (7, 2), (8, 3), (9, 5), (12, 8))}
    assert sizes == {(7, 1): 7, (7, 2): 6, (8, 3): 6, (9, 5): 5, (12, 8): 8}


def test_an_override_wins_and_devices_share_the_batch():
    recipe = recipe_of(122, "recipe=finetune", "recipe.batch_size=20", "recipe.epochs=3", "recipe.ema=null")
    assert (recipe["batch_size"], recipe["epochs"], recipe["ema"]) == (20, 3, None)
    for world, accumulate in ((3, 1), (2, 2), (5, 3)):
        found = recipe_of(122, "recipe=finetune", f"recipe.accumulate={accumulate}", world=world)["batch_size"]
        assert found % (world * accumulate) == 0 and 4 < found < 32
    assert recipe_of(50_000)["batch_size"] == 64 and recipe_of(200)["batch_size"] == 8  # from scratch


@pytest.mark.parametrize("key", ["batch_size", "epochs", "ema", "drop_last"])
@pytest.mark.parametrize("value", ["many", "true", "-1", "1.5"])
def test_an_invalid_number_is_an_error_of_its_key(key, value):
    if (key, value) == ("drop_last", "true"):
        return
    with pytest.raises(ConfigError, match=f"recipe.{key}="):
        recipe_of(122, "recipe=finetune", f"recipe.{key}={value}")


def test_images_left_out_of_an_epoch_are_logged(caplog):
    with caplog.at_level(logging.INFO, "vit"):
        recipe = recipe_of(122, "recipe.batch_size=64")
    assert recipe["drop_last"] is False and steps_per_epoch(recipe, 122) == 2
    assert "leaves" not in caplog.text
    with caplog.at_level(logging.INFO, "vit"):
        assert steps_per_epoch(recipe_of(122, "recipe.batch_size=64", "recipe.drop_last=false"), 122) == 2
        recipe_of(60, "recipe.batch_size=64", "recipe.drop_last=true")  # too few for a batch: an error later
    assert "leaves" not in caplog.text
    with caplog.at_level(logging.INFO, "vit"):
        recipe = recipe_of(122, "recipe.batch_size=64", "recipe.drop_last=true")
    assert "each epoch leaves 58 of 122 training images out" in caplog.text
    assert recipe_of(80, "recipe.batch_size=76")["drop_last"] is False  # 5 %
    assert recipe_of(81, "recipe.batch_size=77")["drop_last"] is True


@pytest.mark.parametrize(("overrides", "line"), [
    (["recipe.drop_last=false"], "leaves 81 of 122 training images out, different ones each time (recipe.repeats=3 "
                                 "shows each of the others 3 times)"),
    (["recipe.drop_last=true"], "leaves 100 of 122 training images out"),
    (["recipe.drop_last=false", "data.balance=sampler"], "leaves at least 81 of 122 training images out"),
])
def test_repeats_leave_images_out(caplog, overrides, line):
    """41 images three times, the last of them two times; or the images of one batch of 64."""
    with caplog.at_level(logging.INFO, "vit"):
        recipe_of(122, "recipe.batch_size=64", "recipe.repeats=3", *overrides)
    assert f"each epoch {line}" in caplog.text


def test_more_repeats_than_an_automatic_batch_has_images_are_an_error():
    with pytest.raises(ConfigError, match="recipe.repeats=9 is larger than recipe.batch_size=8, but all copies"):
        check_batch(recipe_of(40, "recipe.repeats=9"), 40, "images")


def test_repeats_of_texts_are_an_error(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.csv").write_text("text,label\n" + "a,yes\nb,no\n" * 9)
    numbers = ["recipe.batch_size=4", "recipe.epochs=1", "recipe.ema=null", "recipe.repeats=3"]
    assert main(["data=text_table", "data.path=texts.csv", "recipe=scratch", "augment=none", *numbers]) == 2
    assert capsys.readouterr().err == ("error: recipe.repeats=3 is for image classification and masked pre-training of "
                                       "images, but this is task=text_classification; set it to 1\n")


def test_repeats_without_augmentation_are_reported(tmp_path, caplog):
    root = write_photos(tmp_path / "photos", {"cat": 20, "dog": 17})
    none = ["augment=none", "recipe.crop=null", "recipe.mixup=null"]
    for unset in ([], none[:2], none[1:], [none[0], none[2]], none):
        overrides = ["data=folder", f"data.root={root}", *FAST, "model=micro", "recipe.repeats=3", *unset]
        caplog.clear()
        with caplog.at_level("WARNING", "vit"):
            config = resolve(compose(overrides)) | {"overrides": overrides}
            build_job(config, find_devices(config["trainer"]))
        assert ("recipe.repeats=3: the 3 copies of an image in a batch are equal" in caplog.text) is (unset == none)


def test_the_resolved_values_are_logged_and_recorded(tmp_path):
    root = write_photos(tmp_path / "photos", {"cat": 20, "dog": 17})
    overrides = ["data=folder", f"data.root={root}", "model=micro", "recipe.epochs=1", *FAST]
    path = vit.train([*overrides, f"run_dir={tmp_path / 'run'}"]).path
    recorded = yaml.safe_load((path / "config.yaml").read_text())["recipe"]
    assert (recorded["batch_size"], recorded["drop_last"]) == (8, False)
    assert json.loads((path / "metrics.json").read_text())["steps"] == 4  # 29 images, all of them used
    assert "recipe for 29 training images: batch_size 8; 4 steps in all" in (path / "log.txt").read_text()


def test_the_fitted_layer_is_scikit_learns():
    rng = np.random.default_rng(0)
    for classes in (2, 4):
        labels = np.arange(120) % classes
        x = rng.normal(size=(120, 6)).astype(np.float32) * [1, 5, 0.1, 1, 1, 0] + labels[:, None] * [1, 3, 0, 0, 0, 0]
        x = (x + 7).astype(np.float32)
        fit = fit_linear(Labelled(x, labels), classes, c_values=(0.1,))
        scaled = (x - x.mean(0)) / np.where(x.std(0) > 0, x.std(0), 1)
        model = LogisticRegression(C=0.1, max_iter=1000).fit(scaled, labels)
        found = torch.softmax(torch.from_numpy(x @ fit.weight.T + fit.bias), 1).numpy()
        assert np.allclose(found, model.predict_proba(scaled), atol=2e-3)
        assert 0.5 < fit.accuracy <= 1


def test_two_samples_of_each_class_select_the_regularization_and_one_does_not():
    x = np.random.default_rng(0).normal(size=(9, 3))
    c, accuracy = choose_c(x, np.array([0, 0, 1, 1, 1, 2, 2, 2, 2]), (0.01, 10.0))
    assert c in (0.01, 10.0) and 0 <= accuracy <= 1
    c, accuracy = choose_c(x, np.array([0, 1, 1, 1, 1, 2, 2, 2, 2]), (0.01, 10.0))
    assert c == 0.1 and np.isnan(accuracy)


def test_the_folds_of_the_regularization_do_not_depend_on_other_random_numbers():
    x, found = np.random.default_rng(0).normal(size=(60, 3)), set()
    for seed in range(4):
        np.random.seed(seed)
        found.add(choose_c(x, np.arange(60) % 2, (0.1,)))
    assert len(found) == 1


def test_classes_without_a_vector_and_single_vectors_can_be_fitted():
    x = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    fit = fit_linear(Labelled(x, np.array([0, 2, 2, 4, 0])), 6)
    assert fit.weight.shape == (6, 3) and np.isfinite(fit.weight).all() and np.isfinite(fit.bias).all()


def test_samples_are_chosen_evenly(tmp_path):
    split = folder(write_photos(tmp_path, {"cat": 40, "dog": 5, "emu": 20}), (1, 0, 0)).splits["train"]
    assert np.bincount(class_balanced(split, 25).labels).tolist() == [10, 5, 10]
    assert len(class_balanced(split, 1000)) == 65


@pytest.mark.parametrize("name", ["vit_micro", "timm:resnet10t"])
def test_the_head_is_fitted_to_a_number_of_images_of_each_class_and_the_model_trains_after_it(
    tmp_path, monkeypatch, caplog, name
):
    monkeypatch.setattr(head_fit, "IMAGES", 10)
    monkeypatch.setattr(head_fit, "IMAGES_PER_CLASS", 4)
    root = write_photos(tmp_path / "photos", {"cat": 20, "dog": 17, "emu": 18})
    more = {"patch_size": 8, "depth": 1} if name == "vit_micro" else {}
    network = vit.create_model(name, image_size=16, num_classes=2, **more)
    save_bundle(tmp_path / "model", network, ["a", "b"], Preprocessing((16, 16)))
    overrides = ["data=folder", f"data.root={root}", f"init_from={tmp_path / 'model'}", "finetune.batch_norm=train"]
    config = resolve(compose(overrides)) | {"overrides": overrides}
    with caplog.at_level("INFO", "vit"):
        job = build_job(config, find_devices(config["trainer"]))
    assert "head: logistic regression on the features of 12 training images" in caplog.text
    assert all(module.training for module in job.model.modules())


def test_fine_tuning_begins_at_a_probe_of_the_frozen_features(tmp_path):
    """With a learning rate of 0 the trained model is the probe; head_init=random starts from a random head."""
    root = write_photos(tmp_path / "photos", {"cat": 20, "dog": 17, "emu": 18})
    start = vit.train(["data=digits", "model=micro", "recipe.epochs=1", "data.image_size=16", *FAST[:3],
                       f"run_dir={tmp_path / 'start'}"]).path
    overrides = ["data=folder", f"data.root={root}", f"init_from={start}", "recipe=finetune", "recipe.epochs=1",
                 "recipe.optimizer.lr=1e-30", "finetune=head", *FAST[:4]]
    fitted = vit.train([*overrides, f"run_dir={tmp_path / 'fit'}"])
    assert "head: logistic regression on the features of 42 training images" in (fitted.path / "log.txt").read_text()
    predictor = vit.load(fitted.path)
    assert predictor.preprocessing == Preprocessing.from_dict(
        json.loads((start / "model" / "config.json").read_text())["vit"]["preprocessing"])
    random = vit.train([*overrides, "finetune.head_init=random", f"run_dir={tmp_path / 'random'}"])
    weights = [load_file(run.path / "model" / "model.safetensors")["head.weight"] for run in (fitted, random)]
    assert not torch.allclose(*weights)
    assert fitted.metrics["val/accuracy"] > 0.6 and fitted.metrics["test/accuracy"] > 0.6
