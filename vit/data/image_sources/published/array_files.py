"""SVHN (cropped digits) and STL-10: arrays of images and labels in files of a split each."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from vit.data.errors import DataError
from vit.data.formats.delimited import read_lines
from vit.data.formats.matlab import read_matlab
from vit.files.machine import total_memory
from vit.files.untrusted import read_bytes
from vit.messages import number_of

SVHN = "{}_32x32.mat"
STL10 = ("{}_X.bin", "{}_y.bin")
SIZE = 96  # pixels of images of STL-10


@dataclass(frozen=True)
class Arrays:
    """`train_images` and `train_labels` (likewise `test_`) by name, and the class names that the labels
    index.
    """

    arrays: dict[str, np.ndarray]
    classes: list[str]
    left_out: list[tuple[str, str]] = field(default_factory=list)


def svhn(folder: Path) -> Arrays:
    """The digits of train_32x32.mat and test_32x32.mat, where 10 is the label of the digit 0. The further training
    images of extra_32x32.mat are left out.

    Raises:
        DataError: a file is damaged, or a label is not 1 to 10.
    """
    arrays = {}
    for part in ("train", "test"):
        file = folder / SVHN.format(part)
        found = read_matlab(file, ("X", "y"), total_memory() // 4)
        images, labels = np.asarray(found["X"]), np.atleast_1d(found["y"])
        if images.shape[:3] != (32, 32, 3) or not np.isin(labels, range(1, 11)).all():
            raise DataError(f"{file}: has images {images.shape} and labels {labels.min()} to {labels.max()}, expected "
                            "(32, 32, 3, N) and 1 to 10; unpack it again")
        pixels = images.reshape(32, 32, 3, -1).transpose(3, 0, 1, 2)
        arrays |= {f"{part}_images": np.ascontiguousarray(pixels), f"{part}_labels": labels.astype(np.int64) % 10}
    extra = SVHN.format("extra")
    left_out = [(extra, "further training images")] if (folder / extra).is_file() else []
    return Arrays(arrays, [str(digit) for digit in range(10)], left_out)


def stl10(folder: Path) -> Arrays:
    """The labelled images of STL-10 (stl10_binary); those of unlabeled_X.bin are left out.

    Raises:
        DataError: a file is damaged, or a label is not the number of a class from 1.
    """
    classes = [name for line in read_lines(folder / "class_names.txt") if (name := line.strip())]
    arrays = {}
    for part in ("train", "test"):
        files = [folder / name.format(part) for name in STL10]
        images, labels = (np.frombuffer(read_bytes(file), np.uint8) for file in files)
        if len(images) != 3 * SIZE**2 * len(labels):
            raise DataError(f"{files[0]}: has {len(images)} bytes, but {number_of(len(labels), 'label')} in "
                            f"{files[1].name} need {3 * SIZE**2 * len(labels)}; unpack it again")
        if len(labels) and not 1 <= labels.min() <= labels.max() <= len(classes):
            raise DataError(f"{files[1]}: has labels {labels.min()} to {labels.max()}, expected 1 to {len(classes)}; "
                            "unpack it again")
        pixels = images.reshape(-1, 3, SIZE, SIZE).transpose(0, 3, 2, 1)  # each channel is stored by columns
        arrays |= {f"{part}_images": np.ascontiguousarray(pixels), f"{part}_labels": labels.astype(np.int64) - 1}
    other = "unlabeled_X.bin"
    return Arrays(arrays, classes, [(other, "images without labels")] if (folder / other).is_file() else [])
