"""The lists of CUB-200-2011, which number the images and state the class and split of each number."""

import pytest

from vit.data import DataError, folder, table

CLASSES = ("001.Laysan_Albatross", "002.Bobolink")
FILES = [f"{name}/{i:03}.png" for name in CLASSES for i in range(4)]


def lists(root):
    """The lists, whose lines are not in the order of the numbers."""
    rows = list(enumerate(FILES, 1))
    for name, value in (("images.txt", lambda number, file: file),
                        ("image_class_labels.txt", lambda number, file: 1 + CLASSES.index(file.split("/")[0])),
                        ("train_test_split.txt", lambda number, file: int(number % 4 < 3))):
        rows = rows[3:] + rows[:3]
        (root / name).write_text("".join(f"{number} {value(number, file)}\n" for number, file in rows))
    (root / "classes.txt").write_text("".join(f"{i} {name}\n" for i, name in enumerate(CLASSES, 1)))


@pytest.fixture
def root(class_folders):
    root = class_folders({f"images/{name}": 4 for name in CLASSES})
    lists(root)
    return root


def test_the_published_splits_and_classes(root, caplog):
    source = table(root, fractions=(1, 0, 0))
    assert source.classes == list(CLASSES) and not caplog.text
    found = {key: sorted(split) for key, split in source.split_lists().items()}
    assert found == {"train": [(file, file.split("/")[0]) for i, file in enumerate(FILES, 1) if i % 4 < 3],
                     "test": [(file, file.split("/")[0]) for i, file in enumerate(FILES, 1) if i % 4 == 3]}
    (root / "classes.txt").unlink()
    assert table(root, fractions=(1, 0, 0)).classes == ["1", "2"]


def test_class_folders_beside_the_lists_recommend_them(root, caplog):
    folder(root / "images")
    assert f"split.txt states splits of the images and is not used; to use it, set data=table data.path={root}" in (
        caplog.text)


def test_classes_of_one_name_have_their_number_too(root):
    (root / "classes.txt").write_text("0 Bobolink\n1 Bobolink\n2 Bobolink\n")
    assert table(root, fractions=(1, 0, 0)).classes == ["Bobolink (1)", "Bobolink (2)"]


@pytest.mark.parametrize(("name", "content", "message"), [
    ("train_test_split.txt", "1 1\n", "train_test_split.txt: does not have the number"),
    ("train_test_split.txt", "1 1\n2\n", "train_test_split.txt line 2: is '2', expected a number and a value"),
    ("image_class_labels.txt", "1 1\n1 2\n", "image_class_labels.txt line 2: has 1 again"),
    ("classes.txt", "1 a\n", "classes.txt: does not have the number 2"),
    ("train_test_split.txt", "".join(f"{i} 2\n" for i in range(1, 9)), "has '2', expected 1 for train or 0 for test"),
])
def test_damaged_lists_are_errors(root, name, content, message):
    (root / name).write_text(content)
    with pytest.raises(DataError, match=message):
        table(root)


def test_tables_of_splits_in_the_folder_are_read_as_before(root):
    for part, files in (("train", FILES[::2]), ("test", FILES[1::2])):
        (root / f"{part}.csv").write_text("image,label\n" + "".join(f"images/{file},{file[:3]}\n" for file in files))
    assert table(root, fractions=(1, 0, 0)).classes == ["001", "002"]
