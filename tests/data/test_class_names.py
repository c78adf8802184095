"""Labels in tables and folders: missing labels, normalization, the source of class names."""

import json
import unicodedata

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from vit.data import DataError, Source, cifar10, folder, pictures, table, text_table
from vit.data.class_names import encode_labels, parse_class_names
from vit.data.splits.split import array_split
from vit.run.config.composing import compose, resolve

ACCENT = unicodedata.normalize("NFC", "café")


@pytest.mark.parametrize("missing", [None, float("nan"), np.float64("nan"), "", "  ", "\t"])
@pytest.mark.parametrize("others", [["cat", "dog"], [1, 2], [1.0, 2.0]])
def test_missing_labels_are_errors_with_their_row(missing, others):
    with pytest.raises(DataError, match="t.csv row 1: the label is empty"):
        encode_labels("t.csv", [others[0], missing, others[1]], None, None)


def test_nan_is_missing_among_numbers_and_a_name_among_names():
    with pytest.raises(DataError, match=r"row 2: the label is empty \('NaN'\)"):
        encode_labels("t.csv", ["1", "2.5", "NaN"], None, None)
    assert encode_labels("t.csv", ["nan", "roti"], None, None)[0] == ["nan", "roti"]


def test_labels_nan_among_names_are_a_warning(tmp_path, caplog):
    encode_labels("t.csv", ["cat", "NaN", "dog", "NaN"], None, None)
    assert "t.csv: 2 of 4 labels are 'NaN', which is a class; if this is a missing value, remove" in caplog.text
    caplog.clear()
    encode_labels("t.csv", ["nan", "roti"], None, ["nan", "roti"])  # names that the data states
    encode_labels("t.csv", ["nano", "banana"], None, None)
    assert not caplog.records
    file = tmp_path / "t.csv"
    file.write_text("text,label\n" + "".join(f"a {i},{'nan' if i % 3 else 'cat'}\n" for i in range(12)))
    text_table(file)
    assert "t.csv: 8 of 12 labels are 'nan', which is a class" in caplog.text


@pytest.mark.parametrize("missing", ["NA", "N/A", "null", "None", "<NA>"])
def test_other_texts_of_missing_values_are_a_warning(caplog, missing):
    encode_labels("t.csv", ["cat", missing, "dog", "nation"], None, None)
    assert f"t.csv: 1 of 4 labels is {missing!r}, which is a class" in caplog.text


@pytest.mark.parametrize("names, similar", [
    (["0", "0.0", "1", "2"], "'0' and '0.0'"), (["1", "1.50", "1.5"], "'1.5' and '1.50'"),
    (["7", "007"], "'007' and '7'"), (["0", "1", "1.5"], None), (["1.2.3", "1.2.30"], None),
    (["12345678901234567890", "12345678901234567891.0"], None),
])
def test_names_of_the_same_number_are_reported(caplog, names, similar):
    encode_labels("t.csv", names, None, None)
    expected = f"t.csv: {similar} are 2 classes, although they are the same number; rename them"
    assert (expected in caplog.text) == bool(caplog.records) == (similar is not None)


def test_white_space_and_unicode_forms_are_normalized(caplog):
    values = ["cat ", "cat", " dog", "dog", ACCENT, unicodedata.normalize("NFD", ACCENT)]
    names, labels = encode_labels("t.csv", values, None, None)
    assert names == [ACCENT, "cat", "dog"] and labels.tolist() == [1, 1, 2, 2, 0, 0]
    assert "labels 'cat' and 'cat ' are one class, 'cat'" in caplog.text and "'cafe\\u0301'" in caplog.text


def test_similar_class_names_are_reported(caplog, class_folders):
    names = ["Cat", "cat", "hot  dog", "hot dog"]
    assert encode_labels("t.csv", names, None, None)[0] == names
    assert "'Cat' and 'cat' are 2 classes" in caplog.text and "'hot  dog' and 'hot dog'" in caplog.text
    caplog.clear()
    folder(class_folders({"Elk": 3, "elk": 3}))
    assert "'Elk' and 'elk' are 2 classes" in caplog.text


def test_a_similar_name_is_not_called_an_equal_number(caplog):
    encode_labels("t.csv", ["Cat", "cat", "1", "2"], None, None)
    assert "'Cat' and 'cat' are 2 classes, although they differ only by case or white space" in caplog.text
    assert "the same number" not in caplog.text


@pytest.mark.parametrize("label", ["['cat', 'dog']", '{"choices":["cat","dog"]}', "[]", "[0 1]"])
@pytest.mark.parametrize("separator", [None, ","])
def test_lists_written_as_text_are_errors(label, separator):
    with pytest.raises(DataError, match=r"t.csv row 1: the label .* is a list written as text; .*label_separator='\|'"):
        encode_labels("t.csv", ["cat", label, "dog"], separator, None)


@pytest.mark.parametrize(("names", "sign"), [
    (["cat", "dog", "cat|dog"], "|"), (["dog, cat", "cat, elk", "elk, dog", "elk, cat"], ","),
    (["hot", "dog", "hot dog"], " "),
])
def test_class_names_that_combine_others_are_reported(caplog, names, sign):
    encode_labels("t.csv", names, None, None)
    assert "combine several names; if an image may have several labels" in caplog.text
    assert f"data.label_separator='{sign}'" in caplog.text


def test_texts_have_one_label(tmp_path, caplog):
    (tmp_path / "t.csv").write_text("text,label\na,joy\nb,anger\nc,joy|anger\n")
    assert len(text_table(tmp_path / "t.csv", fractions=(1, 0, 0)).classes) == 3
    assert "t.csv: class names such as 'joy|anger' combine several names" in caplog.text
    (tmp_path / "t.csv").write_text("text,label\na,joy\nb,\"['joy', 'anger']\"\n")
    with pytest.raises(DataError, match="t.csv line 3: the label .* is a list written as text"):
        text_table(tmp_path / "t.csv")


def test_class_names_of_several_words_are_not_reported(caplog):
    names = ["golden retriever", "labrador retriever", "red car", "red bus", "blue car", "blue bus", "a, b", "[x]"]
    assert encode_labels("t.csv", names, None, None)[0] == sorted(names) and not caplog.text


def test_whole_numbers_stored_as_floats_are_indices():
    assert encode_labels("t", [1.0, 0.0], None, ["a", "b"])[1].tolist() == [1, 0]
    assert encode_labels("t", [3.0, 7.0], None, None)[0] == ["3", "7"]


def test_numbers_beyond_int64_are_class_names():
    assert encode_labels("t", ["99999999999999999999", "1", "1"], None, None)[0] == ["1", "99999999999999999999"]
    with pytest.raises(DataError, match="t row 0: class '99999999999999999999' is not among the 2 known classes"):
        encode_labels("t", ["99999999999999999999", "1"], None, ["a", "b"])


def test_numbers_are_class_names():
    assert parse_class_names([10, 20.5, "x "]) == ["10", "20.5", "x"] and parse_class_names(None) is None
    overrides = ["data=table", "data.path=t.csv", "data.classes=[10,20]"]
    assert parse_class_names(resolve(compose(overrides))["data"]["classes"]) == ["10", "20"]
    for wrong in ([True, False], ["a", None], [False]):
        with pytest.raises(DataError, match=r"is not a class name; put quotes around each name"):
            parse_class_names(wrong)
    with pytest.raises(DataError, match="toy: the class name 10 is int, not text; give '10'"):
        Source("toy", [10, 20], {"train": array_split(np.zeros((2, 2, 2), np.uint8), np.arange(2), "toy")})


def test_labels_among_the_given_class_names_are_not_indices(class_folders):
    root = class_folders({"x": 20})
    rows = "\n".join(f"x/{i:03}.png,{(10, 20)[i % 2]}" for i in range(20))
    (root / "t.csv").write_text(f"image,label\n{rows}\n")
    source = table(root / "t.csv", classes=[20, 10], fractions=(1, 0, 0))
    assert source.classes == ["20", "10"] and source.splits["train"].labels.tolist() == [1, 0] * 10
    (root / "t.tsv").write_text("text\tlabel\n" + "\n".join(f"text {i}\t{(10, 20)[i % 2]} " for i in range(20)) + "\n")
    source = text_table(root / "t.tsv", classes=[20, 10], fractions=(1, 0, 0))
    assert source.classes == ["20", "10"] and source.splits["train"].labels.tolist() == [1, 0] * 10


def hugging(path, columns, names):
    features = {column: {"names": each, "_type": "ClassLabel"} for column, each in names.items()}
    data = pyarrow.table(columns).replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pyarrow.parquet.write_table(data, path)
    return path


@pytest.fixture
def image(class_folders):
    return (class_folders({"x": 1}) / "x" / "000.png").read_bytes()


def test_class_names_are_those_of_the_label_column(tmp_path, image):
    columns = {"image": [image] * 4, "coarse": [0, 0, 1, 1], "label": [0, 1, 2, 1]}
    path = hugging(tmp_path / "t.parquet", columns, {"coarse": ["animal", "thing"], "label": ["cat", "dog", "car"]})
    assert table(path, fractions=(1, 0, 0)).classes == ["cat", "dog", "car"]
    assert table(path, label="coarse", fractions=(1, 0, 0)).classes == ["animal", "thing"]


def test_splits_with_class_names_in_other_orders_are_matched_by_name(tmp_path, image):
    hugging(tmp_path / "train.parquet", {"image": [image] * 4, "label": [0, 1, 0, 1]}, {"label": ["cat", "dog"]})
    hugging(tmp_path / "test.parquet", {"image": [image] * 3, "label": [0, 0, 1]}, {"label": ["dog", "cat"]})
    source = cifar10(tmp_path, val=1)
    assert source.classes == ["cat", "dog"] and source.splits["test"].labels.tolist() == [1, 1, 0]
    hugging(tmp_path / "test.parquet", {"image": [image] * 3, "label": [0, 0, 1]}, {"label": ["dog", "emu"]})
    with pytest.raises(DataError, match="test.parquet row 2: class 'emu' is not among the 2 known"):
        cifar10(tmp_path, val=1)


def test_files_of_one_split_with_class_names_in_other_orders_are_an_error(tmp_path, image):
    hugging(tmp_path / "train-0.parquet", {"image": [image] * 4, "label": [0, 1, 0, 1]}, {"label": ["cat", "dog"]})
    hugging(tmp_path / "train-1.parquet", {"image": [image] * 4, "label": [0, 1, 0, 1]}, {"label": ["dog", "cat"]})
    with pytest.raises(DataError, match=r"train-1.parquet: the class names of its column 'label' are \['dog', 'cat'\]"):
        cifar10(tmp_path, val=1)


def test_hub_splits_with_class_names_in_other_orders_are_matched_by_name(tmp_path, image):
    datasets = pytest.importorskip("datasets")
    from vit.data import hub

    def rows(labels, names):
        features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=names)})
        return datasets.Dataset.from_dict({"image": [{"bytes": image, "path": None}] * len(labels), "label": labels},
                                          features=features)

    found = datasets.DatasetDict(train=rows([0, 1] * 5, ["cat", "dog"]), test=rows([0, 0, 1], ["dog", "cat"]))
    found.save_to_disk(tmp_path / "saved")
    source = hub(tmp_path / "saved")
    assert source.classes == ["cat", "dog"] and source.splits["test"].labels.tolist() == [1, 1, 0]


@pytest.mark.parametrize("label", [["a", None, "b"], [1.0, float("nan"), 2.0], ["a", " ", "b"]])
def test_text_tables_name_or_leave_out_rows_without_labels(tmp_path, label):
    data = pyarrow.table({"text": ["x", "y", "z"] * 5, "label": label * 5})
    pyarrow.parquet.write_table(data, tmp_path / "t.parquet")
    with pytest.raises(DataError, match="t.parquet row 1: label is empty, as in 5 of 15 lines"):
        text_table(tmp_path / "t.parquet")
    source = text_table(tmp_path / "t.parquet", on_empty="skip")
    assert source.classes in (["a", "b"], ["1", "2"]) and len(source.left_out) == 5
    cell = [json.dumps({"text": "x", "label": each}) for each in label]  # NaN as Python writes it
    (tmp_path / "t.jsonl").write_text("\n".join(cell * 5) + "\n")
    assert len(text_table(tmp_path / "t.jsonl", on_empty="skip").left_out) == 5


@pytest.mark.parametrize("names", [("Training", "Testing"), ("TRAIN", "Test"), ("train", "TESTING")])
def test_splits_are_recognised_in_any_case(class_folders, names):
    train, test = names
    root = class_folders({f"{train}/cat": 20, f"{train}/dog": 20, f"{test}/cat": 2, "VALID/dog": 3})
    source = folder(root)
    assert source.classes == ["cat", "dog"]
    assert {key: len(split) for key, split in source.splits.items()} == {"train": 40, "val": 3, "test": 2}
    assert {key: len(split) for key, split in pictures(root).splits.items()} == {"train": 40, "val": 3, "test": 2}


def test_two_names_of_one_split_are_an_error(class_folders):
    root = class_folders({"train/cat": 2, "Train/dog": 2, "test/cat": 2})
    for read in (folder, pictures):
        with pytest.raises(DataError, match="both Train and train exist; keep one of them for train"):
            read(root)


def test_folders_in_two_unicode_forms_are_one_class(class_folders):
    apart = unicodedata.normalize("NFD", ACCENT)
    source = folder(class_folders({f"train/{ACCENT}": 3, f"train/{apart}": 2, "train/tea": 3, f"test/{apart}": 2}))
    assert source.classes == [ACCENT, "tea"] and source.counts("test").tolist() == [2, 0]
    assert source.counts("train")[0] + source.counts("val")[0] == 5
