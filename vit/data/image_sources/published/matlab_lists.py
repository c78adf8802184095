"""The MATLAB lists of Flowers-102, Stanford Cars and Stanford Dogs, in which numbers of classes begin with 1."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vit.data.errors import DataError
from vit.data.formats.matlab import read_matlab
from vit.data.image_sources.table_files import Content
from vit.messages import number_of

log = logging.getLogger("vit")

CARS, CARS_TEST, CARS_NAMES = "devkit/cars_train_annos.mat", "cars_test_annos_withlabels.mat", "devkit/cars_meta.mat"
PARTS = {"trnid": "train", "valid": "val", "tstid": "test"}  # of setid.mat


def flowers_102(folder: Path) -> Content:
    """The images jpg/image_00001.jpg, ... of Flowers-102, whose classes in imagelabels.mat have numbers alone, by the
    splits in setid.mat.

    Raises:
        DataError: a list is damaged, or an image is in no split or in two.
    """
    labels = np.atleast_1d(read_matlab(folder / "imagelabels.mat", ("labels",))["labels"])
    ids = read_matlab(folder / "setid.mat", tuple(PARTS))
    split_of: dict[int, str] = {}
    for name, part in PARTS.items():
        for number in np.atleast_1d(ids[name]).tolist():
            if not 1 <= number <= len(labels) or split_of.setdefault(number, part) != part:
                fault = f"is not one of 1 to {len(labels)}" if number not in split_of else "is in two splits"
                raise DataError(f"{folder / 'setid.mat'}: the image {number} {fault}; unpack the data set again")
    classes = [str(number) for number in range(1, int(labels.max()) + 1)]
    numbers = sorted(split_of)
    return _columns(folder / "imagelabels.mat", [f"image_{number:05}.jpg" for number in numbers],
                    labels[np.array(numbers) - 1].tolist(), [split_of[number] for number in numbers], classes)


def stanford_cars(folder: Path) -> Content:
    """The images of Stanford Cars in cars_train and cars_test, with the names of the classes in devkit/cars_meta.mat.

    The test images, whose labels are in a file of their own, are left out without it, with a warning.

    Raises:
        DataError: a list is damaged.
    """
    classes = [str(name) for name in np.atleast_1d(read_matlab(folder / CARS_NAMES, ("class_names",))["class_names"])]
    images, numbers, splits = _annotations(folder / CARS, "cars_train", "train")
    stated = next((file for file in (folder / CARS_TEST, folder / "devkit" / CARS_TEST) if file.is_file()), None)
    if stated is None:
        log.warning("%s: has no %s with the labels of the test images, which are left out", folder, CARS_TEST)
    else:
        found = _annotations(stated, "cars_test", "test")
        images, numbers, splits = images + found[0], numbers + found[1], splits + found[2]
    return _columns(folder / CARS, images, numbers, splits, classes)


def stanford_dogs(folder: Path) -> Content:
    """The images of Stanford Dogs in a folder per class below Images, by the splits in train_list.mat and
    test_list.mat.

    Raises:
        DataError: a list is damaged, or its labels do not agree with the folders.
    """
    images: list[str] = []
    numbers: list[int] = []
    splits: list[str] = []
    for part in ("train", "test"):
        found = read_matlab(folder / f"{part}_list.mat", ("file_list", "labels"))
        images += map(str, np.atleast_1d(found["file_list"]).tolist())
        numbers += np.atleast_1d(found["labels"]).tolist()
        splits += [part] * (len(images) - len(splits))
    name_of: dict[int, str] = {}
    for image, number in zip(images, numbers, strict=False):
        name = image.rpartition("/")[0]
        if name_of.setdefault(number, name) != name:
            raise DataError(f"{folder / 'train_list.mat'}: class {number} has the folders {name_of[number]} and {name};"
                            " unpack the data set again")
    classes = [name_of.get(number, str(number)) for number in range(1, max(name_of) + 1)]
    return _columns(folder / "train_list.mat", images, numbers, splits, classes)


def _annotations(file: Path, images: str, part: str) -> tuple[list[str], list[int], list[str]]:
    """The image files, the numbers of their classes and the split of each row of a list of Stanford Cars."""
    rows = np.atleast_1d(read_matlab(file, ("annotations",))["annotations"])
    if not {"fname", "class"} <= {*(rows.dtype.names or ())}:
        raise DataError(f"{file}: its annotations lack fname or class; unpack it again")
    return [f"{images}/{name}" for name in rows["fname"]], rows["class"].tolist(), [part] * len(rows)


def _columns(
    file: Path, images: Sequence[str], numbers: Sequence[Any], splits: Sequence[str], classes: list[str]
) -> Content:
    """The columns, with indices of the classes for their numbers from 1."""
    wrong = next((number for number in numbers if number not in range(1, len(classes) + 1)), None)
    if len(numbers) != len(images) or wrong is not None:
        fault = f"class {wrong} is not one of 1 to {len(classes)}" if wrong is not None else (
            f"has {number_of(len(images), 'image')}, but {number_of(len(numbers), 'label')}")
        raise DataError(f"{file}: {fault}; unpack the data set again")
    return {"image": list(images), "label": [int(number) - 1 for number in numbers], "split": list(splits)}, {
        "label": classes}
