"""Warnings about samples with equal content."""

import pytest

from vit.data import folder, parallel, text_table
from vit.data.splits.recorded import list_entries, warn_about_repeats


def warned(source, labelled, caplog):
    caplog.clear()
    warn_about_repeats(list_entries(source), labelled)
    return caplog.text


def test_images(class_folders, caplog):
    root = class_folders({"train/cat": 3, "train/dog": 3, "val/dog": 2, "test/cat": 2})
    source = folder(root)
    assert not warned(source, True, caplog)
    (root / "test/cat/001.png").write_bytes((root / "train/dog/002.png").read_bytes())
    text = warned(source, True, caplog)
    assert "1 of 2 samples of test has the content of a training sample, such as test/cat/001.png = train/dog" in text
    assert "groups of samples with equal content and different labels: 1, such as" in text
    assert "train/dog/002.png (dog)" in text
    assert " of val " not in text and "different labels" not in warned(source, False, caplog)


@pytest.mark.parametrize("last", ["two", "2"])
def test_pairs(tmp_path, caplog, last):
    for name, lines in {"train.en": "a\nb\nc", "train.de": "A\nB\nC", "val.en": "d", "val.de": "D", "test.en": "e\nb",
                        "test.de": f"E\n{last}"}.items():
        (tmp_path / name).write_text(lines + "\n")
    text = warned(parallel(tmp_path), False, caplog)
    assert "1 of 2 samples of test has the content of a training sample, such as test.en line 2 = train.en" in text


def test_texts(tmp_path, caplog):
    rows = [("good", "pos", "train"), ("bad", "neg", "train"), ("so so", "neg", "train"), ("so so", "pos", "train"),
            ("fine", "pos", "val"), ("bad", "neg", "test")]
    (tmp_path / "t.csv").write_text("text,label,split\n" + "".join(",".join(row) + "\n" for row in rows))
    text = warned(text_table(tmp_path / "t.csv"), True, caplog)
    assert "1 of 1 sample of test has the content of a training sample, such as t.csv line 7 = t.csv line 3" in text
    assert "groups of samples with equal content and different labels: 1, such as t.csv line 4 (neg) = t.csv" in text


def test_an_image_of_many_classes_is_named_in_a_few(class_folders, caplog):
    classes = [f"c{i:02}" for i in range(40)]
    root = class_folders(dict.fromkeys(classes, 1))
    for name in classes:
        (root / name / "000.png").write_bytes((root / "c00/000.png").read_bytes())
    text = warned(folder(root, fractions=(1, 0, 0)), True, caplog)
    assert "such as c00/000.png (c00) = c01/000.png (c01) = c02/000.png (c02) and 37 more" in text
