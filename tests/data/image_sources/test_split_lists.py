"""Lists of splits beside a folder or table that is read without them: reported, with the overrides that read them."""

import json
import shlex

import pytest

from vit.data import folder, table

CLASSES = ("apple_pie", "ribs")
PARTS = {"train": range(4), "val": range(4, 6), "test": range(6, 8)}


@pytest.fixture
def root(class_folders):
    return class_folders({f"images/{name}": 8 for name in CLASSES})


def names(part):
    return [f"{name}/{i:03}" for name in CLASSES for i in PARTS[part]]


def recommended(text):
    """The source that the overrides in a warning select."""
    words = dict(word.removeprefix("data.").split("=", 1) for word in shlex.split(text.split("set data=table ")[1]))
    numbers = {"image": int(words.pop("image"))} if "image" in words else {}
    return table(**words, **numbers, fractions=(1, 0, 0))


@pytest.mark.parametrize(("file", "content", "parts"), [
    ("meta/{}.json", lambda part: json.dumps({name: [each for each in names(part) if name in each]
                                              for name in CLASSES}),
     {"train": "train", "test": "test"}),  # Food-101
    ("labels/{}1.txt", lambda part: "".join(f"{name}.png\n" for name in names(part)),
     {"train": "train", "val": "val", "test": "test"}),  # DTD
    ("{}_01.txt", lambda part: "".join(f"/{name}.png\n" for name in names(part)),
     {"train": "Training", "test": "Testing"}),  # SUN397
    ("images/{}.csv", lambda part: ",Filename,Label\n" + "".join(
        f"{i},{name}.png,{name[:3]}\n" for i, name in enumerate(names(part))),
     {"train": "train", "val": "validation", "test": "test"}),  # EuroSAT
])
def test_tables_of_splits_beside_class_folders(root, caplog, file, content, parts):
    for part, written in parts.items():
        path = root / file.format(written)
        path.parent.mkdir(exist_ok=True)
        path.write_text(content(part))
    folder(root / "images")
    assert "of the images and are not used; to use them, set data=table" in caplog.text
    (line,) = [line for line in caplog.text.split("\n") if "are not used" in line]
    found = recommended(line).split_lists()
    assert {key: sorted(name.split("images/")[-1] for name, _ in rows) for key, rows in found.items()} == {
        part: [f"{name}.png" for name in names(part)] for part in parts}


@pytest.mark.parametrize(("file", "content"), [
    ("train_test_split.txt", "1 0\n2 1\n"),  # CUB-200
    ("test_list.mat", ""),  # Stanford Dogs
    ("split_of_all.json", json.dumps({"test": [["apple_pie/001.png", 0, "apple"]]})),
    ("images/test.txt", "apple_pie/001.png\n"),
])
def test_other_lists_of_splits_beside_class_folders(root, caplog, file, content):
    (root / file).write_text(content)
    folder(root / "images")
    assert f"{file.split('/')[-1]} states splits of the images and is not used; to use it, write a table" in caplog.text


@pytest.mark.parametrize(("file", "content"), [
    ("train.csv", "image,label\n" + "".join(f"{name}.png,{name[:3]}\n" for part in PARTS for name in names(part))),
    ("test.csv", "image,label\nelse/000.png,apple\nelse/001.png,apple\n"),
    ("test.csv", "id,label\n000,1\n001,2\n"),
    ("test_list.txt", b"\xff\xfe\0"),
    ("other/test.txt", "apple_pie/001.png\n"),
    ("names.txt", "apple_pie/001.png\n"),
    ("test_predictions.csv", "name,label\napple_pie/001.png,apple_pie\n"),
    ("test.json", "{"),
])
def test_other_files_beside_class_folders_are_not_reported(root, caplog, file, content):
    (root / file).parent.mkdir(exist_ok=True)
    (root / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    folder(root / "images")
    assert not caplog.text


def test_lists_of_splits_beside_a_table(class_folders, caplog):
    root = class_folders({"images_001": 6})
    for i, path in enumerate(sorted((root / "images_001").iterdir())):
        path.rename(path.with_name(f"{i // 2:08}_{i % 2:03}.png"))
    each = sorted(path.name for path in (root / "images_001").iterdir())
    (root / "Data_Entry.csv").write_text("image,label\n" + "".join(f"{name},{'ab'[i % 2]}\n"
                                                                  for i, name in enumerate(each)))
    (root / "train_val_list.txt").write_text("\n".join(each[:4]))
    (root / "test_list.txt").write_text("\n".join(each[4:]))
    table(root / "Data_Entry.csv", fractions=(1, 0, 0))
    assert ("test_list.txt, train_val_list.txt state splits of the images and are not used; to use them, set "
            "data.train=train_val_list.txt data.test=test_list.txt") in caplog.text
    found = table(root / "Data_Entry.csv", train="train_val_list.txt", test="test_list.txt", fractions=(1, 0, 0))
    assert {key: [name.split("/")[-1] for name, _ in split] for key, split in found.split_lists().items()} == {
        "train": each[:4], "test": each[4:]}
    (root / "test_list.txt").unlink(), (root / "train_val_list.txt").unlink()
    (root / "list_eval_partition.txt").write_text("\n".join(f"{name} {i % 3}" for i, name in enumerate(each)))
    table(root / "Data_Entry.csv", fractions=(1, 0, 0))
    assert ("list_eval_partition.txt states splits of the images and is not used; to use it, set "
            "data.split=list_eval_partition.txt") in caplog.text
    caplog.clear()
    rows = (root / "Data_Entry.csv").read_text().split()
    (root / "Data_Entry.csv").write_text("\n".join(f"{row},{'train' if i else 'split'}" for i, row in enumerate(rows)))
    table(root / "Data_Entry.csv", fractions=(1, 0, 0))
    assert "list_eval_partition" not in caplog.text
