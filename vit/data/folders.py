"""Folders of image files: one folder per class, with or without train/val/test above."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vit.data.decode import EXTENSIONS, printable
from vit.data.source import DataError, Source, Split, file_split, three_ways, with_validation

SPLIT_NAMES = {"train": ("train", "training"), "val": ("val", "valid", "validation"), "test": ("test", "testing")}


def folder(root: str | Path, fractions: Sequence[float] = (0.8, 0.1, 0.1), split_seed: int = 0) -> Source:
    """Images under root/CLASS, or root/train/CLASS, root/val/CLASS, root/test/CLASS.

    Without split folders all is split by `fractions` (train, val, test; stratified); with train but no val, val is
    split off train. Classes of val and test are matched by name to those of train. Files that are no images are listed
    in `left_out`.
    """
    root = Path(root).expanduser()
    if not root.is_dir():
        raise FileNotFoundError(
            f"data.root: the folder {root} does not exist; it must hold one folder of images per class"
        )
    left_out: list[tuple[str, str]] = []
    places = _split_folders(root)
    if "train" not in places:
        classes = _class_names(root, root, left_out)
        return Source(
            root.resolve().name,
            classes,
            three_ways(_read(root, root, classes, left_out), fractions, split_seed),
            left_out,
        )
    _list_strangers(root, set(places.values()), left_out)
    classes = _class_names(root, places["train"], left_out)
    splits = {}
    for key, place in places.items():
        _match(classes, _class_names(root, place, left_out) if key != "train" else classes, place)
        splits[key] = _read(root, place, classes, left_out)
        if len(splits[key]) == 0 and key != "train":
            raise DataError(f"{place}: the {key} folder has 0 images; add images or remove the folder")
    share = fractions[1] / max(fractions[0] + fractions[1], 1e-9)
    return Source(root.resolve().name, classes, with_validation(splits, None, share, split_seed), left_out)


def _split_folders(root: Path) -> dict[str, Path]:
    """Split → folder, as far as there; a class may be called "train": it holds files, a split holds folders."""
    found = {}
    for key, names in SPLIT_NAMES.items():
        there = [root / n for n in names if (root / n).is_dir() and any(p.is_dir() for p in (root / n).iterdir())]
        if len(there) > 1:
            raise DataError(f"{root}: both {there[0].name} and {there[1].name} are there, keep one of them for {key}")
        if there:
            found[key] = there[0]
    if found and "train" not in found:
        raise DataError(
            f"{root}: has {', '.join(p.name for p in found.values())} but no train folder; add train/CLASS/*.jpg"
        )
    return found


def _class_names(root: Path, place: Path, left_out: list[tuple[str, str]]) -> list[str]:
    names = []
    for entry in sorted(place.iterdir()):
        relative = str(entry.relative_to(root))
        if entry.name.startswith("."):
            left_out.append((relative, "hidden"))
        elif entry.is_dir():
            names.append(entry.name)
        elif place != root or entry.suffix.lower() in EXTENSIONS:
            left_out.append((relative, "outside any class folder"))
    if not names:
        raise DataError(f"{place}: holds no class folders; expected one folder of images per class")
    return names


def _list_strangers(root: Path, known: set[Path], left_out: list[tuple[str, str]]) -> None:
    for entry in sorted(root.iterdir()):
        if entry not in known and (entry.is_dir() or entry.suffix.lower() in EXTENSIONS):
            left_out.append((entry.name, "hidden" if entry.name.startswith(".") else "beside the split folders"))


def _match(classes: list[str], found: list[str], place: Path) -> None:
    unknown = [c for c in found if c not in set(classes)]
    if unknown:
        raise DataError(
            f"{place}: {len(unknown)} of its {len(found)} classes are not among the {len(classes)} of train "
            f"({', '.join(map(printable, unknown[:5]))}); rename or remove the folders, or add training images"
        )


def _read(root: Path, place: Path, classes: list[str], left_out: list[tuple[str, str]]) -> Split:
    names: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        found = images_below(root, place / name, left_out)
        names += found
        labels += [label] * len(found)
    return file_split(root, names, np.array(labels, dtype=np.int64))


def images_below(root: Path, place: Path, left_out: list[tuple[str, str]]) -> list[str]:
    """Paths, relative to `root`, of the image files in a folder and below it, sorted; others are listed as left out."""
    found = []
    for directory, subfolders, files in os.walk(place, followlinks=True):
        left_out += [
            (os.path.relpath(os.path.join(directory, d), root), "hidden") for d in subfolders if d.startswith(".")
        ]
        subfolders[:] = sorted(d for d in subfolders if not d.startswith("."))
        for file in sorted(files):
            relative = os.path.relpath(os.path.join(directory, file), root)
            if file.startswith("."):
                left_out.append((relative, "hidden"))
            elif os.path.splitext(file)[1].lower() not in EXTENSIONS:
                left_out.append((relative, "no image extension"))
            else:
                found.append(relative)
    return found
