"""The lists of FGVC-Aircraft, in which names of classes contain blanks."""

import pytest
from torchvision import datasets

from vit.data import DataError, folder, table

VARIANTS = {"Boeing 717": "Boeing 717", "707-320": "Boeing 707", "F/A-18": "F/A-18"}  # with their families
PARTS = {"train": range(6), "val": range(6, 9), "test": range(9, 12)}


@pytest.fixture
def root(class_folders):
    root = class_folders({"fgvc-aircraft-2013b/data/images": 12}) / "fgvc-aircraft-2013b/data"
    for file in (root / "images").iterdir():
        file.rename(file.with_suffix(".jpg"))
    names = list(VARIANTS)
    for part, numbers in PARTS.items():
        (root / f"images_{part}.txt").write_text("".join(f"{i:03}\n" for i in numbers))
        for level, name_of in (("variant", lambda name: name), ("family", VARIANTS.get)):
            lines = "".join(f"{i:03} {name_of(names[i % 3])}\n" for i in numbers)
            (root / f"images_{level}_{part}.txt").write_text(lines)
    (root / "variants.txt").write_text("".join(f"{name}\n" for name in names))
    (root / "families.txt").write_text("Boeing 707\nBoeing 717\nF/A-18\n")
    (root / "images_box.txt").write_text("000 1 2 3 4\n")
    return root


@pytest.mark.parametrize(("level", "options"), [("variant", {}), ("family", {"label": "family"})])
def test_the_lists_as_torchvision_reads_them(root, level, options, caplog):
    source = table(root, **options)
    assert not caplog.text
    for part, samples in source.split_lists().items():
        other = datasets.FGVCAircraft(root.parent.parent, part, level)
        assert source.classes == other.classes
        pairs = [(file.rsplit("/", 1)[1], other.classes[label])
                 for file, label in zip(other._image_files, other._labels, strict=True)]
        assert sorted(samples) == sorted(pairs)


def test_other_paths_name_the_folder_of_the_lists(root):
    for read, path in ((folder, root), (folder, root.parent), (table, root.parent), (folder, root / "images")):
        with pytest.raises(DataError, match=f"FGVC-Aircraft with its splits is read by data=table data.path={root}"):
            read(path)


@pytest.mark.parametrize(("file", "content", "message"), [
    ("images_variant_train.txt", "000\n", "train.txt line 1: is '000', expected an image, a blank and a class"),
    ("images_variant_val.txt", "000 707-320\n", "val.txt: the image 000 is also in the list of train"),
    ("images_family_val.txt", "006 Boeing 707\n", r"the lists images_family_\*.txt lack the image 007"),
    ("variants.txt", "707-320\nBoeing 717\n", "class 'F/A-18' is not among the 2 known classes"),
])
def test_damaged_lists_are_errors(root, file, content, message):
    (root / file).write_text(content)
    with pytest.raises(DataError, match=message):
        table(root)


def test_other_splits_of_a_level_are_an_error(root):
    val, test = (root / f"images_family_{part}.txt" for part in ("val", "test"))
    swapped = val.read_text(), test.read_text()
    test.write_text(swapped[0])
    val.write_text(swapped[1])
    with pytest.raises(DataError, match=r"the lists images_family_\*.txt have the image 006 in test, which images_"
                                        "variant_val.txt has"):
        table(root)


def test_stated_tables_of_commas_are_read_as_before(root):
    for part in PARTS:
        file = root / f"images_variant_{part}.txt"
        file.write_text("\n".join(line.replace(" ", ",", 1) for line in file.read_text().splitlines()))
    source = table(root, root=root / "images", image=0, label=1,
                   **{part: f"images_variant_{part}.txt" for part in PARTS})
    assert source.classes == sorted(VARIANTS)
