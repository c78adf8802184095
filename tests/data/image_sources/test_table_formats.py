"""Formats of tables: separators, encodings, Excel, arrays, missing files; ambiguity is an error."""

import builtins
import csv
import json
import sys
import unicodedata
import zipfile

import numpy as np
import openpyxl
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from vit.data import BadImage, DataError, Preprocessing, image_text, table
from vit.data.formats.spreadsheets import spreadsheet_rows
from vit.data.image_sources.coco_label_studio import annotation_format
from vit.data.image_sources.file_names import served_files
from vit.data.image_sources.parquet_splits import parquet_splits

ROWS = [[f"images/{i:03}.png", "cat, big" if i % 2 else "dog"] for i in range(10)]
ALL = {"fractions": (1, 0, 0)}


@pytest.fixture
def root(class_folders):
    return class_folders({"images": 10})


def text(rows, sign=",", header=("path", "label")):
    return "".join(sign.join(f'"{c}"' if sign in c else c for c in row) + "\r\n" for row in [header, *rows])


def labels(source):
    return {name: label for split in source.split_lists().values() for name, label in split}


@pytest.mark.parametrize("sign", [",", ";", "\t"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_separators_and_encodings(root, sign, encoding):
    (root / "t.csv").write_bytes(text(ROWS, sign).encode(encoding))
    assert labels(table(root / "t.csv", **ALL)) == dict(ROWS)


def test_a_semicolon_in_a_comma_separated_table_is_text(root):
    rows = [[name, "a;b" if label == "dog" else "c;d"] for name, label in ROWS]
    (root / "t.csv").write_text(text(rows))
    assert labels(table(root / "t.csv", **ALL)) == dict(rows)


def test_latin_1_is_an_error_with_its_line(root):
    (root / "t.csv").write_bytes(text([*ROWS, ["images/000.png", "é"]]).encode("latin-1"))
    with pytest.raises(DataError, match="line 12: byte 16 is not UTF-8; save the file as UTF-8"):
        table(root / "t.csv")


def test_windows_and_absolute_paths(root):
    rows = [[name.replace("/", "\\") if i % 2 else str(root / name), label] for i, (name, label) in enumerate(ROWS)]
    (root / "t.csv").write_text(text(rows))
    source = table(root / "t.csv", **ALL)
    assert all(Preprocessing(size=8).image(source.splits["train"].read(i)) is not None for i in range(10))
    assert source.splits["train"].names[1] == "images/001.png"


@pytest.mark.parametrize("renamed", [str.upper, lambda name: name.removesuffix(".png"), "{} ".format,
                                     lambda name: unicodedata.normalize("NFC", name)])
def test_files_with_similar_names_are_found(root, caplog, renamed):
    folder = unicodedata.normalize("NFD", "é")
    (root / "images").rename(root / folder)
    rows = [[f"{folder}/{i:03}.png", label] for i, (_, label) in enumerate(ROWS)]
    (root / "t.csv").write_text(text([[renamed(name), label] for name, label in rows]), encoding="utf-8")
    assert labels(table(root / "t.csv", **ALL)) == dict(rows)
    assert "10 of 10 files differ from the names in the table" in caplog.text


@pytest.mark.parametrize("stale", ["/content/drive/", "C:\\\\Users\\\\me\\\\", "gs://bucket/", "data/", "./data/"])
def test_folders_of_another_computer_are_left_out_of_the_names(root, caplog, stale):
    rows = [[stale.replace("\\\\", "\\") + name, label] for name, label in ROWS]
    (root / "t.csv").write_text(text(rows))
    assert labels(table(root / "t.csv", **ALL)) == dict(ROWS)
    assert "which is not there; the files are read from" in caplog.text
    inside = {name.removeprefix("images/"): label for name, label in ROWS}
    assert labels(table(root / "t.csv", root=root / "images", **ALL)) == inside


def test_only_folders_of_all_names_are_left_out(root):
    (root / "t.csv").write_text(text([[f"{'ab'[i % 2]}/{name}", label] for i, (name, label) in enumerate(ROWS)]))
    with pytest.raises(FileNotFoundError, match="10 of 10 files do not exist"):
        table(root / "t.csv")
    (root / "t.csv").write_text(text([["/old/" + name, label] for name, label in [*ROWS, ["images/x.png", "dog"]]]))
    with pytest.raises(FileNotFoundError, match="1 of 11 files does not exist under .*, first 'images/x.png'"):
        table(root / "t.csv")


@pytest.mark.parametrize("stale", ["/old/", "C:\\old\\"])
def test_folders_of_another_computer_are_found_although_the_first_file_is_missing(root, stale):
    rows = [[stale + name, label] for name, label in [["images/x.png", "dog"], *ROWS]]
    (root / "t.csv").write_text(text(rows))
    with pytest.raises(FileNotFoundError, match="1 of 11 files does not exist under .*, first 'images/x.png'"):
        table(root / "t.csv")
    assert labels(table(root / "t.csv", on_bad_sample="skip", **ALL)) == dict(ROWS)


def test_a_name_of_two_similar_files_is_missing(root):
    (root / "images" / "003.JPG").write_bytes((root / "images" / "003.png").read_bytes())
    (root / "t.csv").write_text(text([[name.removesuffix(".png"), label] for name, label in ROWS]))
    with pytest.raises(FileNotFoundError, match="1 of 10 files does not exist under .*, first 'images/003'"):
        table(root / "t.csv")


def test_parquet_structs_with_paths_in_place_of_bytes(root):
    contents = [(root / name).read_bytes() for name, _ in ROWS]
    images = [{"bytes": contents[i] if i % 3 == 0 else None, "path": str(root / name) if i % 3 == 1 else name}
              for i, (name, _) in enumerate(ROWS)]
    columns = {"image": images, "label": [label for _, label in ROWS]}
    pyarrow.parquet.write_table(pyarrow.table(columns), root / "train.parquet")
    train = table(root / "train.parquet", **ALL).splits["train"]
    assert [train.read(i) for i in range(10)] == contents == [
        parquet_splits(root, None)[1]["train"].read(i) for i in range(10)]


def test_long_cells(root):
    with (root / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["path", "label", "thumbnail"], *([*row, "x" * 200_000] for row in ROWS)])
    assert len(labels(table(root / "t.csv", **ALL))) == 10


def test_a_column_of_splits_that_is_not_used_is_reported(root, caplog):
    rows = [[*row, ("Train", "valid", "TEST")[i % 3], "train"] for i, row in enumerate(ROWS)]
    (root / "t.csv").write_text(text(rows, header=("path", "label", "set", "vehicle")))
    table(root / "t.csv")
    assert "the column 'set' states splits (Train, valid, TEST) and is not used; data.split=set" in caplog.text
    assert "vehicle" not in caplog.text
    caplog.clear()
    assert len(table(root / "t.csv", split="set").splits["test"]) == 3 and not caplog.text


def test_a_column_of_names_like_those_of_splits_is_reported(root, caplog):
    rows = [[*row, ("Training", "PublicTest", "PrivateTest")[i % 3], f"train_{i}", ("train set", "bus")[i % 2]]
            for i, row in enumerate(ROWS)]
    (root / "t.csv").write_text(text(rows, header=("path", "label", "Usage", "key", "vehicle")))
    table(root / "t.csv")
    assert "column 'Usage' seems to state splits (Training, PublicTest, PrivateTest) and is not used" in caplog.text
    assert "key" not in caplog.text and "vehicle" not in caplog.text


def test_a_column_with_the_names_of_numeric_labels_is_reported(root, caplog):
    rows = [[name, i % 3, ("bird", "cat", "dog")[i % 3], f"text {i}"] for i, (name, _) in enumerate(ROWS)]
    lines = [",".join(map(str, row)) for row in [("path", "label", "label_name", "note"), *rows]]
    (root / "t.csv").write_text("\n".join(lines))
    assert table(root / "t.csv", **ALL).classes == ["0", "1", "2"]
    assert "column 'label_name', which has a name for each, such as 'bird', is not read; data.label=label_name" in (
        caplog.text)
    caplog.clear()
    assert table(root / "t.csv", label="label_name", **ALL).classes == ["bird", "cat", "dog"]
    table(root / "t.csv", classes=["a", "b", "c"], **ALL)
    assert not caplog.text


@pytest.mark.parametrize("form", ["rows", "names"])
def test_json_objects_of_rows(root, form):
    rows = {str(i): {"path": name, "label": label} for i, (name, label) in enumerate(ROWS)}
    named = {name: {"label": label, "note": "x"} for name, label in ROWS}
    (root / "t.json").write_text(json.dumps(rows if form == "rows" else named))
    assert table(root / "t.json", **ALL).classes == ["cat, big", "dog"]
    assert len(labels(table(root / "t.json", **ALL))) == 10


def test_addresses_of_images_are_refused_as_such(root):
    (root / "t.csv").write_text("image,label\n" + "".join(f"https://a.org/{i}.png?w=1,{i % 2}\n" for i in range(4)))
    with pytest.raises(DataError, match=r"the image is 'https://a.org/0.png\?w=1', but images are not downloaded"):
        table(root / "t.csv")


@pytest.mark.parametrize(("content", "message"), [
    ("path|label\n1.png|cat\n", r"one column name, 'path\|label'; separate the columns by commas"),
    ("sep=;\npath;label\n1.png;cat\n", "first line is 'sep=', which only Excel reads; remove this line"),
])
def test_other_separators_are_named(tmp_path, content, message):
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(DataError, match=message):
        table(tmp_path / "t.csv")


def test_arrays_in_a_folder_are_named(tmp_path):
    (tmp_path / "set.npz").write_bytes(b"")
    with pytest.raises(DataError, match=r"arrays are read by data.path=.*set.npz"):
        table(tmp_path)


def test_shards_that_no_data_set_reads_are_not_recommended(tmp_path, caplog):
    (tmp_path / "train-00000-of-00002.tfrecord").write_bytes(bytes(9))
    with pytest.raises(DataError, match="is not a table"):
        table(tmp_path / "train-00000-of-00002.tfrecord")
    assert "data=hub" not in caplog.text


@pytest.mark.parametrize(("name", "others"), [
    ("train.csv", ["test.csv", "val.csv"]), ("train/_classes.csv", ["test/_classes.csv", "valid/_classes.csv"]),
    ("instances_train2017.csv", ["instances_val2017.csv"]), ("Training_set.csv", ["Testing_set.csv"])])
def test_tables_of_other_splits_beside_it_are_reported(root, caplog, name, others):
    for each in (name, *others, "train_test.csv", "test_a.csv"):
        (root / each).parent.mkdir(exist_ok=True)
        (root / each).write_text(text(ROWS))
    table(root / name, root=root, **ALL)
    assert ", ".join(str(file) for file in others) in caplog.text.replace(f"{root.name}/", "")
    assert f"vit evaluate RUN data.path={root / others[0]} --split all" in caplog.text
    assert f"data.path={root} reads all of them" in caplog.text
    caplog.clear()
    for each in others:
        table(root / each, root=root, **ALL)
        (root / each).write_text("path\nimages/000.png\n")  # without labels, as in competitions
    table(root / name, root=root, **ALL)
    assert not caplog.text


def splits(source):
    return {key: dict(rows) for key, rows in source.split_lists().items()}


@pytest.mark.parametrize("names", [
    ("train.csv", "test.csv", "val.csv"), ("Training_set.csv", "Testing_set.csv", "Validation_set.csv"),
    ("train/_classes.csv", "test/_classes.csv", "valid/_classes.csv"),
    ("train/train.csv", "test/test.csv", "val/val.csv"),
    ("instances_train2017.json", "instances_test2017.json", "instances_val2017.json")])
def test_a_folder_with_a_table_of_each_split(root, names):
    parts = dict(zip(("train", "test", "val"), (ROWS[:6], ROWS[6:8], ROWS[8:]), strict=True))
    for name, rows in zip(names, parts.values(), strict=True):
        (root / name).parent.mkdir(exist_ok=True)
        content = json.dumps([dict(zip(("path", "label"), row, strict=True)) for row in rows])
        (root / name).write_text(content if name.endswith(".json") else text(rows))
    (root / "sample_submission.csv").write_text("path,label\n")
    assert splits(table(root, root=root)) == {key: dict(rows) for key, rows in parts.items()}


def test_labels_of_several_tables_are_those_of_train(root, caplog):
    (root / "train.csv").write_text(text([[path, "012"[i % 3]] for i, (path, _) in enumerate(ROWS[:6])]))
    (root / "test.csv").write_text(text([[path, "2"] for path, _ in ROWS[6:8]]))
    source = table(root, classes=["a", "b", "c"])
    assert set(splits(source)["test"].values()) == {"c"} and "val" in source.splits and source.name == root.name
    (root / "classes.json").write_text('["x", "y", "z"]')
    assert set(splits(table(root))["test"].values()) == {"z"}
    (root / "classes.json").unlink()
    assert set(splits(table(root))["test"].values()) == {"2"}
    (root / "test.csv").write_text(text([[ROWS[6][0], "2"], [ROWS[7][0], "7"]]))
    with pytest.raises(DataError, match="test.csv row 1: class '7' is not among the 3 known classes"):
        table(root)
    (root / "test.csv").write_text(text([[path] for path, _ in ROWS[6:8]], header=["path"]))
    assert set(table(root).splits) == {"train", "val"}
    assert "test.csv: has no column 'label' of labels" in caplog.text
    with pytest.raises(DataError, match="test.csv: is read as the table of test, but its column 'split' has"):
        (root / "test.csv").write_text(text([[ROWS[6][0], "2", "train"]], header=["path", "label", "split"]))
        table(root)
    (root / "test.csv").write_text(text([[ROWS[6][0], "2", "5"]], header=["path", "label", "split"]))
    assert len(table(root).splits["test"]) == 1


def test_a_table_whose_labels_are_withheld_is_left_out(root, caplog):
    """As data=hub leaves it out; its label -1 was an error."""
    (root / "train.csv").write_text(text([[path, "012"[i % 3]] for i, (path, _) in enumerate(ROWS[:6])]))
    (root / "test.csv").write_text(text([[path, "-1"] for path, _ in ROWS[6:8]]))
    for classes in (None, ["a", "b", "c"]):
        source = table(root, classes=classes)
        assert set(source.splits) == {"train", "val"}
        assert source.left_out == [("test.csv", "all of its 2 labels are -1, so they are withheld")]
    assert "test.csv: all of its 2 labels are -1, so they are withheld, and the table is left out" in caplog.text
    (root / "train.csv").write_text(text([[path, ["1", "-1"][i % 2]] for i, (path, _) in enumerate(ROWS[:6])]))
    assert set(splits(table(root))["test"].values()) == {"-1"}  # here it is a class


def test_a_key_of_objects_states_the_labels_of_all_tables(root):
    """The table of test was left out as one without labels."""
    for name, rows in (("train", ROWS[:6]), ("test", ROWS[6:])):
        content = [{"path": path, "info": {"label": label}} for path, label in rows]
        (root / f"{name}.json").write_text(json.dumps(content))
    assert splits(table(root, label="info.label"))["test"] == dict(ROWS[6:])


def test_the_images_of_a_split_in_a_folder_of_its_name(class_folders):
    root = class_folders({"train2017": 6, "val_images": 3})
    for key, count in (("train", 6), ("val", 3)):
        (root / f"{key}.csv").write_text(text([[f"{i:03}", "ab"[i % 2]] for i in range(count)]))
    found = table(root)
    assert splits(found)["val"] == {f"val_images/{i:03}.png": "ab"[i % 2] for i in range(3)}
    assert found.splits["val"].read(1) == (root / "val_images" / "001.png").read_bytes()
    assert splits(found)["train"] == {f"train2017/{i:03}.png": "ab"[i % 2] for i in range(6)}


def test_the_images_of_train_in_a_folder_of_no_split(class_folders):
    """Places365: data_256 beside val_256, and names that begin with a slash."""
    root = class_folders({"data_256/a/x": 3, "data_256/b": 3, "other/b": 3, "val_256": 2})
    files = ["/a/x/000.png", "/a/x/001.png", "/b/000.png", "/b/001.png"]
    (root / "set_train_standard.txt").write_text("".join(f"{file} {file.count('a')}\n" for file in files))
    (root / "set_val.txt").write_text("000.png 1\n001.png 0\n")
    found = table(root, image=0, label=1, train="set_train_standard.txt", val="set_val.txt")
    assert splits(found)["train"] == {f"data_256{file}": str(file.count("a")) for file in files}
    assert splits(found)["val"] == {"val_256/000.png": "1", "val_256/001.png": "0"}
    (root / "set_train_standard.txt").write_text("/a/x/000.png 0\n/c/000.png 1\n")
    with pytest.raises(FileNotFoundError, match="2 of 2 files do not exist"):
        table(root, image=0, label=1, train="set_train_standard.txt", val="set_val.txt")


def test_the_folder_of_a_split_is_found_although_the_first_file_is_missing(class_folders):
    root = class_folders({"train_images": 6})
    (root / "train.csv").write_text(text([["gone", "a"], *([f"{i:03}", "ab"[i % 2]] for i in range(6))]))
    found = table(root, on_bad_sample="skip", **ALL)
    assert splits(found)["train"] == {f"train_images/{i:03}.png": "ab"[i % 2] for i in range(6)}
    assert found.left_out == [("train_images/gone", "the file does not exist")]


def test_images_of_texts_in_a_folder_with_a_table_of_each_split(class_folders):
    root = class_folders({"train": 8, "test": 3})
    for key, count in (("train", 8), ("test", 3)):
        rows = [[f"{i:03}.png", f"word {i}"] for i in range(count)]
        (root / key / "gt.csv").write_text(text(rows, header=("file", "text")))
    found = image_text(root, fractions=(1, 0, 0))
    assert splits(found) == {key: {f"{key}/{i:03}.png": f"word {i}" for i in range(count)}
                             for key, count in (("train", 8), ("test", 3))}
    assert found.splits["test"].image(2) == (root / "test" / "002.png").read_bytes()
    assert set(image_text(root, test="train/gt.csv").splits) == {"train", "val", "test"}


def test_tables_of_a_folder_by_their_names(root, caplog):
    for name, rows in (("a.csv", ROWS[:6]), ("b.csv", ROWS[6:])):
        (root / name).write_text(text(rows))
    with pytest.raises(DataError, match="has no table of the split train, such as train.csv; its tables are a.csv, b"):
        table(root)
    assert set(splits(table(root, train="a.csv", test="b.csv"))["test"]) == {path for path, _ in ROWS[6:]}
    with pytest.raises(FileNotFoundError, match="data.test: the table .*c.csv does not exist"):
        table(root, train="a.csv", test="c.csv")
    table(root / "a.csv", test="b.csv", split=None)
    assert "data.test=b.csv has no effect, because" in caplog.text
    (root / "b.csv").unlink()
    with pytest.raises(DataError, match="set data.path=.*a.csv, if it is the table of all samples"):
        table(root)
    for name in ("train_a.csv", "train_b.csv"):
        (root / name).write_text(text(ROWS))
    with pytest.raises(DataError, match="train_a.csv and train_b.csv may be the table of train; select one of"):
        table(root)


def test_encoded_images_in_tables_of_splits_have_different_names(root):
    for key, rows in (("train", ROWS[:6]), ("test", ROWS[6:])):
        (root / key).mkdir()
        columns = {"image": [(root / path).read_bytes() for path, _ in rows], "label": [label for _, label in rows]}
        pyarrow.parquet.write_table(pyarrow.table(columns), root / key / "data.parquet")
    assert list(splits(table(root))["test"]) == [f"test/data.parquet row {i}" for i in range(4)]


def test_lists_of_names_without_extensions_and_with_comments(root, caplog):
    rows = [f"{path.removesuffix('.png')} {1 + i % 2} 1" for i, (path, _) in enumerate(ROWS)]
    (root / "list.txt").write_text("\n".join(["#Image CLASS-ID SPECIES", "# 1:2 class ids, of 1 species", *rows]))
    with pytest.raises(DataError, match="contains 'images/000' instead of column names; .*data.image=0 data.label=1$"):
        table(root / "list.txt")
    found = table(root / "list.txt", image=0, label=1, **ALL)
    assert labels(found) == {path: "12"[i % 2] for i, (path, _) in enumerate(ROWS)}
    with pytest.raises(DataError, match="label 2 is out of range for 2 classes .*; they count from 1: subtract 1, or"):
        table(root / "list.txt", image=0, label=1, classes=["a", "b"])
    assert not caplog.text.count("are not read")
    rows = [f"{path} {('A300 B4', 'DC 3')[i % 2]}" for i, (path, _) in enumerate(ROWS)]
    (root / "list.txt").write_text("\n".join(rows))
    assert table(root / "list.txt", image=0, label=1).classes == ["A300", "DC"]
    assert "the fields behind column 1, such as 'B4', are not read; if they belong to the names of the" in caplog.text
    (root / "list.txt").write_text("\n".join(f"{path} Boeing{' ' * (i % 2)}747" for i, (path, _) in enumerate(ROWS)))
    with pytest.raises(DataError, match="white space separates line 1 into 2 fields, but line 2 into another number"):
        table(root / "list.txt", image=0, label=1)


def test_the_classes_of_a_list_of_images_alone_are_their_folders(class_folders, caplog):
    root = class_folders({"images/cat": 6, "images/dog": 6})
    for key, numbers in (("train", range(4)), ("test", range(4, 6))):
        (root / f"{key}.txt").write_text("\n".join(f"{kind}/{i:03}" for i in numbers for kind in ("cat", "dog")))
    with pytest.raises(DataError, match="'cat/000' instead of a column name; .* the classes, set data.image=0"):
        table(root, root=root / "images")
    found = table(root, root=root / "images", image=0, fractions=(1, 0, 0))
    assert splits(found) == {key: {f"{kind}/{i:03}.png": kind for i in numbers for kind in ("cat", "dog")}
                             for key, numbers in (("train", range(4)), ("test", range(4, 6)))}
    assert "so the folders in the names of the images are the classes, such as 'cat'" in caplog.text
    (root / "test.txt").write_text("owl/000\n")
    with pytest.raises(DataError, match="class 'owl' is not among the 2 known classes"):
        table(root, root=root / "images", image=0)
    (root / "t.txt").write_text("train/000\ntest/000\n")
    with pytest.raises(DataError, match="no label column found among 0"):
        table(root / "t.txt", image=0)


def test_classes_in_folders_of_different_depths_are_their_whole_paths(class_folders, caplog):
    names = ["a/abbey", "c/church/outdoor", "m/market/outdoor"]  # as in SUN397
    root = class_folders({f"SUN397/{name}": 4 for name in names})
    (root / "Training_01.txt").write_text("\n".join(f"/{name}/{i:03}.png" for name in names for i in range(3)))
    (root / "Testing_01.txt").write_text("\n".join(f"/{name}/003.png" for name in names[1:]))
    found = table(root, root=root / "SUN397", image=0, fractions=(1, 0, 0))
    assert found.classes == names and "are the classes, such as 'c/church/outdoor'" in caplog.text
    assert splits(found) == {key: {f"{name}/{i:03}.png": name for name in each for i in numbers}
                             for key, each, numbers in (("train", names, range(3)), ("test", names[1:], [3]))}
    (root / "t.txt").write_text("\n".join(f"train/{name}/{i:03}.png" for name in names for i in range(3)))
    assert table(root / "t.txt", root=root / "SUN397", image=0).classes == names
    (root / "t.txt").write_text("\n".join(f"{name}/{i:03}.png" for name in names for i in range(3)))
    with pytest.raises(DataError, match="class 'outdoor' is not among the 2 known classes"):
        table(root / "t.txt", root=root / "SUN397", image=0, classes=["abbey", "a/abbey"])


def test_keys_of_objects_are_columns(root):
    rows = [{"data": {"file": path, "bytes": (root / path).read_bytes()}, "kind": {"name": kind}}
            for path, kind in ROWS]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), root / "t.parquet")
    for row in rows:
        del row["data"]["bytes"]
    (root / "t.json").write_text(json.dumps(rows))
    for name in ("t.json", "t.parquet"):
        assert labels(table(root / name, image="data.file", label="kind.name", **ALL)) == dict(ROWS)
    train = table(root / "t.parquet", image="data.bytes", label="kind.name", **ALL).splits["train"]
    assert train.read(3) == (root / ROWS[3][0]).read_bytes()
    for name in ("t.json", "t.parquet"):
        with pytest.raises(DataError, match="has no column 'data.path' for data.image"):
            table(root / name, image="data.path", label="kind.name")


@pytest.mark.parametrize("split", ["tables", "column"])
def test_equal_labels_of_a_split_may_be_placeholders(class_folders, caplog, split):
    root, names = class_folders({"images": 24}), [f"images/{i:03}.png" for i in range(24)]
    train = [[name, "ab"[i % 2]] for i, name in enumerate(names[:12])]
    test = [[name, "a"] for name in names[12:]]
    if split == "tables":
        (root / "train.csv").write_text(text(train))
        (root / "test.csv").write_text(text(test))
        path = root
    else:
        rows = [[*row, key] for key, part in (("train", train), ("test", test)) for row in part]
        path = root / "t.csv"
        path.write_text(text(rows, header=("path", "label", "split")))
    assert len(table(path).splits["test"]) == 12
    assert "all of the 12 labels of test are 'a', and the data has 2 classes; if this is a placeholder" in caplog.text
    caplog.clear()
    for file in root.glob("*.csv"):
        file.write_text(file.read_text().replace("images/023.png,a", "images/023.png,b"))
    table(path)
    assert not caplog.text


@pytest.mark.parametrize(("name", "content"), [
    ("labels.txt", "a\nb\nc\n"), ("class_names.txt", "a\nb\nc"), ("obj.names", "a\nb\nc"),
    ("labels.json", '["a","b","c"]'), ("data.yaml", "nc: 3\nnames: [a, b, c]\n"),
    ("dataset.yml", "names:\n  0: a\n  1: b\n  2: c\n")])
def test_other_files_of_class_names_that_are_not_read_are_reported(root, caplog, name, content):
    (root / "t.csv").write_text(text([[path, "012"[i % 3]] for i, (path, _) in enumerate(ROWS)]))
    (root / name).write_text(content)
    table(root / "t.csv", **ALL)
    assert f"its labels are numbers, and {name} beside it, which names them, is not read" in caplog.text


@pytest.mark.parametrize(("name", "content"), [
    ("labels.txt", "0\n" * 10), ("notes.txt", "a\nb\nc\n"), ("labels.txt", "a\nb\n"), ("data.yaml", "epochs: 3\n"),
    ("data.yaml", "[a, b, c]"), ("data.yaml", "names: 3")])
def test_other_files_beside_a_table_are_not_class_names(root, caplog, name, content):
    (root / "t.csv").write_text(text([[path, "012"[i % 3]] for i, (path, _) in enumerate(ROWS)]))
    (root / name).write_text(content)
    table(root / "t.csv", **ALL)
    assert not caplog.text


@pytest.mark.parametrize("content", [{"0": "a", "1": "b", "2": "c"}, {"a": 0, "b": 1, "c": 2}])
def test_a_map_of_class_names_that_is_not_read_is_reported(root, caplog, content):
    (root / "t.csv").write_text(text([[path, "012"[i % 3]] for i, (path, _) in enumerate(ROWS)]))
    (root / "label_map.json").write_text(json.dumps(content))
    table(root / "t.csv", **ALL)
    assert "its labels are numbers, and label_map.json beside it, which names them, is not read" in caplog.text
    caplog.clear()
    (root / "label_map.json").write_text('{"0": "a", "1": "b"}')
    (root / "other.json").write_text("[1]")
    table(root / "t.csv", **ALL)
    assert not caplog.text


def test_a_column_of_different_values_is_not_recommended_as_labels(root):
    (root / "images.txt").write_text("\n".join(f"{i + 1} {path}" for i, (path, _) in enumerate(ROWS)))
    with pytest.raises(DataError, match="add the labels of the images, and a header line: in no other column does a v"):
        table(root / "images.txt")


def test_rows_with_the_same_file_are_reported(root, caplog):
    rows = [*ROWS, [ROWS[0][0], ROWS[1][1]], [ROWS[1][0], ROWS[1][1]]]
    (root / "t.csv").write_text(text(rows))
    table(root / "t.csv", **ALL)
    assert ("2 of 12 rows have the file of an earlier row, some with another label, such as 'images/000.png' in rows 0 "
            "and 10") in caplog.text
    caplog.clear()
    (root / "t.csv").write_text(text([*ROWS, ROWS[3]]))
    table(root / "t.csv", **ALL)
    assert "1 of 11 rows have the file of an earlier row, such as 'images/003.png'; each row counts as an image" in (
        caplog.text)


def test_files_in_folders_below_the_root_are_found_if_their_names_are_unique(class_folders, caplog):
    root = class_folders({"part_1/images": 3, "part_2/images": 5})
    for i in range(3):
        (root / "part_1" / "images" / f"{i:03}.png").rename(root / "part_1" / "images" / f"{9 - i:03}.png")
    names = [*range(5), 7, 8, 9]
    (root / "t.csv").write_text(text([[f"{i:03}", "ab"[i % 2]] for i in names]))
    assert labels(table(root / "t.csv", **ALL)) == {
        f"part_{2 if i < 5 else 1}/images/{i:03}.png": "ab"[i % 2] for i in names}
    assert "the files are in folders below" in caplog.text
    (root / "part_1" / "images" / "007.png").rename(root / "part_1" / "images" / "001.png")  # two files of a name
    (root / "t.csv").write_text(text([[f"{i:03}", "ab"[i % 2]] for i in range(5)]))
    assert set(labels(table(root / "t.csv", **ALL))) == {f"part_2/images/{i:03}.png" for i in range(5)}
    (root / "part_2" / "images" / "002.png").rename(root / "part_1" / "images" / "002.png")
    with pytest.raises(FileNotFoundError, match="5 of 5 files do not exist"):
        table(root / "t.csv")


@pytest.mark.parametrize("name", ["annotations.mat", "annotations.xml", "train-000000.tar", "data.pkl", "000.PNG"])
def test_files_that_are_no_tables_are_refused_as_such(tmp_path, name):
    (tmp_path / name).write_bytes(bytes(400))
    with pytest.raises(DataError, match=f"{name}: is not a table; give one in CSV"):
        table(tmp_path / name)


def test_json_lines_may_be_called_ndjson(root):
    rows = [json.dumps({"path": name, "label": label}) for name, label in ROWS]
    (root / "t.ndjson").write_text("\n".join(rows))
    assert labels(table(root / "t.ndjson", **ALL)) == dict(ROWS)


@pytest.mark.parametrize("name", ["t.json", "t.manifest"])
def test_a_value_in_each_line_of_other_json_files(root, name):
    rows = [json.dumps({"source-ref": f"s3://bucket/{path}", "job-metadata": {"class-name": label}})
            for path, label in ROWS]
    (root / name).write_text("\n".join(rows) + "\n")
    with pytest.raises(DataError, match="no image column found among source-ref, job-metadata; .*data.image=source-re"):
        table(root / name)
    assert labels(table(root / name, image="source-ref", label="job-metadata.class-name", **ALL)) == dict(ROWS)
    (root / name).write_text("\n".join([*rows, "{"]))
    with pytest.raises(DataError, match="line 11: is not valid JSON"):
        table(root / name)


def test_an_object_instead_of_a_label_is_an_error_with_its_keys(root):
    rows = [{"External ID": path.split("/")[1], "Label": {"kind": label, "objects": []}} for path, label in ROWS]
    (root / "t.json").write_text(json.dumps(rows))
    with pytest.raises(DataError, match="no image column found among External ID, Label; .*'data.image=External ID'"):
        table(root / "t.json", root=root / "images")
    with pytest.raises(DataError, match=r"t.json row 0: the label is an object; .* \(Label.kind, Label.objects\)"):
        table(root / "t.json", root=root / "images", image="External ID", label="Label")
    found = table(root / "t.json", root=root / "images", image="External ID", label="Label.kind", **ALL)
    assert set(labels(found).values()) == {"cat, big", "dog"}


def test_keys_of_objects_with_dots_state_labels_and_splits(root, caplog):
    use = ["training", "validation", "test", "training", "training"] * 2
    rows = [{"uri": path, "annotation": {"name": label}, "labels": {"aiplatform.googleapis.com/ml_use": use[i]}}
            for i, (path, label) in enumerate(ROWS)]  # as of Vertex AI
    (root / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(DataError, match="data.image=uri"):
        table(root / "t.jsonl")
    table(root / "t.jsonl", image="uri", label="annotation.name")
    assert "the column 'labels.aiplatform.googleapis.com/ml_use' states splits (training, validation, test) and is" in (
        caplog.text)
    found = table(root / "t.jsonl", image="uri", label="annotation.name",
                  split="labels.aiplatform.googleapis.com/ml_use")
    assert {key: len(split) for key, split in found.splits.items()} == {"train": 6, "val": 2, "test": 2}


def test_a_table_of_coco_without_annotations_is_left_out(root, caplog):
    images = [{"id": i, "file_name": path} for i, (path, _) in enumerate(ROWS)]
    whole = {"images": images, "categories": [{"id": 0, "name": "dog"}, {"id": 1, "name": "cat"}],
             "annotations": [{"id": i, "image_id": i, "category_id": i % 2} for i in range(10)]}
    (root / "train2018.json").write_text(json.dumps(whole))
    (root / "test2018.json").write_text(json.dumps({"info": {}, "images": images, "licenses": []}))
    found = table(root)
    assert found.left_out == [("test2018.json", "a table without labels")] and set(found.splits) == {"train", "val"}
    assert "has no column 'label' of labels, as the table of train has, and is left out" in caplog.text


def test_a_binary_file_of_any_name_is_no_table(root):
    (root / "train.dat").write_bytes(bytes(range(256)) * 4)
    with pytest.raises(DataError, match="train.dat: is not a table; give one in CSV"):
        table(root / "train.dat")


def test_tables_in_the_folder_of_a_folder_are_named(root):
    columns = pyarrow.table({"path": [name for name, _ in ROWS], "label": [label for _, label in ROWS]})
    (root / "data").mkdir()
    pyarrow.parquet.write_table(columns, root / "data" / "train-00000-of-00001.parquet")
    with pytest.raises(DataError, match=f"there is one in its folder data: set data.path={root / 'data'}$"):
        table(root)


@pytest.mark.parametrize("form", ["columns of objects", "columns of lists", "labels by name", "lists by name"])
def test_json_objects_of_columns_and_of_labels_by_name(root, form):
    names, kinds = zip(*ROWS, strict=True)
    content = {
        "columns of objects": {"path": dict(zip("9876543210", names, strict=True)),
                               "label": dict(zip("0123456789", reversed(kinds), strict=True))},
        "columns of lists": {"path": names, "label": kinds},
        "labels by name": dict(ROWS),
        "lists by name": {name: [label] for name, label in ROWS},
    }[form]
    (root / "t.json").write_text(json.dumps(content))
    assert labels(table(root / "t.json", **ALL)) == dict(ROWS)


@pytest.mark.parametrize("classes", [["cat, big", "dog"], ["dog", "cat, big"], None])
def test_image_classification_of_fiftyone(root, classes):
    found = {name.split("/")[1].removesuffix(".png"): classes.index(label) if classes else label
             for name, label in ROWS}
    (root / "labels.json").write_text(json.dumps({"classes": classes, "labels": found}))
    assert labels(table(root / "labels.json", **ALL)) == dict(ROWS)
    (root / "labels.json").write_text(json.dumps({"classes": classes, "labels": found | {"000": 2}}))
    with pytest.raises(DataError, match="expected one object per image"):
        table(root / "labels.json", **ALL)


@pytest.mark.parametrize(("values", "reported"), [("-1 0 1", True), ("-1 1", False), ("0 1", False), ("0 1 2", False)])
def test_labels_that_may_mean_uncertain_are_reported(root, caplog, values, reported):
    numbers = values.split()
    rows = [f"{name.split('/')[1][:3]} {numbers[i % len(numbers)]:>2}" for i, (name, _) in enumerate(ROWS)]
    (root / "aeroplane_train.txt").write_text("\n".join(rows))
    source = table(root / "aeroplane_train.txt", image=0, label=1, root=root / "images", **ALL)
    assert source.classes == sorted(numbers, key=int)
    assert ("leave out the rows of the second kind" in caplog.text) == reported


@pytest.mark.parametrize(("column", "values", "reported"), [
    ("lesion_id", 5, True), ("Patient ID", 5, True), ("patient", 5, True), ("patient_id", 10, False),
    ("patient_id", 1, False), ("patient_age", 5, False), ("person", 2, True)])
def test_a_column_of_patients_is_recommended_as_the_group(root, caplog, column, values, reported):
    rows = [[*row, f"P{i % values}"] for i, row in enumerate(ROWS)]
    (root / "t.csv").write_text(text(rows, header=("path", "label", column)))
    table(root / "t.csv")
    assert (f"has {values} values for 10 images" in caplog.text) == reported
    caplog.clear()
    table(root / "t.csv", group=column)
    rows = [[*row, "val" if i < 4 else "train"] for i, row in enumerate(rows)]
    (root / "t.csv").write_text(text(rows, header=("path", "label", column, "split")))
    table(root / "t.csv")
    assert "values for 10 images" not in caplog.text


@pytest.mark.parametrize(("name", "content"), [
    ("t.json", '{"images/000.png": "a", "images/001.png": "b", "images/000.png": "b"}'),
    ("t.json", '[{"path": "images/000.png", "label": "a", "label": "b"}]'),
    ("t.jsonl", '{"path": "images/000.png", "label": "a", "label": "b"}')])
def test_a_key_with_two_labels_is_an_error(root, name, content):
    """Python's reader keeps the last one."""
    (root / name).write_text(content)
    with pytest.raises(DataError, match=r"the key '.*' has two values, 'a' and 'b'; remove one of them"):
        table(root / name)
    (root / name).write_text(content.replace('"b"', '"a"'))
    with pytest.raises(DataError, match="found 1 class"):  # the same value twice is no contradiction
        table(root / name, **ALL)


def test_json_of_the_files_of_each_class(root):
    kinds = sorted({label for _, label in ROWS})
    content = {kind: [path.removesuffix(".png") for path, label in ROWS if label == kind] for kind in kinds}
    (root / "train.json").write_text(json.dumps(content))  # as in Food-101, where all lists are equally long
    assert labels(table(root / "train.json", **ALL)) == dict(ROWS)


@pytest.mark.parametrize("content", [
    {"images": [{"id": 1, "file_name": "a.png"}], "annotations": [{"image_id": 1, "category_id": 1}]},
    {"a": "cat"}, {"path": ["a.png"], "label": []}, {"path": {"0": "a.png"}}, {}, [], 3, {"a.png": None},
    {"path": {"0": "a.png"}, "label": {"1": "cat"}}])
def test_other_json_is_an_error(tmp_path, content):
    (tmp_path / "t.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match="expected one object per image"):
        table(tmp_path / "t.json")


def test_a_shard_is_reported(root, caplog):
    columns = {"path": [name for name, _ in ROWS], "label": [label for _, label in ROWS]}
    for shards in (1, 2):
        pyarrow.parquet.write_table(pyarrow.table(columns), root / f"train-00000-of-0000{shards}.parquet")
        table(root / f"train-00000-of-0000{shards}.parquet", **ALL)
        assert (f"is one of 2 shards, and the others are not read; data=hub data.root={root}" in caplog.text) == (
            shards == 2)


@pytest.mark.parametrize(("column", "parts"), [("is_valid", {"val": 2, "train": 8}), ("Is Test", {"test": 2}),
                                               ("is_train", {"train": 2, "test": 8})])
def test_a_column_that_marks_the_samples_of_a_split(root, caplog, column, parts):
    rows = [[*row, str(i % 5 == 0)] for i, row in enumerate(ROWS)]
    (root / "t.csv").write_text(text(rows, header=("path", "label", column)))
    source = table(root / "t.csv", split=column)
    assert {key: len(source.splits[key]) for key in parts} == parts and not caplog.text
    table(root / "t.csv")
    assert "states splits (True, False) and is not used" in caplog.text
    assert ("'data.split=Is Test'" if " " in column else f"data.split={column}") in caplog.text


def test_columns_of_0_and_1_are_several_labels(root):
    marks = [(i % 2, -1 if i % 3 else 1, "") for i in range(10)]
    rows = [[name, *map(str, each)] for (name, _), each in zip(ROWS, marks, strict=True)]
    (root / "t.csv").write_text(text(rows, header=("path", " cat", " dog", " note")))
    source = table(root / "t.csv", label=["cat", "dog"], **ALL)
    assert source.classes == ["cat", "dog"]
    assert source.splits["train"].labels.tolist() == [[a == 1, b == 1] for a, b, _ in marks]
    with pytest.raises(DataError, match=r"no label column found among path, .*'data.label=\[cat,dog\]'"):
        table(root / "t.csv")
    with pytest.raises(DataError, match="has no column 'dgo' for data.label; .*did you mean dog?"):
        table(root / "t.csv", label=["cat", "dgo"])
    with pytest.raises(DataError, match="row 0: 'note' is '', expected 1 if the image has this label"):
        table(root / "t.csv", label=["cat", "note"])
    rows[0][1] = "-1"
    (root / "t.csv").write_text(text(rows, header=("path", " cat", " dog", " note")))
    with pytest.raises(DataError, match="row 0: 'cat' is '-1', but the column has 0 as well, so that it may mean unce"):
        table(root / "t.csv", label=["cat", "dog"])


def test_whole_numbers_with_decimals_are_indices_of_stated_names(root):
    (root / "t.csv").write_text(text([[name, f"{i % 2}.0"] for i, (name, _) in enumerate(ROWS)]))
    assert table(root / "t.csv").classes == ["0.0", "1.0"]
    assert table(root / "t.csv", classes=["1.0", "0.0"], **ALL).label_text("train", 1) == "1.0"
    expected = {name: ("dog", "cat")[i % 2] for i, (name, _) in enumerate(ROWS)}
    assert labels(table(root / "t.csv", classes=["dog", "cat"], **ALL)) == expected
    (root / "classes.json").write_text('["dog", "cat"]')
    assert labels(table(root / "t.csv", **ALL)) == expected


def test_a_label_with_decimals_beside_a_name_is_a_name(root):
    rows = [[name, ("1.0", "cat")[i % 2]] for i, (name, _) in enumerate(ROWS)]
    (root / "t.csv").write_text(text(rows))
    assert labels(table(root / "t.csv", **ALL)) == dict(rows)


def test_a_file_of_coco_has_the_categories_of_each_image(root):
    images = [{"id": 7 + i, "file_name": name} for i, (name, _) in enumerate(ROWS)]
    categories = [{"id": 3, "name": "dog"}, {"id": 1, "name": "cat"}]
    objects = [{"id": i, "image_id": 16 - i, "category_id": (1, 3, 3)[i % 3]} for i in range(10)]
    content = {"images": images, "categories": categories, "annotations": objects}
    (root / "t.json").write_text(json.dumps(content))
    expected = {name: ("cat", "dog", "dog")[(9 - i) % 3] for i, (name, _) in enumerate(ROWS)}
    assert labels(table(root / "t.json", **ALL)) == expected


def test_a_list_of_objects_is_one_of_label_studio_only_with_data_and_annotations():
    task = {"data": {"image": "a.png"}, "annotations": []}
    assert annotation_format([task])[0] == "Label Studio"
    for other in ({**task, "data": "a.png"}, {"data": task["data"]}, "a.png"):
        assert annotation_format([other]) == ("", None)


def test_addresses_of_label_studio_name_files():
    assert served_files("/data/local-files/?d=my%20photos/a.png") == ["my photos/a.png"]
    assert served_files("/data/upload/3/0123abcd-a%2Bb.png") == ["0123abcd-a+b.png", "a+b.png"]
    assert served_files("/data/upload/3/a.png") == served_files("images/a.png") == []


def test_a_file_of_class_names_that_is_not_read_is_reported(root, caplog):
    (root / "t.csv").write_text(text([[name, str(i % 2)] for i, (name, _) in enumerate(ROWS)]))
    table(root / "t.csv")
    assert not caplog.text
    (root / "classes.txt").write_text("cat\ndog\n")
    assert table(root / "t.csv").classes == ["0", "1"] and "classes.txt beside it is not read" in caplog.text
    caplog.clear()
    assert table(root / "t.csv", classes=["cat", "dog"]).classes == ["cat", "dog"] and not caplog.text


def test_unconventional_column_names(root):
    (root / "t.csv").write_text(text(ROWS, header=("Image", "Label")))
    assert labels(table(root / "t.csv", **ALL)) == dict(ROWS)
    (root / "t.csv").write_text(text(ROWS, header=("image", "clas")))
    with pytest.raises(DataError, match="no label column found among image, clas; name it with data.label=clas"):
        table(root / "t.csv")
    with pytest.raises(DataError, match="no column 'class' for data.label; its columns are .*did you mean"):
        table(root / "t.csv", label="class")


def test_tables_without_a_header(root):
    (root / "t.csv").write_text(text(ROWS[1:], header=ROWS[0]))
    with pytest.raises(DataError, match="'images/000.png' instead of column names; .* data.image=0 data.label=1"):
        table(root / "t.csv")
    assert labels(table(root / "t.csv", image=0, label=1, **ALL)) == dict(ROWS)


def test_the_hint_for_a_table_without_a_header_names_the_column_of_splits(root):
    rows = [("train" if i % 2 else "TEST", f"gs://bucket/{name}", label) for i, (name, label) in enumerate(ROWS)]
    (root / "t.csv").write_text(text(rows[1:], header=rows[0]))
    with pytest.raises(DataError, match="data.image=1 data.label=2 data.split=0$"):
        table(root / "t.csv")


def test_lists_of_files_and_classes_separated_by_white_space(root):
    (root / "t.txt").write_text("".join(f"{name}  {i % 2}\n" for i, (name, _) in enumerate(ROWS)))
    with pytest.raises(DataError, match="data.image=0 data.label=1$"):
        table(root / "t.txt")
    assert labels(table(root / "t.txt", image=0, label=1, **ALL)) == {
        name: str(i % 2) for i, (name, _) in enumerate(ROWS)}
    mixed = [f"{name} {'dog' if i % 2 else 'big cat'}\n" for i, (name, _) in enumerate(ROWS)]
    (root / "t.txt").write_text("path label\n" + "".join(mixed))
    with pytest.raises(DataError, match="white space separates line 1 into 2 fields, but line 2 into another number"):
        table(root / "t.txt")


@pytest.mark.parametrize(("header", "row", "options"), [
    ("label," + ",".join(f"pixel{i}" for i in range(784)), "3," + ",".join(["0"] * 784), {}),
    ("7," + ",".join(["0"] * 784), "3," + ",".join(["0"] * 784), {}),
    ("emotion,pixels", "3," + " ".join(["17"] * 2304), {"image": "pixels", "label": "emotion"}),
])
def test_tables_of_pixels_are_refused_in_a_short_message(tmp_path, header, row, options):
    (tmp_path / "t.csv").write_text(f"{header}\n{row}\n{row}\n")
    with pytest.raises(DataError, match="arrays images and labels of an .npz file$") as error:
        table(tmp_path / "t.csv", **options)
    assert len(str(error.value)) < 500 + len(str(tmp_path))


@pytest.mark.parametrize("column", ["image_id", "filepaths", "Image_Name", "fname"])
def test_more_conventional_names_of_the_image_column(root, column):
    (root / "t.csv").write_text(text(ROWS, header=(column, "labels")))
    assert labels(table(root / "t.csv", **ALL)) == dict(ROWS)


def test_the_hint_for_the_image_column(root):
    (root / "t.csv").write_text(text(ROWS, header=("id", "breed")))
    with pytest.raises(DataError, match="no image column found among id, breed; name it with data.image=id$"):
        table(root / "t.csv")


def test_an_excel_file_that_states_a_smaller_size_is_read_in_full(tmp_path):
    book = openpyxl.Workbook()
    rows = [["text", "label"], ["a", "x"], ["b", "y"], ["c", "x"]]
    for row in rows:
        book.active.append(row)
    book.save(tmp_path / "t.xlsx")
    with zipfile.ZipFile(tmp_path / "t.xlsx") as whole, zipfile.ZipFile(tmp_path / "small.xlsx", "w") as small:
        for name in whole.namelist():
            small.writestr(name, whole.read(name).replace(b'<dimension ref="A1:B4"', b'<dimension ref="A1"'))
    assert list(spreadsheet_rows(tmp_path / "small.xlsx")) == list(enumerate(rows, 1))


def test_further_sheets_of_a_workbook_are_named(tmp_path, caplog):
    book = openpyxl.Workbook()
    book.active.title = "train"
    for name in ("train", "empty", "test"):
        sheet = book[name] if name in book.sheetnames else book.create_sheet(name)
        for row in [("image", "label"), ("a.png", name)] if name != "empty" else []:
            sheet.append(row)
    book.save(tmp_path / "t.xlsx")
    assert [row for _, row in spreadsheet_rows(tmp_path / "t.xlsx")] == [["image", "label"], ["a.png", "train"]]
    assert "only its first sheet, 'train', is read, not 'test'; write all rows" in caplog.text


def test_excel(root, monkeypatch):
    book = openpyxl.Workbook()
    for row in [["path", "label", "split"], *([*row, "train"] for row in ROWS), [None, None, None]]:
        book.active.append(row)
    book.save(root / "t.xlsx")
    assert labels(table(root / "t.xlsx")) == dict(ROWS)
    (root / "bad.xlsx").write_bytes(b"no zip")
    with pytest.raises(DataError, match="bad.xlsx: cannot be read as .xlsx"):
        table(root / "bad.xlsx")
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(DataError, match=r"pip install 'vitwright\[xlsx\]'"):
        table(root / "t.xlsx")


def test_only_a_whole_word_is_the_split_of_a_parquet_file(tmp_path):
    rows = pyarrow.table({"image": [b"x"] * 6, "label": ["a", "b"] * 3})
    for name in ("train-00000-of-00002", "train-00001-of-00002", "Dev_1", "test", "values", "trainings"):
        pyarrow.parquet.write_table(rows, tmp_path / f"{name}.parquet")
    _, splits = parquet_splits(tmp_path, None)
    assert {key: len(split) for key, split in splits.items()} == {"train": 12, "val": 6, "test": 6}


def test_missing_files(root):
    rows = [[*row, "train" if i < 8 else "val"] for i, row in enumerate(ROWS)]
    (root / "t.csv").write_text(text([["gone.png", "dog", "val"], *rows], header=("path", "label", "split")))
    with pytest.raises(FileNotFoundError, match="1 of 11 files does not exist under .*on_bad_sample=skip"):
        table(root / "t.csv")
    source = table(root / "t.csv", on_bad_sample="skip")
    assert source.left_out == [("gone.png", "the file does not exist")] and labels(source) == dict(ROWS)
    assert len(source.splits["val"]) == 2
    pairs = image_text(root / "t.csv", image="path", text="label", on_bad_sample="skip")
    assert len(pairs.splits["train"]) == 8 and pairs.left_out[0][1] == "the file gone.png does not exist"


PIXELS = np.random.default_rng(0).integers(0, 256, (12, 9, 8, 3), np.uint8)
NUMBERS = np.arange(12) % 3


@pytest.mark.parametrize(
    ("arrays", "sizes"),
    [
        ({"train_images": PIXELS, "train_labels": NUMBERS[:, None], "val_images": PIXELS[:3], "val_labels":
          NUMBERS[:3, None], "test_images": PIXELS[:6], "test_labels": NUMBERS[:6, None]},
         {"train": 12, "val": 3, "test": 6}),
        ({"x_train": PIXELS[..., 0], "y_train": NUMBERS, "x_test": PIXELS[:2, ..., 0], "y_test": NUMBERS[:2]},
         {"train": 11, "val": 1, "test": 2}),
        ({"images": PIXELS, "labels": np.array(["a", "b", "c"])[NUMBERS]}, {"train": 9, "val": 1, "test": 2}),
        ({"images": PIXELS.transpose(0, 3, 1, 2).astype(np.float32) / 255, "labels": NUMBERS}, {"train": 9}),
    ],
)
def test_arrays(tmp_path, arrays, sizes):
    np.savez(tmp_path / "a.npz", **arrays)
    source = table(tmp_path / "a.npz")
    assert {key: len(split) for key, split in source.splits.items()}["train"] >= sizes["train"] - 1
    assert len(source.classes) == 3
    image = Preprocessing(size=(9, 8)).image(source.splits["train"].read(0))
    assert image.shape == (3, 9, 8)


def test_multi_label_arrays_and_invalid_arrays(tmp_path, caplog):
    one_hot = np.eye(3, dtype=int)[NUMBERS]
    np.savez(tmp_path / "a.npz", images=PIXELS, labels=one_hot)
    assert table(tmp_path / "a.npz").multi_label
    assert "each of the 12 images has exactly one of the 3 labels" in caplog.text
    assert table(tmp_path / "a.npz", one_hot=True, **ALL).splits["train"].labels.tolist() == NUMBERS.tolist()
    caplog.clear()
    np.savez(tmp_path / "a.npz", images=PIXELS, labels=np.concatenate([one_hot[:11], [[1, 0, 1]]]))
    assert table(tmp_path / "a.npz").multi_label and not caplog.text
    with pytest.raises(DataError, match="a.npz train row 11: has 2 of the 3 classes, as 1 of 12 rows does not"):
        table(tmp_path / "a.npz", one_hot=True)
    np.savez(tmp_path / "a.npz", images=PIXELS, labels=NUMBERS)
    with pytest.raises(DataError, match=r"needs labels \(N,classes\) of 0 and 1"):
        table(tmp_path / "a.npz", one_hot=True)
    np.savez(tmp_path / "b.npz", pixels=PIXELS, labels=NUMBERS)
    with pytest.raises(DataError, match=r"needs arrays named images and labels.*pixels \(12, 9, 8, 3\)"):
        table(tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", images=PIXELS, labels=np.array([{}] * 12))
    with pytest.raises(DataError, match="c.npz: cannot be read as .npz .*pickle"):
        table(tmp_path / "c.npz")


def test_numbers_of_all_splits_of_arrays_are_the_same_names(tmp_path):
    arrays = {"train_images": PIXELS, "train_labels": NUMBERS + 1, "val_images": PIXELS[:2],
              "val_labels": np.array([1, 2]), "test_images": PIXELS[:1], "test_labels": np.array([2])}
    np.savez(tmp_path / "a.npz", **arrays)
    found = {key: [label for _, label in each] for key, each in table(tmp_path / "a.npz").split_lists().items()}
    assert found == {"train": [str(n + 1) for n in NUMBERS], "val": ["1", "2"], "test": ["2"]}
    np.savez(tmp_path / "b.npz", **arrays | {"train_labels": NUMBERS, "test_labels": np.array([0])})
    source = table(tmp_path / "b.npz", classes=["a", "b", "c"])
    assert [label for _, label in source.split_lists()["val"]] == ["b", "c"]


def test_columns_with_one_label_for_each_image_are_named(root, caplog):
    rows = [[path, "01"[i % 2], "10"[i % 2]] for i, (path, _) in enumerate(ROWS)]
    (root / "t.csv").write_text(text(rows, header=("path", "cat", "dog")))
    assert table(root / "t.csv", label=["cat", "dog"], **ALL).multi_label
    assert "t.csv: each of the 10 images has exactly one of the 2 labels" in caplog.text
    assert "if each image has one class, use data.one_hot=true" in caplog.text
    caplog.clear()
    source = table(root / "t.csv", label=["cat", "dog"], one_hot=True, **ALL)
    assert source.classes == ["cat", "dog"] and not source.multi_label and not caplog.text
    assert labels(source) == {path: ("dog", "cat")[i % 2] for i, (path, *_) in enumerate(rows)}
    with pytest.raises(DataError, match=r"the classes, one of each image: 'data.label=\[cat,dog\]' data.one_hot=true"):
        table(root / "t.csv")
    with pytest.raises(DataError, match="data.one_hot=true needs a column of 0 and 1 for each class"):
        table(root / "t.csv", label="cat", one_hot=True)
    (root / "t.csv").write_text(text([*rows[:9], [rows[9][0], "0", "0"]], header=("path", "cat", "dog")))
    assert table(root / "t.csv", label=["cat", "dog"], **ALL).multi_label and not caplog.text
    with pytest.raises(DataError, match="t.csv row 9: has 0 of the 2 classes, as 1 of 10 rows does not have"):
        table(root / "t.csv", label=["cat", "dog"], one_hot=True)


def test_heic(tmp_path, monkeypatch):
    import pillow_heif

    pillow_heif.from_pillow(Image.fromarray(PIXELS[0]).resize((64, 64))).save(tmp_path / "a.heic")
    assert Preprocessing(size=8).image(tmp_path / "a.heic").shape == (3, 8, 8)
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "pillow_heif":
            raise ImportError
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(BadImage, match=r"a.heic: is a HEIC image.*pip install 'vitwright\[heic\]'"):
        Preprocessing(size=8).image(tmp_path / "a.heic")


def test_numbers_among_the_stated_classes_are_names_in_npz_too(tmp_path):
    """As in other tables; labels 1 to 3 with three classes were out of range."""
    labels = np.array([1, 2, 3] * 10)
    np.savez(tmp_path / "a.npz", images=np.zeros((30, 4, 4), np.uint8), labels=labels)
    source = table(tmp_path / "a.npz", classes=[1, 2, 3])
    assert source.classes == ["1", "2", "3"]
    assert sorted(np.concatenate([split.labels for split in source.splits.values()]).tolist()) == sorted(labels - 1)
    np.savez(tmp_path / "b.npz", images=np.zeros((30, 4, 4), np.uint8), labels=labels - 1)
    assert table(tmp_path / "b.npz", classes=["x", "y", "z"]).classes == ["x", "y", "z"]


def test_folders_of_splits_in_the_names_of_a_table_are_reported(class_folders, caplog):
    root = class_folders({f"{split}/{name}": 2 for split in ("train", "test") for name in ("cat", "dog")})
    names = [str(file.relative_to(root)) for file in sorted(root.rglob("*.png"))]
    rows = [[name, name.split("/")[1]] for name in names]
    (root / "all.csv").write_text(text(rows))
    table(root / "all.csv", **ALL)
    assert "the images are in folders of splits (test, train), which are not used" in caplog.text
    caplog.clear()
    stated = [[*row, row[0].split("/")[0]] for row in rows]
    (root / "all.csv").write_text(text(stated, header=("path", "label", "split")))
    assert len(table(root / "all.csv").splits["test"]) == 4
    assert "folders of splits" not in caplog.text


@pytest.mark.parametrize(("columns", "hint"), [
    (["age", "race"], "data.label=COLUMN"),
    (["age", "ClassId"], "data.label=ClassId"),
    (["lable"], "data.label=lable"),
])
def test_the_hint_for_the_label_column(root, columns, hint):
    rows = [[name, *(["x"] * len(columns))] for name, _ in ROWS]
    (root / "t.csv").write_text(text(rows, header=("path", *columns)))
    with pytest.raises(DataError, match=f"name it with {hint}$"):
        table(root / "t.csv")
