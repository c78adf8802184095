"""The lists of the classification task of Pascal VOC: for each class and split, whether an image shows the class."""

import logging
from pathlib import Path

from vit.data.errors import DataError
from vit.data.formats.delimited import read_lines
from vit.data.image_sources.table_files import Content
from vit.messages import agree, number_of

log = logging.getLogger("vit")

ABSENT, DIFFICULT, PRESENT = "-1", "0", "1"


def pascal_voc(folder: Path) -> Content:
    """The images of ImageSets/Main with the classes that they show. Those of which an image has difficult objects alone
    (0) are present, with a warning, since Pascal VOC leaves the image out of the evaluation of this class.

    Raises:
        DataError: a list is damaged, or names other images than those of another class.
    """
    lists = folder / "ImageSets" / "Main"
    classes = sorted(file.name.removesuffix("_train.txt") for file in lists.glob("*_train.txt"))
    if not classes:
        raise DataError(f"{lists}: has no lists of classes, such as aeroplane_train.txt; unpack the data set again")
    labels: dict[str, list[str]] = {}
    split_of: dict[str, str] = {}
    difficult = 0
    for part in ("train", "val", "test"):
        files = {name: file for name in classes if (file := lists / f"{name}_{part}.txt").is_file()}
        if not files:  # the test images of later years have no labels
            continue
        found = {name: _signs(files[name]) if name in files else {} for name in classes}
        images = found[classes[0]]
        for name, signs in found.items():
            if signs.keys() != images.keys():
                raise DataError(f"{lists / f'{name}_{part}.txt'}: does not have the images of {classes[0]}_{part}.txt; "
                                "unpack the data set again")
        if (twice := next((image for image in images if image in split_of), None)) is not None:
            raise DataError(f"{lists}: the image {twice} is in the lists of {split_of[twice]} and {part}; unpack the "
                            "data set again")
        split_of.update(dict.fromkeys(images, part))
        difficult += sum(sign == DIFFICULT for signs in found.values() for sign in signs.values())
        for image in images:
            labels[image] = [name for name in classes if found[name][image] != ABSENT]
    if difficult:
        log.warning("%s: %s, of which an image has difficult objects alone (0), %s read as present; Pascal VOC leaves "
                    "them out of its evaluation, so that its mAP differs", lists, number_of(difficult, "label"),
                    agree(difficult, "is", "are"))
    files = [f"{image}.jpg" for image in labels]
    return {"image": files, "label": list(labels.values()), "split": list(split_of.values())}, {"label": classes}


def _signs(file: Path) -> dict[str, str]:
    """-1, 0 or 1 of each image.

    Raises:
        DataError: a line has another value.
    """
    rows = [(number, line.split()) for number, line in enumerate(read_lines(file), 1) if line.strip()]
    for number, row in rows:
        if len(row) != 2 or row[1] not in (ABSENT, DIFFICULT, PRESENT):
            raise DataError(f"{file} line {number}: is {' '.join(row)!r}, expected an image and -1, 0 or 1; unpack the "
                            "data set again")
    return {image: sign for _, (image, sign) in rows}
