"""The layout of CUB-200-2011 and NABirds: lists that number the images and state the class and split of each number."""

from collections import Counter
from pathlib import Path

from vit.data.errors import DataError
from vit.data.formats.delimited import read_lines
from vit.data.image_sources.table_files import Content

IMAGES, LABELS, SPLITS, CLASSES = "images.txt", "image_class_labels.txt", "train_test_split.txt", "classes.txt"


def numbered_images(folder: Path) -> Content:
    """The images, which are below its folder images, as the columns image, label and split. The classes are named by
    classes.txt; classes of one name, as NABirds may have, by their number too.

    Raises:
        DataError: a list is damaged, or lacks an image or class.
    """
    images, labels, splits = (_pairs(folder / name) for name in (IMAGES, LABELS, SPLITS))
    names = _pairs(folder / CLASSES) if (folder / CLASSES).is_file() else {number: number for number in labels.values()}
    for file, found, needed in ((LABELS, labels, images), (SPLITS, splits, images), (CLASSES, names, labels.values())):
        if (missing := next((number for number in needed if number not in found), None)) is not None:
            raise DataError(f"{folder / file}: does not have the number {missing}; unpack the data set again")
    wrong = next((number for number in images if splits[number] not in ("0", "1")), None)
    if wrong is not None:
        raise DataError(f"{folder / SPLITS}: number {wrong} has {splits[wrong]!r}, expected 1 for train or 0 for test")
    used = Counter(names[number] for number in {*labels.values()})
    named = {number: name if used[name] < 2 else f"{name} ({number})" for number, name in names.items()}
    return {"image": list(images.values()), "label": [named[labels[number]] for number in images],
            "split": ["train" if splits[number] == "1" else "test" for number in images]}, {}


def _pairs(file: Path) -> dict[str, str]:
    """The rest of each line by its first word, such as the number of an image."""
    found: dict[str, str] = {}
    for number, line in enumerate(read_lines(file), 1):
        key, _, rest = line.strip().partition(" ")
        if not key:
            continue
        if not rest.strip() or key in found:
            fault = f"has {key} again" if key in found else f"is {line.strip()!r}, expected a number and a value"
            raise DataError(f"{file} line {number}: {fault}; unpack the data set again")
        found[key] = rest.strip()
    return found
