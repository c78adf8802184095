"""The lists of the classification task of Pascal VOC, with 1, -1, and 0 for difficult objects."""

from xml.etree.ElementTree import parse

import pytest
from torchvision import datasets

from vit.data import DataError, folder, table

CLASSES = ["aeroplane", "bicycle", "person"]
# image -> its objects, and whether they are difficult
OBJECTS = {"000": {"person": [0, 1]}, "001": {"bicycle": [0], "person": [0]}, "002": {"aeroplane": [0], "person": [1]},
           "003": {}, "004": {"bicycle": [1, 1]}, "005": {"aeroplane": [0], "bicycle": [0]}}
PARTS = {"train": ("001", "002", "003", "005"), "val": ("000",), "test": ("004",)}


@pytest.fixture
def root(class_folders):
    root = class_folders({"VOCdevkit/VOC2007/JPEGImages": len(OBJECTS)}) / "VOCdevkit/VOC2007"
    for file in (root / "JPEGImages").iterdir():
        file.rename(file.with_suffix(".jpg"))
    (root / "ImageSets/Main").mkdir(parents=True)
    (root / "Annotations").mkdir()
    for image, objects in OBJECTS.items():
        inner = "".join(f"<object><name>{name}</name><difficult>{flag}</difficult></object>"
                        for name, flags in objects.items() for flag in flags)
        (root / f"Annotations/{image}.xml").write_text(f"<annotation><filename>{image}.jpg</filename>{inner}"
                                                       "</annotation>")
    for part, images in {**PARTS, "trainval": (*PARTS["train"], *PARTS["val"])}.items():
        (root / f"ImageSets/Main/{part}.txt").write_text("".join(f"{image}\n" for image in images))
        for name in CLASSES:
            lines = "".join(f"{image} {sign(OBJECTS[image].get(name)):2}\n" for image in images)
            (root / f"ImageSets/Main/{name}_{part}.txt").write_text(lines)
    return root


def sign(flags):
    return -1 if flags is None else 0 if all(flags) else 1


def labels(split):
    return {name: label.split("|") if label else [] for name, label in split}


def test_the_lists_have_the_labels_of_the_annotations_of_torchvision(root, caplog):
    source = table(root)
    assert source.classes == CLASSES
    assert "2 labels, of which an image has difficult objects alone (0), are read as present" in caplog.text
    for part, samples in source.split_lists().items():
        other = datasets.VOCDetection(root.parent.parent, "2007", part)
        annotations = [other.parse_voc_xml(parse(file).getroot()) for file in other.annotations]
        assert labels(samples) == {each["annotation"]["filename"]: sorted({
            item["name"] for item in each["annotation"].get("object", [])}) for each in annotations}


def test_later_years_have_no_labels_of_test(root):
    for name in CLASSES:
        (root / f"ImageSets/Main/{name}_test.txt").unlink()
    assert set(table(root).splits) == {"train", "val"}


def test_other_paths_name_the_folder_of_the_lists(root):
    for read, path in ((folder, root), (folder, root.parent), (table, root / "ImageSets/Main"), (table, root.parent)):
        with pytest.raises(DataError, match=f"Pascal VOC with its splits is read by data=table data.path={root}"):
            read(path)


@pytest.mark.parametrize(("file", "content", "message"), [
    ("person_train.txt", "001 2\n", "person_train.txt line 1: is '001 2', expected an image and -1, 0 or 1"),
    ("person_train.txt", "001 1\n", "person_train.txt: does not have the images of aeroplane_train.txt"),
    ("aeroplane_val.txt", "001 1\n", "bicycle_val.txt: does not have the images of aeroplane_val.txt"),
])
def test_damaged_lists_are_errors(root, file, content, message):
    (root / "ImageSets/Main" / file).write_text(content)
    with pytest.raises(DataError, match=message):
        table(root)


def test_an_image_in_two_splits_is_an_error(root):
    for name in CLASSES:
        (root / f"ImageSets/Main/{name}_test.txt").write_text("001 1\n")
    with pytest.raises(DataError, match="the image 001 is in the lists of train and test"):
        table(root)
