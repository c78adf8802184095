"""Splits of a table that files beside it state: one with a split in each row, or a list of images for each split."""

import pytest

from vit.data import DataError, table

NAMES = [f"{i:03}.png" for i in range(6)]
PARTS = ("train", "train", "val", "val", "test", "test")
STATED = {"train": NAMES[:2], "val": NAMES[2:4], "test": NAMES[4:]}


@pytest.fixture
def root(class_folders):
    root = class_folders({"images": 6})
    (root / "t.csv").write_text("image,label\n" + "".join(f"{name},{'ab'[i % 2]}\n" for i, name in enumerate(NAMES)))
    return root


def read(root, **options):
    found = table(root / "t.csv", root=root / "images", fractions=(1, 0, 0), **options)
    return {key: [name for name, _ in split] for key, split in found.split_lists().items()}


@pytest.mark.parametrize(("name", "row", "header"), [
    ("list_eval_partition.txt", lambda name, part: f"{name} {list(STATED).index(part)}", ""),  # CelebA
    ("list_eval_partition.csv", lambda name, part: f"{name},{list(STATED).index(part)}",
     "image_id,partition\n"),
    ("Eval/parts.txt", lambda name, part: f"img/{name}   {part}", "6\nimage_name  evaluation_status\n"),  # DeepFashion
    ("parts.csv", lambda name, part: f"7,{name[:3]},{part.upper()}", "id,name,Split\n"),
])
def test_a_file_with_the_split_of_each_image(root, caplog, name, row, header):
    (root / name).parent.mkdir(exist_ok=True)
    rows = [row(*pair) for pair in zip(NAMES, PARTS, strict=True)]
    (root / name).write_text(header + "\n".join(reversed(rows)))
    assert read(root, split=name) == STATED


@pytest.mark.parametrize(("content", "message"), [
    ("\n".join(f"{name} {i % 2}" for i, name in enumerate(NAMES)),
     "parts.txt line 1: split '0' is not one of train, .*; write train, val or test, since 0 and 1 may be either"),
    ("\n".join(f"{name} holdout" for name in NAMES), "line 1: split 'holdout' is not one of"),
    ("\n".join(f"{name} train" for name in NAMES[1:]), "states no split of 1 of 6 images, first '000.png'"),
    ("\n".join(f"{name} train" for name in NAMES) + "\n000.png test", "'000.png' is in two splits, train and test"),
    ("x.png train\ny.png test", "names none of the 6 images of the table, such as '000.png'"),
    ("\n".join(f"{name} train 1" for name in NAMES), "has 2 columns beside the names of the images"),
])
def test_a_file_that_does_not_state_one_split_of_each_image_is_an_error(root, content, message):
    (root / "parts.txt").write_text(content)
    with pytest.raises(DataError, match=message):
        read(root, split="parts.txt")


def test_a_column_of_the_name_of_a_file_is_the_column(root):
    rows = zip((root / "t.csv").read_text().split(), ["parts.txt", *PARTS], strict=True)
    (root / "t.csv").write_text("\n".join(map(",".join, rows)))
    (root / "parts.txt").write_text("x")
    assert read(root, split="parts.txt") == STATED


@pytest.mark.parametrize("extension", [True, False])
def test_lists_of_the_images_of_each_split(root, caplog, extension):
    for key, names in STATED.items():
        names = names if extension else [name.removesuffix(".png") for name in names]
        (root / f"{key}_list.txt").write_text("\n".join(f"images/{name}" for name in names))
    lists = {key: f"{key}_list.txt" for key in STATED}
    assert read(root, **lists) == STATED and not caplog.text.count("no effect")
    del lists["train"]
    assert read(root, **lists) == STATED
    assert read(root, train="train_list.txt", test="test_list.txt") == {key: STATED[key] for key in ("train", "test")}
    assert "2 of 6 images are in none of the lists (train_list.txt, test_list.txt) and are left out" in caplog.text


def test_wrong_lists_are_errors(root, caplog):
    (root / "a.txt").write_text("000.png\n001.png\n"), (root / "b.txt").write_text("001.png\n")
    with pytest.raises(DataError, match="b.txt: '001.png' is in two splits, train and test"):
        read(root, train="a.txt", test="b.txt")
    with pytest.raises(FileNotFoundError, match="data.test: the list .*none.txt of images does not exist"):
        read(root, test="none.txt")
    (root / "b.txt").write_text("other.png\n")
    with pytest.raises(DataError, match="b.txt: names none of the 6 images of the table, such as '000.png'; correct"):
        read(root, test="b.txt")
    (root / "b.csv").write_text("image,label\nother.png,a\n")
    assert set(read(root, test="b.csv")) == {"train"} and "data.test=b.csv has no effect" in caplog.text
    (root / "b.csv").write_text("image,label\n001.png,a\n")
    assert read(root, test="b.csv")["test"] == ["001.png"]


def test_a_list_names_images_of_equal_names_by_their_folders(class_folders):
    root = class_folders({"a": 3, "b": 3})
    names = [f"{folder}/{i:03}.png" for folder in "ab" for i in range(3)]
    (root / "t.csv").write_text("image,label\n" + "".join(f"{name},{name[0]}\n" for name in names))
    (root / "test.txt").write_text("images/a/000.png\nb/001.png\n")
    found = table(root / "t.csv", test="test.txt", fractions=(1, 0, 0)).split_lists()["test"]
    assert found == [("a/000.png", "a"), ("b/001.png", "b")]
    (root / "test.txt").write_text("000.png\n")
    with pytest.raises(DataError, match="line 1: '000.png' is the name of several images of the table"):
        table(root / "t.csv", test="test.txt")


def test_the_list_of_attributes_of_celeba(root):
    values = ["-1  1", " 1 -1", " 1  1", "-1 -1", " 1 -1", "-1  1"]
    rows = [f"{name} {each}" for name, each in zip(NAMES, values, strict=True)]
    (root / "list_attr_celeba.txt").write_text("\n".join(["6", "Male Smiling ", *rows]))
    (root / "list_eval_partition.txt").write_text("\n".join(f"{name} {i // 2}" for i, name in enumerate(NAMES)))
    options = {"root": root / "images", "split": "list_eval_partition.txt"}
    with pytest.raises(DataError, match=r"one in each column of 0 and 1: 'data.label=\[Male,Smiling\]'"):
        table(root / "list_attr_celeba.txt", **options)
    found = table(root / "list_attr_celeba.txt", label=["Male", "Smiling"], **options).split_lists()
    assert found == {"train": [("000.png", "Smiling"), ("001.png", "Male")],
                     "val": [("002.png", "Male|Smiling"), ("003.png", "")],
                     "test": [("004.png", "Male"), ("005.png", "Smiling")]}
