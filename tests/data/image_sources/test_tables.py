"""Damaged tables of images: errors name the line, and no row is lost silently."""

import pyarrow
import pyarrow.parquet
import pytest

from vit.data import DataError, table
from vit.data.image_sources import file_names

ROWS = [b"path,label", *(b"x/%03d.png,%c" % (i, b"ab"[i % 2]) for i in range(6))]


@pytest.fixture
def written(class_folders):
    """written(rows) → the path of a table with these lines, next to six images."""
    path = class_folders({"x": 6}) / "t.csv"

    def write(rows):
        path.write_bytes(b"\n".join(rows))
        return path

    return write


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b'x/002.png,"a', "t.csv line 4: the row that begins there is not valid CSV"),
        (b'x/002.png,"a"b', "t.csv line 4: .*; close every quote, and double quotes inside a quoted cell"),
        (b"x/002.png,\xe4", "t.csv line 4: byte 11 is not UTF-8"),
        (b"x/002.png", "t.csv line 4: has 1 fields, the header has 2"),
    ],
)
def test_damaged_lines_are_named(written, line, text):
    with pytest.raises(DataError, match=text):
        table(written([*ROWS[:3], line, *ROWS[4:]]))


def test_valid_unusual_lines(written):
    whole = table(written(ROWS), fractions=(1, 0, 0))
    quoted = [b"\xef\xbb\xbf" + ROWS[0], *(row.replace(b",", b',"') + b'"' for row in ROWS[1:]), b"", b""]
    found = table(written(quoted), fractions=(1, 0, 0))
    assert found.split_lists() == whole.split_lists() and len(found.splits["train"]) == 6


def test_duplicate_column_names(written):
    with pytest.raises(DataError, match="t.csv: 2 columns of its header are named 'label'; give each a unique name"):
        table(written([b"path,label,label", b"x/000.png,a,b", b"x/001.png,b,a"]))


def test_deeply_nested_json(tmp_path):
    (tmp_path / "t.json").write_text("[" * 200_000 + "]" * 200_000)
    with pytest.raises(DataError, match="t.json: cannot be read as JSON"):
        table(tmp_path / "t.json")


@pytest.mark.parametrize("label", [r'"b\ud800"', r'["a", "b\ud800"]'])
def test_unpaired_surrogates_in_json(class_folders, label):
    """Such a label could not be saved in any file after training."""
    path = class_folders({"x": 2}) / "t.jsonl"
    path.write_text(f'{{"path": "x/000.png", "label": "a"}}\n{{"path": "x/001.png", "label": {label}}}\n')
    if "[" in label:
        path.write_text(path.read_text().replace('"a"}', '["a"]}'))
    with pytest.raises(DataError, match=r"t.jsonl row 1: the label 'b\\ud800' has \\ud800, half of a character; write"):
        table(path)


@pytest.mark.parametrize("ending", [b"\r", b"\r\n"])
def test_line_endings(written, ending):
    whole = table(written(ROWS), fractions=(1, 0, 0))
    assert table(written([ending.join([*ROWS, b""])]), fractions=(1, 0, 0)).split_lists() == whole.split_lists()


def test_an_unknown_split_is_named_by_its_row_although_earlier_files_are_missing(written):
    rows = [b"x/missing.png,a,train", *(row + b",train" for row in ROWS[1:6]), b"x/005.png,b,fold1"]
    with pytest.raises(DataError, match="t.csv row 6: split 'fold1' is not one of train"):
        table(written([b"path,label,split", *rows]), on_bad_sample="skip")


@pytest.mark.parametrize("kind", [pyarrow.string(), pyarrow.large_string()])
def test_an_empty_path_at_the_start_of_a_parquet_file_is_named(class_folders, kind):
    """It was read as a table of encoded images, whose paths would have been opened in the working directory."""
    path = class_folders({"x": 2}) / "t.parquet"
    images = pyarrow.array([None, "x/000.png", "x/001.png"], kind)
    pyarrow.parquet.write_table(pyarrow.table({"image": images, "label": ["a", "a", "b"]}), path)
    with pytest.raises(DataError, match="t.parquet row 0: the image is None, expected a path; remove the row"):
        table(path)


def test_an_invalid_line_of_jsonl_is_named(tmp_path):
    (tmp_path / "t.jsonl").write_text('{"path": "a.png", "label": "a"}\n\n{"path": \n')
    with pytest.raises(DataError, match="t.jsonl line 3: is not valid JSON"):
        table(tmp_path / "t.jsonl")


def test_a_file_with_the_name_in_the_table_is_looked_up_once(class_folders, monkeypatch):
    """The addresses of Label Studio were parsed for each of a million names, silently."""
    root, seen, served = class_folders({"photos": 6}), [], []
    names = [f"photos/{i:03}.png" for i in range(5)] + ["photos\\005.png"]
    rows = "".join(f"{name},{'ab'[i % 2]}\n" for i, name in enumerate(names))
    (root / "t.csv").write_text(f"image,label\n{rows}")
    whole = file_names.served_files
    monkeypatch.setattr(file_names, "served_files", lambda name: served.append(name) or whole(name))
    source = table(root / "t.csv", fractions=(1, 0, 0), progress=lambda *each: seen.append(each))
    assert list(source.splits["train"].names) == [f"photos/{i:03}.png" for i in range(6)]
    assert served == names[5:] and seen[-1] == ("files", 6, 6)
