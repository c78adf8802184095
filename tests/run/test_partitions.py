"""`data.fold` and `data.group` from the config to the splits, and their record in a run."""

import logging
import shutil

import numpy as np
import pytest
from PIL import Image

import vit
from tests.run.conftest import QUICK, SMALL, table, write_photos
from vit.data import DataError
from vit.run.config.composing import ConfigError, compose, resolve
from vit.run.parts.data_source import build_source
from vit.run.records.splits import read_record


@pytest.fixture
def patients(tmp_path):
    """20 patients with 2 images of each of two classes: cat/p03_1.png."""
    root = tmp_path / "photos"
    for number, name in enumerate(("cat", "dog")):
        (root / name).mkdir(parents=True)
        for patient in range(20):
            for shot in range(2):
                pixels = np.random.default_rng([number, patient, shot]).integers(0, 256, (16, 16, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / name / f"p{patient:02}_{shot}.png")
    return root


def source(*overrides):
    return build_source(resolve(compose(list(overrides)))["data"])


def patients_of(split):
    return {name.split("/")[-1][:3] for name in split.names}


def split_of_each(found):
    return {name: key for key, split in found.splits.items() for name in split.names}


def folder(root, *more):
    return source("data=folder", f"data.root={root}", *more)


GROUP = "data.group='(p[0-9]+)_'"


def test_each_sample_is_in_the_test_split_of_one_fold(patients):
    seen = []
    for k in range(1, 6):
        splits = folder(patients, f"data.fold={k}/5").splits
        assert sum(map(len, splits.values())) == 80 and len(splits["val"]) >= 4
        seen += list(splits["test"].names)
    assert sorted(seen) == sorted(str(path.relative_to(patients)) for path in patients.rglob("*.png"))


def test_groups_never_cross_splits(patients, caplog):
    caplog.set_level(logging.INFO, logger="vit")
    held_out = []
    for options in ([GROUP], *([GROUP, f"data.fold={k}/4"] for k in range(1, 5))):
        splits = folder(patients, *options).splits
        groups = [patients_of(split) for split in splits.values()]
        assert len(groups) == 3 and len(set().union(*groups)) == sum(map(len, groups)) == 20
        held_out += sorted(patients_of(splits["test"])) if len(options) == 2 else []
    assert sorted(held_out) == sorted(set(held_out)) and len(held_out) == 20
    assert "80 images in 20 groups" in caplog.text


def test_a_sample_that_is_added_moves_no_other(patients):
    before = split_of_each(folder(patients, GROUP, "data.fold=2/4"))
    shutil.copy(patients / "cat" / "p07_0.png", patients / "cat" / "p07_2.png")
    after = split_of_each(folder(patients, GROUP, "data.fold=2/4"))
    assert all(after[name] == key for name, key in before.items())
    assert after["cat/p07_2.png"] == after["cat/p07_1.png"]


@pytest.mark.parametrize(("group", "message"), [
    ("'(x[0-9]+)_'", "matches none of the file names of 80 images, such as 'cat/p00_0.png'"),
    ("'([.]png)'", "all 80 images are in one group, '.png'"),
    ("patient", "has no columns besides its images and labels; give a regular expression"),
    ("'(p'", "is not a regular expression"),
    ("'(?:p)'", "has no capture group"),
])
def test_invalid_groups_are_errors(patients, group, message):
    with pytest.raises(DataError) as error:
        folder(patients, f"data.group={group}")
    assert message in str(error.value)


def test_groups_of_one_and_images_without_a_group_are_stated(patients, caplog):
    folder(patients, "data.group='(.*)'")
    assert "each of the 80 images is a group of its own, so grouping changes nothing" in caplog.text
    folder(patients, "data.group='(p0[0-9])_'")
    assert "40 of 80 images have no group and are a group each, such as cat/p10_0.png" in caplog.text


def test_a_column_of_a_table(patients, tmp_path):
    rows = [f"photos/{path.relative_to(patients)},{path.parent.name},{int(path.stem[1:3]) // 2}\n"
            for path in patients.rglob("*.png")]
    (tmp_path / "labels.csv").write_text("file,label,site\n" + "".join(rows))
    options = ["data=table", f"data.path={tmp_path / 'labels.csv'}"]
    splits = source(*options, "data.group=site", "data.fold=1/3").splits
    sites = [{int(patient[1:]) // 2 for patient in patients_of(split)} for split in splits.values()]
    assert len(set().union(*sites)) == sum(map(len, sites)) == 10
    (tmp_path / "labels.csv").write_text("file,label,Site (ID)\n" + "".join(rows))
    named = source(*options, "data.group='Site (ID)'", "data.fold=1/3").splits
    assert {key: list(split.names) for key, split in named.items()} == {
        key: list(split.names) for key, split in splits.items()}
    with pytest.raises(DataError, match="matches none of the file names .*; a value with '[(]' that is not the name"):
        source(*options, "data.group='Site (Nr)'")
    (tmp_path / "labels.csv").write_text("file,label,site\n" + "".join(rows))
    with pytest.raises(DataError, match="has no column 'sites' for data.group; .*did you mean data.group=site"):
        source(*options, "data.group=sites")


def test_a_column_of_a_table_of_texts(tmp_path):
    rows = "".join(f"sentence number {i}\t{'yes' if i % 2 else 'no'}\t{i // 4}\n" for i in range(120))
    (tmp_path / "texts.tsv").write_text("text\tlabel\tauthor (ID)\n" + rows)
    options = ["data=text_table", f"data.path={tmp_path / 'texts.tsv'}", "data.fold=2/5", "data.group='author (ID)'"]
    splits = source(*options).splits
    authors = [set(split.groups) for split in splits.values()]
    assert set(splits) == {"train", "val", "test"} and len(set().union(*authors)) == sum(map(len, authors)) == 30


def test_splits_that_the_data_states_are_compared(patients, tmp_path):
    for split, first in (("train", "p0"), ("test", "p1")):
        for path in patients.rglob(f"{first}*.png"):
            (tmp_path / "stated" / split / path.parent.name).mkdir(parents=True, exist_ok=True)
            shutil.copy(path, tmp_path / "stated" / split / path.parent.name)
    splits = folder(tmp_path / "stated", GROUP).splits
    assert patients_of(splits["test"]) == {f"p{i}" for i in range(10, 20)}
    assert not patients_of(splits["train"]) & patients_of(splits["val"]) and len(splits["val"])
    folds = [folder(tmp_path / "stated", GROUP, f"data.fold={k}/2").splits["test"] for k in (1, 2)]
    assert sorted(patients_of(folds[0]) | patients_of(folds[1])) == [f"p0{i}" for i in range(10)]
    shutil.copy(patients / "cat" / "p00_0.png", tmp_path / "stated" / "test" / "cat" / "p00_9.png")
    with pytest.raises(DataError, match="1 group of data.group=.* such as 'p00' in train and test"):
        folder(tmp_path / "stated", GROUP)


def test_a_sample_without_a_group_may_be_in_two_splits_that_the_data_states(patients, tmp_path):
    rows = [f"photos/{path.relative_to(patients)},{path.parent.name},{split},{'site' if split == 'train' else ''}\n"
            for path in sorted(patients.rglob("*.png")) for split in ("train", "val")]
    rows += [row.replace("site", "") for row in rows[:1]]
    (tmp_path / "labels.csv").write_text("file,label,split,site\n" + "".join(rows))
    splits = source("data=table", f"data.path={tmp_path / 'labels.csv'}", "data.group=site").splits
    assert {key: len(split) for key, split in splits.items()} == {"train": 81, "val": 80}


def test_a_set_with_a_test_split_of_its_own():
    folds = [source("data=digits", f"data.fold={k}/5").splits for k in range(1, 6)]
    sizes = [{key: len(split) for key, split in splits.items()} for splits in folds]
    assert sum(each["test"] for each in sizes) == 1437  # digits holds out 360 of 1,797
    assert all(abs(each["val"] - each["train"] / 7) < 40 for each in sizes)
    with pytest.raises(DataError, match="spelled_numbers has no labelled samples"):
        build_source({**resolve(compose(["data=spelled_numbers"]))["data"], "fold": "1/5"})


def test_a_run_records_its_fold_and_compares_it(patients, tmp_path):
    overrides = ["data=folder", f"data.root={patients}", GROUP, *QUICK, *SMALL]
    run = vit.train([*overrides, "data.fold=1/4", f"run_dir={tmp_path / 'run'}"])
    record = read_record(run.path)
    expected = folder(patients, GROUP, "data.fold=1/4").splits
    assert {key: [entry.name for entry in rows] for key, rows in record.splits.items()} == {
        key: list(split.names) for key, split in expected.items()}
    assert record.data["fold"] == "1/4" and record.data["group"] == "(p[0-9]+)_"
    assert run.metrics["test/images"] == len(expected["test"]) == len(table(run.path / "predictions.csv"))
    (run.path / "metrics.json").unlink()
    with pytest.raises(ConfigError, match="changes data.fold from 1/4 to 2/4"):
        vit.train([f"resume={run.path}", "data.fold=2/4"])
    with pytest.raises(ConfigError, match="data.fold=2/4 would evaluate on training samples of .*, which has 1/4;"):
        record.check_splits({**record.data, "fold": "2/4"})
    with pytest.raises(ConfigError, match="data.fold=null would evaluate"):
        record.check_splits({**record.data, "fold": None})


def test_fractions_of_data_with_its_own_splits_are_a_warning(tmp_path, caplog):
    def warned(root, *more, record=None):
        caplog.clear()
        overrides = ["data=folder", f"data.root={root}", *more]
        build_source(resolve(compose(overrides))["data"], record, overrides)
        return [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]

    for split in ("train", "val", "test"):
        write_photos(tmp_path / "photos" / split, {"cat": 4, "dog": 4})
    fractions, seed = "data.fractions=[0.5,0.25,0.25]", "data.split_seed=3"
    assert warned(tmp_path / "photos", fractions, seed) == [
        "data.fractions=[0.5, 0.25, 0.25] and data.split_seed=3 have no effect: photos has its own splits train, val, "
        "test; leave them out"]
    assert "data.split_seed=3 has no effect" in warned(tmp_path / "photos", seed)[0]
    assert warned(tmp_path / "photos") == []
    assert warned(tmp_path / "photos" / "train", fractions, seed) == []
    shutil.rmtree(tmp_path / "photos" / "val")
    assert warned(tmp_path / "photos", fractions, seed) == []
    build_source(resolve(compose(["data=digits", seed]))["data"], None, [seed])
    build_source(resolve(compose(["data=spelled_numbers", seed]))["data"], None, [seed])
    build_source(resolve(compose(["data=text_table", seed]))["data"], None, [seed])
    assert not caplog.records


def test_the_command_is_warned_about_fractions_without_effect(tmp_path):
    for split in ("train", "val", "test"):
        write_photos(tmp_path / "photos" / split, {"cat": 8, "dog": 8})
    overrides = ["data=folder", f"data.root={tmp_path / 'photos'}", "data.fractions=[0.5,0.25,0.25]", *SMALL, *QUICK]
    run = vit.train([*overrides, "recipe.epochs=1", "calibrate=none", f"run_dir={tmp_path / 'run'}"])
    assert "data.fractions=[0.5, 0.25, 0.25] has no effect: photos has its own splits" in (
        run.path / "log.txt").read_text()
