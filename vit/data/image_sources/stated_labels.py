"""Validation images that are not in class folders, with their classes in a file: TinyImageNet and ImageNet."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

import numpy as np

from vit.data.errors import DataError, printable
from vit.data.formats.matlab import read_matlab
from vit.data.formats.zip_archives import Archive, is_hidden, read_entry
from vit.data.image_sources.files import is_image_name
from vit.data.splits.names import match_splits
from vit.messages import agree, number_of, on_one_line

TINY, KAGGLE = "val_annotations.txt", "LOC_val_solution.csv"
NUMBERS, NAMES = "ILSVRC2012_validation_ground_truth.txt", "meta.mat"  # of the development kit
KIT = "ILSVRC2012_devkit_t12/data"
IMAGENET = re.compile(r"ILSVRC2012_val_\d{8}")


@dataclass(frozen=True)
class StatedLabels:
    """Classes of validation images that a file states.

    Args:
        file: the file.
        val: the folder of the validation split, below the root.
        inner: the subfolder of `val` with the images; "" for `val` itself.
        classes: name of an image without suffix → its class.
        unlabelled: a folder of images without labels.
    """

    file: Path | Archive
    val: str
    inner: str
    classes: dict[str, str]
    unlabelled: str | None = None

    @property
    def folder(self) -> str:
        """The folder of the images, as a path below the root."""
        return os.path.join(self.val, self.inner) if self.inner else self.val

    def select(
        self, names: Sequence[str], classes: Sequence[str]
    ) -> tuple[list[str], np.ndarray, list[tuple[str, str]]]:
        """The images out of `names` that have a label, their labels (N,), and (name, reason) of all others.

        Raises:
            DataError: no image has a label, or a label is not among `classes`.
        """
        index = {name: label for label, name in enumerate(classes)}
        stems = {name: PurePath(name).stem for name in names}
        found = [name for name in names if stems[name] in self.classes]
        if not found:
            raise DataError(f"{self.file}: names none of the {number_of(len(names), 'image')} in {self.folder}; unpack "
                            "the data set again")
        unknown = sorted({self.classes[stems[name]] for name in found} - index.keys())
        if unknown:
            listed = ", ".join(map(printable, unknown[:5]))
            raise DataError(f"{self.file}: {number_of(len(unknown), 'class')} of images in {self.folder} "
                            f"{agree(len(unknown), 'is', 'are')} not among the {len(classes)} of train ({listed}); add "
                            "their training images, or remove these images")
        reason = f"without a label in {self.file.name}"
        left_out = [(name, reason) for name in names if stems[name] not in self.classes]
        missing = sorted(self.classes.keys() - set(stems.values()))
        left_out += [(os.path.join(self.folder, name), "the file does not exist") for name in missing]
        return found, np.array([index[self.classes[stems[name]]] for name in found], dtype=np.int64), left_out


def stated_labels(root: Path | Archive, directories: dict[str, str]) -> StatedLabels | None:
    """The labels of the validation images, if these are not in class folders and a known file states them.

    Args:
        directories: the splits whose folders contain folders, and the names of these.

    Raises:
        DataError: the file is damaged or incomplete.
    """
    if "val" in directories:
        return _tiny_imagenet(root, directories["val"], directories.get("test"))
    val = match_splits(root, [entry.name for entry in root.iterdir() if entry.is_dir()]).get("val")
    return _imagenet(root, val) if val and is_imagenet(root / val) else None


def is_imagenet(folder: Path | Archive) -> bool:
    """Whether all images directly in a folder have the names of ImageNet's validation images."""
    images = [entry.name for entry in folder.iterdir() if is_image_name(entry.name)]
    return bool(images) and all(IMAGENET.fullmatch(PurePath(name).stem) for name in images)


def _tiny_imagenet(root: Path | Archive, val: str, test: str | None) -> StatedLabels | None:
    """The labels in val/val_annotations.txt of val/images; None if the images have been moved to class folders.

    The images in test/images have no labels.
    """
    file = root / val / TINY
    if not file.is_file() or _folders(root / val) != ["images"]:
        return None
    rows = [line.split("\t") for line in _lines(file)]
    wrong = next((i for i, row in enumerate(rows) if len(row) < 2 or not all(row[:2])), None)
    if wrong is not None:
        raise DataError(f"{file} line {wrong + 1}: is {rows[wrong][0]!r}, expected a file name, a tab and a class")
    unlabelled = test if test is not None and _folders(root / test) == ["images"] else None
    return StatedLabels(file, val, "images", {PurePath(row[0]).stem: row[1] for row in rows}, unlabelled)


def _imagenet(root: Path | Archive, val: str) -> StatedLabels | None:
    """The labels in Kaggle's LOC_val_solution.csv, or in ILSVRC2012_validation_ground_truth.txt of the development kit;
    None if there is neither file.

    The latter numbers the classes by ILSVRC2012_ID, and meta.mat beside it names them.
    """
    top = root.resolve()
    folders = [root, root / val, root / KIT, top.parent / KIT]
    if str(top).replace("\\", "/").rstrip("/").endswith("ILSVRC/Data/CLS-LOC"):  # the folders of Kaggle's archive
        folders.append(top.parent.parent.parent)
    for name, read in ((KAGGLE, _kaggle_classes), (NUMBERS, _kit_classes)):
        for folder in folders:
            if (folder / name).is_file():
                return StatedLabels(folder / name, val, "", read(folder / name))
    return None


def _folders(folder: Path | Archive) -> list[str]:
    return [entry.name for entry in folder.iterdir() if entry.is_dir() and not is_hidden(entry.name)]


def _kaggle_classes(file: Path | Archive) -> dict[str, str]:
    """Image name -> class, from lines such as `ILSVRC2012_val_00048981,n03995372 85 1 499 272` with boxes of one class.
    """
    rows = [line.partition(",") for line in _lines(file)[1:]]
    wrong = next((i for i, (name, _, boxes) in enumerate(rows) if not name or not boxes.strip()), None)
    if wrong is not None:
        raise DataError(f"{file} line {wrong + 2}: expected an image, a comma, a class and a box")
    return {name: boxes.split()[0] for name, _, boxes in rows}


def _kit_classes(file: Path | Archive) -> dict[str, str]:
    meta = file.parent / NAMES
    if not meta.is_file():
        raise DataError(f"{file}: numbers the classes by ILSVRC2012_ID, and {NAMES} of the development kit, which "
                        "names their folders, is not beside it; put it there")
    synsets = read_matlab(meta, ("synsets",))["synsets"]
    try:
        names = {int(number): str(name) for number, name in zip(synsets["ILSVRC2012_ID"], synsets["WNID"], strict=True)}
    except (IndexError, TypeError, ValueError) as error:  # it is another struct
        raise DataError(f"{meta}: cannot be read ({on_one_line(error)}); unpack it again") from error
    found = {}
    for number, line in enumerate(_lines(file), 1):
        if not line.strip().isdecimal() or int(line) not in names:
            raise DataError(f"{file} line {number}: {line!r} is not one of the {number_of(len(names), 'class')} of "
                            f"{NAMES}")
        found[f"ILSVRC2012_val_{number:08}"] = names[int(line)]
    return found


def _lines(file: Path | Archive) -> list[str]:
    try:
        return read_entry(file).decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read ({error}); unpack it again") from error
