"""`vit cross-validate`: its runs, out-of-fold predictions, ensemble and soups, against computations by hand."""

import json
import logging
import shutil
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score

import vit
from tests.run.conftest import SMALL, table, write_photos
from vit.bundle import BundleError, load_bundle, save_ensemble
from vit.data import DataError
from vit.evaluation.out_of_fold import HeldOut, read_held_out
from vit.run.config.composing import ConfigError
from vit.run.multirun import cross_validation
from vit.run.multirun.cross_validation import cross_validate, fold_runs
from vit.run.multirun.held_out import held_out
from vit.run.parts.data_source import build_source
from vit.run.records.reading import read_config
from vit.run.records.splits import read_record

SHORT = ["data=digits", "recipe.epochs=1", "logger=csv", "report=false", "precision=32-true", "model.depth=1",
         "trainer.accelerator=cpu"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("folds") / "cv"
    return cross_validate([*SHORT, "folds=2", f"run_dir={folder}"])


def test_a_target_of_the_user_is_trusted_in_the_runs_of_the_command(tmp_path):
    """Their configs record it, and are read after all of them have been trained."""
    target = "+callbacks.own._target_=pytorch_lightning.Callback"
    run = cross_validate([*SHORT, "debug=true", target, "folds=2", f"run_dir={tmp_path}"])
    assert run.metrics["ensemble"]["members"] == 2
    with pytest.raises(ConfigError, match="callbacks.own._target_ names 'pytorch_lightning.Callback', which could be"):
        held_out(tmp_path / "fold1")


def test_each_sample_is_predicted_once_by_a_model_that_was_not_trained_on_it(finished):
    whole = read_held_out(finished.path / "out_of_fold.csv")
    assert len(whole) == len(set(whole.names)) == 1437 and whole.classes == [str(i) for i in range(10)]
    assert abs(whole.probabilities.sum(1) - 1).max() < 1e-4
    for fold in ("1/2", "2/2"):
        record = read_record(finished.path / f"fold{fold[0]}").splits
        own = {name for name, each in zip(whole.names, whole.folds, strict=True) if each == fold}
        assert own == {entry.name for entry in record["test"]}
        assert not own & {entry.name for key in ("train", "val") for entry in record[key]}


def test_probabilities_out_of_fold_are_the_calibrated_ones_of_the_runs(finished):
    whole = {row["name"]: row for row in table(finished.path / "out_of_fold.csv")}
    for fold in (1, 2):
        assert abs(load_bundle(finished.path / f"fold{fold}").calibration.temperature - 1) > 0.01
        rows = table(finished.path / f"fold{fold}" / "predictions.csv")
        for row in rows:
            name = row["file"]
            assert whole[name]["prediction"] == row["label"]
            assert float(whole[name][f"p:{row['label']}"]) == pytest.approx(float(row["probability"]), abs=2e-6)


def test_rows_of_one_file_stay_two_samples_with_their_own_labels():
    """As in the runs, whose accuracies count both rows of a table; two seeds are averaged for each of them."""
    one = HeldOut(["x", "y", "x"], ["1/2"] * 3, np.array([0, 1, 1]), np.array([[0.8, 0.2], [0.4, 0.6], [0.8, 0.2]]),
                  ["a", "b"])
    other = replace(one, probabilities=np.array([[0.6, 0.4], [0.4, 0.6], [0.6, 0.4]]))
    whole = HeldOut.concat([one, other])
    assert whole.names == ["x", "y", "x"] and whole.labels.tolist() == [0, 1, 1]
    assert whole.accuracy == pytest.approx(2 / 3)
    np.testing.assert_allclose(whole.probabilities, [[0.7, 0.3], [0.4, 0.6], [0.7, 0.3]])


def test_folds_of_other_classes_are_not_one_table():
    one, other = (HeldOut(["x"], ["1/2"], np.array([0]), np.array([[1.0, 0.0]]), classes) for classes in ("ab", "ac"))
    with pytest.raises(DataError, match="a fold has other classes than the first one: more: c; fewer: b"):
        HeldOut.concat([one, other])


def test_only_a_run_reports_the_samples_that_are_in_no_fold(finished, caplog, monkeypatch):
    run, line = finished.path / "fold1", "the 360 samples of test are left out"
    assert (run / "log.txt").read_text().count(line) == 1
    monkeypatch.setattr(logging.getLogger("vit"), "handlers", [caplog.handler])
    caplog.set_level(logging.INFO, "vit")
    held_out(run)
    assert line not in caplog.text
    build_source(read_config(run)["data"])
    assert line in caplog.text


def test_a_resumed_cross_validation_has_its_own_folds_and_seeds(finished):
    for given, started in (("folds=3", "folds=2"), ("seeds=0,1", "seeds=0")):
        with pytest.raises(ConfigError, match=f"{given}: resume would continue {finished.path}, .* with {started};"):
            cross_validate([f"resume={finished.path}", given])
    assert cross_validate([f"resume={finished.path}", "folds=2", "seeds=[0]"]).path == finished.path


def test_splits_that_a_run_lacks_are_named(finished):
    with pytest.raises(DataError, match="fold1 has no split extra; it has train, val, test"):
        held_out(finished.path / "fold1", ("extra",))


def test_numbers_are_those_of_the_runs(finished):
    tests = [json.loads((finished.path / f"fold{k}" / "metrics.json").read_text())["test/accuracy"] for k in (1, 2)]
    stored = json.loads((finished.path / "cross_validation.json").read_text())
    assert stored["mean"]["test/accuracy"] == pytest.approx(np.mean(tests))
    assert stored["deviation"]["test/accuracy"] == pytest.approx(np.std(tests, ddof=1))
    rows = table(finished.path / "out_of_fold.csv")
    accuracy = accuracy_score([row["label"] for row in rows], [row["prediction"] for row in rows])
    assert stored["out_of_fold"] == {"samples": 1437, "accuracy": pytest.approx(accuracy)}
    sizes = [json.loads((finished.path / f"fold{k}" / "metrics.json").read_text())["test/images"] for k in (1, 2)]
    assert accuracy == pytest.approx(np.average(tests, weights=sizes))
    assert stored["ensemble"]["test_samples"] == 360 and stored["soups"] is None


def test_the_predictions_and_the_test_of_the_ensemble_have_a_progress_bar(finished, tmp_path, monkeypatch):
    stages = {}

    @contextmanager
    def recorded(console):
        yield lambda stage, done, total: stages.update({stage: (done, total)})

    monkeypatch.setattr(cross_validation, "stage_bar", recorded)
    folder = shutil.copytree(finished.path, tmp_path / "cv")
    combined = cross_validation.combine(folder, ["fold1", "fold2"], tmp_path / "table.csv")
    assert combined["out_of_fold"] == finished.metrics["out_of_fold"]
    sizes = [each["test/images"] for each in combined["runs"].values()]
    assert stages == {f"predictions of fold{k}": (size, size) for k, size in enumerate(sizes, 1)} | {
        f"test of {name}": (360, 360) for name in ("fold1", "fold2", "ensemble")}


def test_the_ensemble_predicts_the_mean_of_its_members(finished):
    images = finished.path / "fold1" / "samples"
    one, other, ensemble = (
        {p.source: dict(zip(p.names, p.probabilities, strict=True)) for p in vit.load(path).predict(images, top_k=10)}
        for path in (finished.path / "fold1", finished.path / "fold2", finished.path / "ensemble"))
    for source, classes in ensemble.items():
        for name, probability in classes.items():
            assert probability == pytest.approx((one[source][name] + other[source][name]) / 2, abs=1e-6)
    means = load_bundle(finished.path / "ensemble").model.config.means
    assert means[0] != means[1]  # each member normalises by the training images of its fold


def test_the_ensemble_is_evaluated_like_any_model(finished, capsys):
    from vit.cli import main

    assert main(["evaluate", str(finished.path / "ensemble"), "--json", str(finished.path / "evaluation.json")]) == 0
    stored = json.loads((finished.path / "cross_validation.json").read_text())["ensemble"]
    found = json.loads((finished.path / "evaluation.json").read_text())
    assert found["test/accuracy"] == pytest.approx(stored["test_accuracy"]) and found["images"] == 360


def test_a_finished_fold_is_not_run_again_and_a_stopped_one_resumes(finished, tmp_path):
    first, second = (finished.path / f"fold{k}" for k in (1, 2))
    before = (first / "model" / "model.safetensors").stat().st_mtime_ns
    metrics = (second / "metrics.json").read_text()
    (second / "metrics.json").unlink()
    again = cross_validate([f"resume={finished.path}"], tmp_path / "oof.parquet")
    assert (first / "model" / "model.safetensors").stat().st_mtime_ns == before
    assert "resuming" in (second / "log.txt").read_text()
    assert json.loads((second / "metrics.json").read_text())["test/accuracy"] == json.loads(metrics)["test/accuracy"]
    one, other = read_held_out(tmp_path / "oof.parquet"), read_held_out(finished.path / "out_of_fold.csv")
    assert list(one.names) == list(other.names) and abs(one.probabilities - other.probabilities).max() < 1e-5
    assert again.metrics["mean"] == finished.metrics["mean"]


@pytest.mark.parametrize(("arguments", "message"), [
    (["folds=1"], "folds=1: must be a whole number, 2 or more"), (["folds=x"], "folds=x"),
    (["seeds=0,0"], "must be different whole numbers"), (["seeds=a"], "seeds=a"),
    ([f"seeds=1,{2**64}"], "must be different whole numbers"),
    (["data.fold=1/5"], "use folds=N"), (["seed=1"], "use seeds=N"), (["recipe.epoch=1"], "recipe.epochs"),
    (["data=spelled_numbers"], "task=seq2seq cannot be cross-validated: folds are made of images or texts with"),
    (["task=masked_image"], "task=masked_image cannot be cross-validated"),
])
def test_wrong_arguments_are_errors_before_the_first_run(tmp_path, arguments, message):
    with pytest.raises(ConfigError, match=message):
        cross_validate([*SHORT, *arguments, f"run_dir={tmp_path / 'new'}"])
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("folds", "message"), [
    (99999, "1,437 samples cannot be divided into 99,999 folds; use at most 1,437 folds"),
    (400, "fewer than the 400 folds"),
])
def test_too_many_folds_are_an_error_before_the_runs_are_composed(tmp_path, monkeypatch, folds, message):
    """Each config takes a tenth of a second."""
    monkeypatch.setattr("vit.run.multirun.comparison_plan.compose", lambda overrides: pytest.fail("composed a run"))
    with pytest.raises(DataError, match=message):
        cross_validate([*SHORT, f"folds={folds}", f"run_dir={tmp_path / 'new'}"])
    assert not (tmp_path / "new").exists()


def test_names_of_the_runs():
    assert fold_runs({"folds": "2"}) == {"fold1": ["data.fold=1/2", "seed=0"], "fold2": ["data.fold=2/2", "seed=0"]}
    several = ["fold1-seed3", "fold2-seed3", "fold1-seed7", "fold2-seed7"]
    assert list(fold_runs({"folds": "2", "seeds": "3,7"})) == several


def test_a_table_of_something_else_is_an_error(tmp_path):
    (tmp_path / "other.csv").write_text("file,label\na,b\n")
    with pytest.raises(DataError, match="is not a table of held-out predictions"):
        read_held_out(tmp_path / "other.csv")


def test_members_of_an_ensemble_must_fit(finished, tmp_path):
    other = vit.train([*SHORT[:-2], "model.depth=2", "trainer.accelerator=cpu", f"run_dir={tmp_path / 'other'}"])
    with pytest.raises(BundleError, match="another architecture.*: depth is 2 and 1"):
        save_ensemble(tmp_path / "ensemble", [finished.path / "fold1", other.path])
    with pytest.raises(BundleError, match="of kind ensemble"):
        save_ensemble(tmp_path / "ensemble", [finished.path / "ensemble"])


def test_the_ensemble_skips_the_test_images_that_the_runs_skip(tmp_path):
    root = write_photos(tmp_path / "photos", {f"{split}/{name}": 8 for split in ("train", "test") for name in "ab"})
    truncate(root / "test" / "a" / "000.png")
    result = cross_validate(["data=folder", f"data.root={root}", *SMALL, "recipe.batch_size=4", "recipe.epochs=1",
                             "report=false", "data.on_bad_sample=skip", "folds=2", f"run_dir={tmp_path / 'cv'}"])
    assert result.metrics["ensemble"]["test_samples"] == 15


def truncate(photo):
    content = photo.read_bytes()
    photo.write_bytes(content[: len(content) // 2])


@pytest.mark.slow
def test_seeds_of_one_start_make_a_soup_per_fold(tmp_path):
    root = write_photos(tmp_path / "photos", {"cat": 30, "dog": 30}, size=(16, 16))
    for i in range(9):
        truncate(root / "cat" / f"{i:03}.png")
    size = ["data.image_size=16", "data.patch_size=8", "model=micro", "recipe.batch_size=8", "logger=csv",
            "report=false", "data.on_bad_sample=skip"]
    start = vit.train(["data=folder", f"data.root={root}", *size, "recipe.epochs=1", f"run_dir={tmp_path / 'start'}"])
    result = cross_validate(["data=folder", f"data.root={root}", *size, "recipe.epochs=2", f"init_from={start.path}",
                             "on_leakage=warn", "folds=2", "seeds=0,1", f"run_dir={tmp_path / 'cv'}"])
    assert [soup["fold"] for soup in result.metrics["soups"]] == ["1/2", "2/2"]
    for soup in result.metrics["soups"]:
        if len(soup["ingredients"]) > 1:
            states = [load_bundle(tmp_path / "cv" / name).model.state_dict() for name in soup["ingredients"]]
            found = load_bundle(soup["path"]).model.state_dict()
            for name, tensor in found.items():
                assert torch.allclose(tensor, torch.stack([state[name] for state in states]).mean(0), atol=1e-6)
    assert len(read_held_out(tmp_path / "cv" / "out_of_fold.csv")) == 51
