"""Damaged tables of images: errors name the line, and no row is lost silently."""

import pytest

from vit.data import DataError, table

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
    (tmp_path / "t.json").write_text("[" * 9999 + "]" * 9999)
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
