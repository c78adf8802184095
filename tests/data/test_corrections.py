"""Corrections of labels from a CSV file: what changes, and what is refused."""

import os
import resource

import numpy as np
import pytest

from vit.data import DataError, Source, Split, folder, table
from vit.data.quality.corrections import apply_corrections, leave_out, write_corrections
from vit.data.source import separator_of


@pytest.fixture
def photos(class_folders):
    return folder(class_folders({"cat": 12, "dog": 12, "emu": 12}))


def corrections(path, *rows):
    path.write_text("name,label,new_label,quality\n" + "".join(f"{row},0.1\n" for row in rows))
    return path


def labels(source):
    return {name: source.classes[label] for split in source.splits.values()
            for name, label in zip(split.names, split.labels, strict=True)}


def test_only_rows_with_a_new_label_change_something(photos, tmp_path):
    file = corrections(tmp_path / "c.csv", "cat/003.png,cat,emu", "dog/001.png,dog,", "dog/002.png,dog,dog",
                       "emu/004.png,,dog")
    found = apply_corrections(photos, file)
    before, after = labels(photos), labels(found)
    assert {name for name in before if before[name] != after[name]} == {"cat/003.png", "emu/004.png"}
    assert after["cat/003.png"] == "emu" and after["emu/004.png"] == "dog"
    assert found.corrected == [("cat/003.png", "cat", "emu"), ("emu/004.png", "emu", "dog")]
    assert {key: list(split.names) for key, split in found.splits.items()} == {
        key: list(split.names) for key, split in photos.splits.items()}
    assert all(np.array_equal(found.splits[key].read(0), photos.splits[key].read(0)) for key in photos.splits)


@pytest.mark.parametrize(("row", "message"), [
    ("cat/3.png,cat,emu", "line 2: the data has no sample 'cat/3.png'; did you mean cat/"),
    ("cat/003.png,cat,emo", "line 2: 'emo' is not one of the 3 classes; did you mean emu"),
    ("cat/003.png,dog,emu", "had the label 'dog' when the file was written, but has 'cat'"),
])
def test_unknown_names_and_classes_are_errors(photos, tmp_path, row, message):
    with pytest.raises(DataError) as error:
        apply_corrections(photos, corrections(tmp_path / "c.csv", row))
    assert message in str(error.value)


def test_two_new_labels_of_one_sample_are_an_error(photos, tmp_path):
    twice = "cat/003.png,cat,emu", "dog/001.png,dog,emu", "cat/003.png,cat,emu"
    assert len(apply_corrections(photos, corrections(tmp_path / "c.csv", *twice)).corrected) == 2
    for new in ("cat", "dog"):
        file = corrections(tmp_path / "c.csv", "cat/003.png,cat,emu", f"cat/003.png,cat,{new}")
        with pytest.raises(DataError, match="line 3: cat/003.png has another new_label in line 2; remove one of"):
            apply_corrections(photos, file)


def test_class_names_are_read_once_for_all_rows(photos, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr("vit.data.quality.corrections.to_nfc", lambda name: seen.append(name) or name)
    file = corrections(tmp_path / "c.csv", *(f"cat/{i:03}.png,cat,emu" for i in range(10)))
    assert len(apply_corrections(photos, file).corrected) == 10 and seen.count("dog") == 1


def test_other_files_are_errors(photos, tmp_path):
    (tmp_path / "c.csv").write_text("name,label\ncat/003.png,cat\n")
    with pytest.raises(DataError, match="has no column 'new_label'"):
        apply_corrections(photos, tmp_path / "c.csv")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        apply_corrections(photos, tmp_path / "none.csv")


def test_an_edited_file_is_not_overwritten(tmp_path):
    write_corrections(tmp_path / "c.csv", [{"name": "a", "label": "b", "new_label": ""}])
    with pytest.raises(DataError, match="may have been edited"):
        write_corrections(tmp_path / "c.csv", [])
    assert (tmp_path / "c.csv").read_text().splitlines() == ["name,label,new_label", "a,b,"]


def test_a_full_disk_leaves_no_part_of_the_corrections(tmp_path):
    """Which would have to be removed before the next attempt, or be taken for the whole list."""
    _, hard = limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))  # bytes; Python ignores SIGXFSZ
    rows = [{"name": f"{i}", "label": "b", "new_label": ""} for i in range(9)]
    try:
        with pytest.raises(OSError, match=r"cannot write \S+c\.csv"):
            write_corrections(tmp_path / "c.csv", rows)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())
    write_corrections(tmp_path / "c.csv", rows)


def test_names_that_are_not_utf8_are_written_and_read(tmp_path):
    names = [os.fsdecode(b"cat/\xff.png"), "dog/a.png"]
    pixels = np.zeros((2, 1, 1), np.uint8)
    source = Source("toy", ["cat", "dog"], {"train": Split(np.arange(2), names, pixels.__getitem__, pixels)})
    write_corrections(tmp_path / "c.csv", [{"name": names[0], "label": "cat", "new_label": "cat"}])
    assert apply_corrections(source, tmp_path / "c.csv").corrected == []
    with pytest.raises(DataError, match="class 'cat' would have no training sample"):
        leave_out(source, tmp_path / "c.csv")


def test_several_labels_per_image(class_folders, tmp_path, monkeypatch):
    searched = []  # classes of which a separator is searched
    monkeypatch.setattr("vit.data.quality.corrections.separator_of",
                        lambda classes: searched.append(classes) or separator_of(classes))
    root = class_folders({"all": 20})
    rows = "".join(f"all/{i:03}.png,{('red', 'red|big', 'big')[i % 3]}\n" for i in range(20))
    (root / "labels.csv").write_text("file,label\n" + rows)
    source = table(root / "labels.csv", label_separator="|")
    rows = ("all/003.png,red,big | red", "all/002.png,big,|")
    found = apply_corrections(source, corrections(tmp_path / "c.csv", *rows))
    assert len(searched) == 1
    positions = {name: (key, i) for key, split in found.splits.items() for i, name in enumerate(split.names)}
    key, i = positions["all/003.png"]
    assert found.splits[key].labels[i].all() and not source.splits[key].labels[i].all()
    key, i = positions["all/002.png"]
    assert not found.splits[key].labels[i].any() and source.splits[key].labels[i].any()
    with pytest.raises(DataError, match="line 2: 'bug' is not one of the 2 classes; did you mean big"):
        apply_corrections(source, corrections(tmp_path / "d.csv", "all/003.png,red,red|bug"))


def test_listed_samples_are_left_out_of_training_and_validation_only(photos, tmp_path):
    names = {split: list(photos.splits[split].names) for split in ("train", "val", "test")}
    listed = [names["train"][0], names["train"][4], names["test"][0]]
    (tmp_path / "errors.csv").write_text("quality,name\n" + "".join(f"0.1,{name}\n" for name in listed))
    found = leave_out(photos, tmp_path / "errors.csv")
    assert list(found.splits["train"].names) == [name for name in names["train"] if name not in listed]
    assert [list(found.splits[key].names) for key in ("val", "test")] == [names["val"], names["test"]]
    assert sorted(found.left_out) == sorted((name, "train: in errors.csv") for name in listed[:2])
    remaining = [photos.splits["train"].labels[i] for i, name in enumerate(names["train"]) if name not in listed]
    assert found.splits["train"].labels.tolist() == remaining
    first = found.splits["train"]
    assert first.read(0) == photos.splits["train"].read(names["train"].index(first.names[0]))


def test_files_that_leave_too_much_out_are_errors(photos, tmp_path):
    file = tmp_path / "errors.csv"
    cats = [name for name in photos.splits["train"].names if name.startswith("cat/")]
    file.write_text("name\n" + "".join(f"{name}\n" for name in cats))
    with pytest.raises(DataError, match="class 'cat' would have no training sample; remove lines"):
        leave_out(photos, file)
    file.write_text("name\ncat/3.png\n")
    with pytest.raises(DataError, match="line 2: the data has no sample 'cat/3.png'; did you mean cat/"):
        leave_out(photos, file)
    file.write_text("file\ncat/003.png\n")
    with pytest.raises(DataError, match="has no column 'name'; data.leave_out needs name, and its columns are file"):
        leave_out(photos, file)
    with pytest.raises(FileNotFoundError, match="data.leave_out: the file .* does not exist"):
        leave_out(photos, tmp_path / "none.csv")
