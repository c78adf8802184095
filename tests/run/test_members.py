"""Evaluation, reports and calibration of ensembles and soups on samples of their members, against the splits of the
runs.
"""

import json
import logging
import shutil

import pytest

import vit
from tests.run.conftest import SMALL, write_photos
from vit.bundle import load_bundle, save_bundle, save_ensemble
from vit.cli import main
from vit.cli.data.data_sets import compose_data, evaluation_source
from vit.run.config.composing import ConfigError
from vit.run.multirun.cross_validation import cross_validate
from vit.run.parts.data_source import build_source
from vit.run.records.splits import read_record

SHORT = [*SMALL, "recipe.epochs=1", "report=false", "logger=csv", "precision=32-true", "trainer.accelerator=cpu"]
SEEN = "are training or validation samples of members of"


@pytest.fixture(scope="module")
def folds(tmp_path_factory):
    """A cross-validation of photos without splits."""
    folder = tmp_path_factory.mktemp("folds")
    root = write_photos(folder / "photos", {"cat": 16, "dog": 14})
    return cross_validate(["data=folder", f"data.root={root}", *SHORT, "folds=2", f"run_dir={folder / 'cv'}"]).path


@pytest.fixture(scope="module")
def stated(tmp_path_factory):
    """A cross-validation of photos whose folders state all three splits."""
    folder = tmp_path_factory.mktemp("stated")
    root = write_photos(folder / "photos", {f"{split}/{name}": count for name in ("cat", "dog")
                                            for split, count in (("train", 20), ("val", 4), ("test", 5))})
    return cross_validate(["data=folder", f"data.root={root}", *SHORT, "folds=2", f"run_dir={folder / 'cv'}"]).path


def seen(folder):
    """The names of the training and validation samples of all folds."""
    records = [read_record(folder / f"fold{k}").splits for k in (1, 2)]
    return {entry.name for record in records for key in ("train", "val") for entry in record[key]}


def error_of(arguments, capsys, code=2):
    assert main([str(argument) for argument in arguments]) == code
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(("command", "split"), [("evaluate", "test"), ("report", "test"), ("calibrate", "val")])
def test_samples_of_the_folds_are_refused(folds, tmp_path, capsys, command, split):
    config = compose_data([], load_bundle(folds / "ensemble"))
    names = build_source(config["data"]).splits[split].names
    assert set(names) <= seen(folds)
    written = {"evaluate": "X", "report": "report.html", "calibrate": "X"}[command]
    text = error_of([command, folds / "ensemble", "--output", tmp_path / written], capsys)
    assert f"of the {len(names)} samples of photos, {split}, {SEEN}" in text
    assert f"{folds / 'cross_validation.json'} has the accuracy out of fold" in text and "other data" in text
    assert not (tmp_path / written).exists()


def test_the_stated_test_split_is_evaluated_and_the_stated_validation_split_is_refused(stated, tmp_path, capsys):
    ensemble = stated / "ensemble"
    assert main(["evaluate", str(ensemble), "--json", str(tmp_path / "numbers.json")]) == 0
    assert json.loads((tmp_path / "numbers.json").read_text())["images"] == 10
    capsys.readouterr()
    text = error_of(["calibrate", ensemble, "--output", tmp_path / "X"], capsys)
    assert f"of the 8 samples of photos, val, {SEEN}" in text
    assert "use --split test, whose samples no member was trained on, or other data" in text
    assert main(["calibrate", str(ensemble), "--split", "test", "--output", str(tmp_path / "X")]) == 0
    assert load_bundle(tmp_path / "X").calibration.samples == 10
    assert SEEN in error_of(["evaluate", ensemble, "data.fold=1/2"], capsys)


def test_copies_without_the_runs_are_refused_by_the_record_of_the_ensemble(stated, folds, tmp_path, capsys):
    for source, name in ((folds, "one"), (stated, "other")):
        bundle = load_bundle(source / "ensemble")
        extra = {**bundle.extra, "members": [str(tmp_path / "gone" / "fold1")]}
        save_bundle(tmp_path / name, bundle.model, bundle.classes, bundle.preprocessing, {}, extra)
    assert f"the samples of photos, test, {SEEN}" in error_of(["evaluate", tmp_path / "one"], capsys)
    assert main(["evaluate", str(tmp_path / "other")]) == 0
    assert "use --split test" in error_of(["evaluate", tmp_path / "other", "--split", "val"], capsys)


@pytest.mark.parametrize("extra", [{"members": 3}, {"members": ["a", 1]}, {"members": [], "held_out": "test"}])
def test_a_damaged_record_of_the_members_is_named(folds, tmp_path, capsys, extra):
    bundle = load_bundle(folds / "ensemble")
    save_bundle(tmp_path / "m", bundle.model, bundle.classes, bundle.preprocessing, {}, {**bundle.extra, **extra})
    assert f"vit.extra.{list(extra)[-1]} must be a list of strings" in error_of(["evaluate", tmp_path / "m"], capsys, 1)


def test_a_calibrated_copy_elsewhere_is_refused_on_the_samples_too(stated, tmp_path, capsys):
    assert main(["calibrate", str(stated / "ensemble"), "--split", "test", "--output", str(tmp_path / "X")]) == 0
    text = error_of(["evaluate", tmp_path / "X", "--split", "val"], capsys)
    assert f"of the 8 samples of photos, val, {SEEN}" in text and str(stated / "cross_validation.json") in text


def test_an_ensemble_of_an_earlier_version_finds_the_runs_beside_it(folds, tmp_path, capsys, caplog, monkeypatch):
    older = tmp_path / "cv"
    shutil.copytree(folds, older)
    bundle = load_bundle(older / "ensemble")
    extra = {key: value for key, value in bundle.extra.items() if key not in ("members", "held_out")}
    save_bundle(older / "ensemble", bundle.model, bundle.classes, bundle.preprocessing, {}, extra)
    assert SEEN in error_of(["evaluate", older / "ensemble"], capsys)
    shutil.rmtree(older / "fold1")
    monkeypatch.setattr(logging.getLogger("vit"), "handlers", [caplog.handler])
    bundle = load_bundle(older / "ensemble")
    evaluation_source(compose_data([], bundle)["data"], bundle, "test")
    assert "the runs of the members" in caplog.text and "may contain their training samples" in caplog.text


def test_other_data_is_evaluated_and_equal_contents_are_named(folds, tmp_path, caplog, monkeypatch):
    other = write_photos(tmp_path / "other", {"cat": 3, "dog": 4}, size=(9, 9))
    shutil.copy(next((folds.parent / "photos" / "cat").iterdir()), other / "cat" / "copy.png")
    monkeypatch.setattr(logging.getLogger("vit"), "handlers", [caplog.handler])
    assert main(["evaluate", str(folds / "ensemble"), "data=folder", f"data.root={other}", "--split", "all"]) == 0
    assert "1 of the 8 samples of other has the same content as training samples" in caplog.text


def test_a_split_of_other_data_with_contents_of_the_members_is_named(folds, tmp_path, caplog, monkeypatch):
    other = write_photos(tmp_path / "other", {f"{split}/{name}": 3 for split in ("train", "val", "test")
                                              for name in ("cat", "dog")}, size=(9, 9))
    shutil.copy(next((folds.parent / "photos" / "cat").iterdir()), other / "test" / "cat" / "copy.png")
    monkeypatch.setattr(logging.getLogger("vit"), "handlers", [caplog.handler])
    assert main(["evaluate", str(folds / "ensemble"), "data=folder", f"data.root={other}"]) == 0
    assert "1 of the 7 samples of other, test, has the same content as training samples of the members" in caplog.text


def test_members_with_other_random_splits_are_refused_and_those_with_the_same_are_not(tmp_path):
    root = write_photos(tmp_path / "photos", {"cat": 20, "dog": 20})
    data = ["data=folder", f"data.root={root}"]
    runs = [vit.train([*data, *SHORT, f"seed={seed}", f"data.split_seed={split}", f"run_dir={tmp_path / str(number)}"])
            for number, (seed, split) in enumerate([(0, 0), (1, 0), (0, 7)])]
    first, *_, other = ({key: {entry.name for entry in rows} for key, rows in read_record(run.path).splits.items()}
                        for run in runs)
    assert first["test"] & (other["train"] | other["val"])
    extra = {"data": data}
    same = load_bundle(save_ensemble(tmp_path / "same", [run.path for run in runs[:2]], {}, extra))
    for split in ("val", "test"):
        assert set(evaluation_source(compose_data([], same)["data"], same, split).splits[split].names) == first[split]
    mixed = load_bundle(save_ensemble(tmp_path / "mixed", [runs[0].path, runs[2].path], {}, extra))
    count = len(first["test"] & (other["train"] | other["val"]))
    with pytest.raises(ConfigError, match=f"^{count} of the {len(first['test'])} samples of photos, test, {SEEN}"):
        evaluation_source(compose_data([], mixed)["data"], mixed, "test")
