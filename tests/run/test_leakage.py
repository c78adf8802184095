"""Samples of val and test that the initial weights were trained on: an error or a warning, and in the results."""

import dataclasses
import json
import logging
import re
import shutil
from types import SimpleNamespace

import pytest

import vit
from tests.run.conftest import SMALL, write_photos
from vit.bundle import MEMBER_PATHS, load_bundle
from vit.cli import main
from vit.run.config.composing import ConfigError
from vit.run.jobs import Job
from vit.run.multirun.cross_validation import cross_validate
from vit.run.parts.data_source import build_source
from vit.run.records.folder import RunFolder
from vit.run.records.leakage import check_leakage, find_leaked
from vit.run.records.members import Origin
from vit.run.records.splits import read_record, write_record

SHORT = [*SMALL, "recipe.epochs=1", "report=false", "logger=csv", "precision=32-true", "trainer.accelerator=cpu",
         "calibrate=none"]
OTHER = "data.split_seed=1"
TRAINED = "are samples that it was trained on"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = write_photos(tmp_path_factory.mktemp("data") / "photos", {"cat": 30, "dog": 30})
    return ["data=folder", f"data.root={root}", "data.fractions=[0.6,0.2,0.2]"]


@pytest.fixture(scope="module")
def first(data, tmp_path_factory):
    """A run of the splits of seed 0."""
    return vit.train([*data, *SHORT, f"run_dir={tmp_path_factory.mktemp('runs') / 'first'}"]).path


@pytest.fixture(scope="module")
def second(data, first, tmp_path_factory):
    """A run of the splits of seed 1 from those weights."""
    run = tmp_path_factory.mktemp("runs") / "second"
    return vit.train([*data, *SHORT, OTHER, f"init_from={first}", "on_leakage=warn", f"run_dir={run}"])


def names(run, split):
    return {entry.name for entry in read_record(run).splits[split]}


def test_another_split_of_the_same_samples_is_an_error(data, first, second, tmp_path):
    counts = {key: len(names(second.path, key) & names(first, "train")) for key in ("val", "test")}
    with pytest.raises(ConfigError, match=re.escape(
            f"init_from={first}: {counts['val']} of the {len(names(second.path, 'val'))} samples of val and "
            f"{counts['test']} of the {len(names(second.path, 'test'))} samples of test {TRAINED}")) as found:
        vit.train([*data, *SHORT, OTHER, f"init_from={first}", f"run_dir={tmp_path / 'run'}"])
    assert "use its splits with data.split_seed=0, or on_leakage=warn" in str(found.value)
    assert not (tmp_path / "run").exists()


def test_the_numbers_are_recorded_with_the_results(second, first, capsys, caplog):
    counts = {key: len(names(second.path, key) & names(first, "train")) for key in ("val", "test")}
    metrics = json.loads((second.path / "metrics.json").read_text())
    assert {key: metrics[f"{key}/leakage"] for key in counts} == counts and min(counts.values()) > 0
    assert f"{counts['test']} of the" in (second.path / "log.txt").read_text()
    with caplog.at_level(logging.WARNING):
        assert main(["evaluate", str(second.path)]) == 0
    assert f"were trained on {counts['test']} samples of test" in caplog.text + capsys.readouterr().err


@pytest.mark.parametrize("source", ["", "model", "checkpoints/last.ckpt"])
def test_the_same_splits_are_silent(data, first, tmp_path, source):
    run = vit.train([*data, *SHORT, f"init_from={first / source}", f"run_dir={tmp_path / 'run'}"])
    assert TRAINED not in (run.path / "log.txt").read_text()
    assert not any("leakage" in key for key in run.metrics)
    assert not (run.path / "splits" / "trained_earlier.tsv").exists()


def test_the_runs_before_the_first_one_count_too(data, first, second, tmp_path):
    """The weights of `second` were trained on the training samples of `first`, which may be gone."""
    moved = tmp_path / "second"
    shutil.copytree(second.path, moved)
    held = names(second.path, "test") | names(second.path, "val")
    third = vit.train([*data, *SHORT, OTHER, f"init_from={moved}", "on_leakage=warn", f"run_dir={tmp_path / 'third'}"])
    assert third.metrics["test/leakage"] == len(names(third.path, "test") & names(first, "train"))
    with pytest.raises(ConfigError, match=TRAINED):
        vit.train([*data, *SHORT, OTHER, f"init_from={moved}", f"run_dir={tmp_path / 'other'}"])
    earlier = {entry.name for entry in read_record(third.path).earlier}
    assert earlier == names(first, "train") - names(third.path, "train") and earlier <= held


def test_files_of_the_same_name_in_other_data_are_other_samples(first):
    """Names such as cat/000.png occur in many folders: of samples of earlier runs the contents are compared, too."""
    record = read_record(first)
    source, held = build_source(record.data), record.splits["val"][0]
    other = held._replace(fingerprint="0" * len(held.fingerprint))
    own = {**record.splits, "train": [*record.splits["train"], other]}

    def leaked(earlier, elsewhere=False, **changes):
        data = {**record.data, "root": "elsewhere"} if elsewhere else record.data
        return find_leaked(dataclasses.replace(record, earlier=earlier, **changes), source, data, "val")[1:]

    assert leaked([other]) == (0, 0) and leaked([held]) == (1, 1)
    assert leaked([held], splits=own, elsewhere=True) == (1, 1)  # whichever of the two it is
    assert leaked([], splits=own) == (1, 1)  # a file that was changed since then
    assert leaked([], splits=own, elsewhere=True) == (0, 0)


def test_labels_that_an_earlier_run_used_count_where_a_later_one_used_none(first):
    """Records of former versions have no fingerprints, so that the same sample has two entries."""
    record = read_record(first)
    source, held = build_source(record.data), record.splits["val"][0]
    pretrained = dataclasses.replace(record, splits={"train": [held]}, labelled=False)
    assert find_leaked(pretrained, source, record.data, "val")[1:] == (1, 0)
    for earlier in (held, held._replace(fingerprint="")):
        both = dataclasses.replace(pretrained, earlier=[earlier])
        assert find_leaked(both, source, record.data, "val")[1:] == (1, 1)


def test_a_record_without_labels_lists_samples_whose_labels_were_used_before(first, tmp_path):
    record = read_record(first)
    source, folder = build_source(record.data), RunFolder(tmp_path)
    used, unused = record.splits["train"][0], record.splits["train"][1]._replace(label="")
    for task, expected in (("classification", []), ("masked_image", [used])):
        (tmp_path / "splits" / "trained_earlier.tsv").unlink(missing_ok=True)
        write_record(folder, source, [], [used, unused], labelled=task == "classification")
        folder.write("config.yaml", {"data": record.data, "task": {"name": task}})
        assert read_record(tmp_path).earlier == expected


@pytest.mark.parametrize(("changes", "fix"), [
    ({"fractions": [0.5, 0.25, 0.25], "group": "([0-9])"}, "'data.fractions=[0.6,0.2,0.2]' data.group=null"),
    ({"split_seed": 1, "fold": "1/5"}, "data.split_seed=0 data.fold=null"),
])
def test_the_overrides_of_its_splits_are_those_of_a_command(first, changes, fix):
    data = read_record(first).data
    source = build_source({**data, "split_seed": 5})
    with pytest.raises(ConfigError, match=f"; {re.escape(f'use its splits with {fix}, or on_leakage=warn')}"):
        check_leakage("init_from", Origin(first, {}, "vision_transformer"), source, {"data": {**data, **changes}})


def test_equal_images_of_other_data_are_a_warning(data, first, tmp_path):
    root = tmp_path / "other"
    photos = next(each for each in data if each.startswith("data.root=")).partition("=")[2]
    for index, name in enumerate(sorted(names(first, "train"))):
        label = name.split("/")[0]
        (root / label).mkdir(parents=True, exist_ok=True)
        shutil.copy(f"{photos}/{name}", root / label / f"copy{index}.png")
    run = vit.train(["data=folder", f"data.root={root}", *SHORT, f"init_from={first}", f"run_dir={tmp_path / 'run'}"])
    assert run.metrics["test/leakage"] == len(names(run.path, "test"))


@pytest.mark.slow
def test_pre_training_without_labels_is_a_warning(data, tmp_path):
    mae = ["task=masked_image", "model=mae", *[each for each in SHORT if each not in ("model=micro", "calibrate=none")],
           "model.dim=32", "model.depth=1", "model.num_heads=2"]
    run = vit.train([*data, *mae, f"run_dir={tmp_path / 'mae'}"])
    fine = [*data, *[each for each in SHORT if each != "model=micro"], f"init_from={run.path}"]
    same = vit.train([*fine, f"run_dir={tmp_path / 'same'}"])
    assert "test/leakage" not in same.metrics
    other = vit.train([*fine, OTHER, f"run_dir={tmp_path / 'other'}"])
    assert other.metrics["test/leakage"] == len(names(other.path, "test") & names(run.path, "train"))


def test_a_model_without_its_run_is_a_warning_where_the_splits_differ(data, first, tmp_path):
    shutil.copytree(first / "model", tmp_path / "copy")
    assert "data" in load_bundle(tmp_path / "copy").extra
    start = [*data, *SHORT, f"init_from={tmp_path / 'copy'}"]
    other = vit.train([*start, OTHER, f"run_dir={tmp_path / 'other'}"])
    assert "its run is missing, and it was trained on photos with other splits" in (other.path / "log.txt").read_text()
    same = vit.train([*start, f"run_dir={tmp_path / 'same'}"])
    assert "its run is missing" not in (same.path / "log.txt").read_text()


def test_an_ensemble_without_the_runs_of_its_members_is_a_warning(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("vit"), "handlers", [caplog.handler])
    origin = Origin(tmp_path, {MEMBER_PATHS: [str(tmp_path / "missing")]}, "ensemble")
    source, config = SimpleNamespace(name="photos", splits={}), {"data": {}}
    assert check_leakage("init_from", origin, source, config) == ({}, [])
    assert f"init_from={tmp_path}: the runs of its members are missing, so val and test of photos" in caplog.text
    caplog.clear()
    assert check_leakage("init_from", origin._replace(path=tmp_path / "hub"), source, config) == ({}, [])
    assert not caplog.records  # a name instead of a path


def test_a_teacher_of_another_split_is_an_error(data, first, tmp_path):
    distill = [*data, *SHORT, OTHER, "distill=soft", f"distill.teacher={first}"]
    with pytest.raises(ConfigError, match=f"distill.teacher={first}: .* samples of test {TRAINED}"):
        vit.train([*distill, f"run_dir={tmp_path / 'run'}"])
    student = vit.train([*distill, "on_leakage=warn", f"run_dir={tmp_path / 'student'}"])
    assert student.metrics["test/leakage"] == len(names(student.path, "test") & names(first, "train"))
    assert names(first, "train") & names(student.path, "test") <= {e.name for e in read_record(student.path).earlier}
    same = vit.train([*[each for each in distill if each != OTHER], f"run_dir={tmp_path / 'same'}"])
    assert "test/leakage" not in same.metrics and TRAINED not in (same.path / "log.txt").read_text()


def test_a_teacher_may_have_seen_val_and_of_two_models_the_larger_number_is_recorded(first):
    record = read_record(first)
    source, config = build_source(record.data), {"data": record.data}
    splits = {"train": source.splits["val"], "val": source.splits["train"], "test": source.splits["test"]}
    job = SimpleNamespace(source=dataclasses.replace(source, splits=splits), split="test", earlier=[])
    for earlier, count in (({}, 34), ({"val": 33}, 34), ({"val": 35}, 35)):
        job.config = {**config, "leakage": earlier}
        Job.check_leakage(job, "distill.teacher", str(first), {}, "vit")
        assert job.config["leakage"] == {"val": count}
    with pytest.raises(ConfigError, match=f"init_from={first}: 34 of the 34 samples of val {TRAINED}"):
        Job.check_leakage(job, "init_from", str(first), {}, "vit")


def test_the_ensemble_of_a_cross_validation_as_teacher_has_seen_the_test_samples(data, tmp_path):
    base = [each for each in data if "fractions" not in each]
    folds = cross_validate([*base, *SHORT, "folds=2", f"run_dir={tmp_path / 'cv'}"]).path
    distill = [*base, *SHORT, "distill=soft", f"distill.teacher={folds / 'ensemble'}"]
    with pytest.raises(ConfigError, match=rf"(\d+) of the \1 samples of test {TRAINED}.*; use other data"):
        vit.train([*distill, f"run_dir={tmp_path / 'run'}"])


def test_a_teacher_that_has_only_seen_val_is_a_warning(tmp_path):
    """Such as an ensemble of folds of data with a test split of its own."""
    root = write_photos(tmp_path / "photos", {f"{split}/{name}": count for name in ("cat", "dog")
                                              for split, count in (("train", 20), ("val", 4), ("test", 5))})
    base = ["data=folder", f"data.root={root}", *SHORT]
    folds = cross_validate([*base, "folds=2", f"run_dir={tmp_path / 'cv'}"]).path
    run = vit.train([*base, "distill=soft", f"distill.teacher={folds / 'ensemble'}", f"run_dir={tmp_path / 'run'}"])
    seen = set.union(*(names(folds / f"fold{k}", "train") for k in (1, 2)))
    assert run.metrics["val/leakage"] == len(seen & names(run.path, "val")) and "test/leakage" not in run.metrics
