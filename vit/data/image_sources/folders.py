"""Image folders: one folder per class, optionally in folders for train, val and test."""

import logging
import os
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vit.data.class_names import warn_about_similar_names
from vit.data.errors import DataError, printable
from vit.data.formats.lines import lone_surrogate
from vit.data.formats.zip_archives import Archive, ReadMember, is_archive, is_hidden, open_archive
from vit.data.identity import to_nfc
from vit.data.image_sources.annotation_folders import check_no_annotations
from vit.data.image_sources.files import ImageFiles, image_files, summary
from vit.data.image_sources.folder_hints import (
    archived_splits,
    classes_in_names,
    deeper_classes,
    inner_classes,
    inner_folders,
    other_source,
    other_splits,
    unread_table,
)
from vit.data.image_sources.published.layouts import layout_hint
from vit.data.image_sources.split_lists import lists_beside_folder
from vit.data.image_sources.stated_labels import KAGGLE, KIT, is_imagenet, stated_labels
from vit.data.sample_names import PackedStrings
from vit.data.source import Source
from vit.data.splits.names import is_split_name, match_splits, similar_splits, split_of
from vit.data.splits.split import Split, file_split
from vit.data.splits.splitting import three_ways, validation_fraction, with_validation
from vit.data.threads import StageProgress
from vit.messages import agree, number_of, override_for_shell

log = logging.getLogger("vit")

UNLABELLED = re.compile("_?unlabell?ed", re.IGNORECASE)  # names of folders


def folder(
    root: str | Path, fractions: Sequence[float] = (0.8, 0.1, 0.1), split_seed: int = 0, class_depth: int = 1,
    progress: StageProgress | None = None,
) -> Source:
    """Images under root/CLASS, or root/train/CLASS, root/val/CLASS, root/test/CLASS; root may be a .zip archive.

    With `class_depth` 2 they are under root/GROUP/CLASS, or root/train/GROUP/CLASS, and so on; folders of the same name
    in several groups are one class.

    Without split folders the images are split by `fractions` (train, val, test; stratified); with train but no val, val
    is split off train. Classes of val and test are matched by name with those of train. The validation images of
    TinyImageNet and ImageNet, which are not in class folders, have the classes that a file states
    (vit.data.image_sources.stated_labels). `left_out` of the source lists the entries that `image_files` leaves out,
    images outside any class folder, and what is beside the split folders. `progress` is called with the number of
    folders that have been read.

    Raises:
        DataError: there are no class folders, a split is empty, val or test has a class that train lacks, or folders
            that look like splits would be classes.
        FileNotFoundError: `root` does not exist.
    """
    root = open_folder(root, "expected one folder of images per class")
    if not isinstance(root, Archive) and (hint := layout_hint(root, around=False)):
        raise DataError(f"{root}: has no folder per class{hint}")
    directories = {key: directory.name for key, directory in _split_folders(root).items()}
    if "train" not in directories:
        classes, whole, left_out = _undivided(root, class_depth, progress)
        return Source(root.resolve().name, classes, three_ways(whole, fractions, split_seed), left_out)
    stated = stated_labels(root, directories)
    if stated is not None:
        directories = {key: name for key, name in directories.items() if name not in (stated.val, stated.unlabelled)}
    read = [*directories.values(), *([stated.val] if stated is not None else [])]
    files = files_and_rest(root, read, progress)
    classes, splits = _read_splits(root, directories, files, class_depth)
    present = {split_of(entry.name) for entry in root.iterdir() if entry.is_dir()}  # also without class folders
    for message in (other_splits(classes, files.left_out), archived_splits(present, files.left_out)):
        if message:
            log.warning("%s: %s", root, message)
    if stated is not None:
        names, labels, left_out = stated.select(files.below(stated.folder), classes)
        splits["val"] = file_samples(root, names, labels)
        files.left_out.extend(left_out)
    splits = with_validation(splits, None, validation_fraction(fractions), split_seed)
    return Source(root.resolve().name, classes, splits, files.left_out)


def _undivided(
    root: Path | Archive, class_depth: int, progress: StageProgress | None
) -> tuple[list[str], Split, list[tuple[str, str]]]:
    """The classes, the samples and the left-out entries of a folder without folders for the splits."""
    files = image_files(root, progress=progress)
    classes = _class_names(root, "", files, class_depth)
    if class_depth == 1:
        _check_no_splits(root, classes, files)
        _check_several(root, classes, files)
    _warn_about_inner_folders(root, "", classes, files, class_depth)
    _warn_about_a_table(root, "", files)
    if not isinstance(root, Archive) and (message := lists_beside_folder(root, files.images)):
        log.warning("%s: %s", root, message)
    return classes, _read(root, "", classes, files, class_depth), files.left_out


def _read_splits(
    root: Path | Archive, directories: dict[str, str], files: ImageFiles, class_depth: int
) -> tuple[list[str], dict[str, Split]]:
    """The classes, which are those of train, and the samples of each split.

    Args:
        directories: split -> the name of its folder.
    """
    train = directories["train"]
    classes = _class_names(root, train, files, class_depth)
    if class_depth == 1 and len(classes) == 1 and (deeper := deeper_classes(train, files)):
        raise DataError(f"{root / train}: {deeper}, likewise in other splits")
    _warn_about_inner_folders(root, train, classes, files, class_depth)
    _warn_about_a_table(root, train, files)
    splits = {}
    for key, directory in directories.items():
        found = _class_names(root, directory, files, class_depth) if key != "train" else classes
        other = "" if {*classes}.issuperset(found) else other_source(root, files)
        _check_classes(classes, found, root / directory, other)
        splits[key] = _read(root, directory, classes, files, class_depth)
        if len(splits[key]) == 0 and key != "train":
            raise DataError(f"{root / directory}: the {key} folder has 0 images; add images or remove the folder")
    return classes, splits


def open_folder(root: str | Path, expected: str) -> Path | Archive:
    """A data folder or its zip archive; `expected` states the expected content in the message.

    Raises:
        DataError: `root` is any other file.
        FileNotFoundError: `root` does not exist.
    """
    root = Path(root).expanduser()
    if is_archive(root):
        return open_archive(root)
    if root.is_file():
        table = root.suffix.lower() in (".csv", ".tsv", ".parquet", ".json", ".jsonl", ".ndjson", ".xlsx", ".npz")
        packed = root.suffix.lower() in (".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar")
        other = f"{'extract it and ' if packed else ''}give the folder, or the .zip archive, that holds the images"
        hint = f"for a table set data=table {override_for_shell('data.path', root)}" if table else other
        raise DataError(f"data.root: {root} is a file, not a folder; {hint}")
    if not root.is_dir():
        raise FileNotFoundError(f"data.root: the folder {root} does not exist; {expected}")
    return root


def file_samples(root: Path | Archive, names: list[str], labels: np.ndarray) -> Split:
    """The image files of a folder or archive as samples."""
    if not isinstance(root, Archive):
        return file_split(root, names, labels)
    packed = PackedStrings(names)
    return Split(labels, packed, ReadMember(str(root.root.filename), root.at, packed))


def _split_folders(root: Path) -> dict[str, Path]:
    """Split → folder of the splits that exist, regardless of case. A class may also be called "train": class folders
    contain files, split folders contain folders.
    """
    named = [entry for entry in root.iterdir() if is_split_name(entry.name) and entry.is_dir()]
    names = sorted(directory.name for directory in named
                   if any(p.is_dir() and not is_hidden(p.name) for p in directory.iterdir()))
    found = {key: root / name for key, name in match_splits(root, names).items()}
    if found and "train" not in found:
        others = [entry.name for entry in root.iterdir() if entry.is_dir() and not is_split_name(entry.name)]
        near = similar_splits(sorted(others)).get("train")
        fix = f"if {near} is the training split, rename it to train" if near else "add train/CLASS/*.jpg"
        raise DataError(f"{root}: has {', '.join(p.name for p in found.values())} but no train folder; {fix}")
    return found


def _class_folders(directory: str, files: ImageFiles, depth: int) -> list[str]:
    """The folders at this depth below a folder, as paths below the root."""
    above = Path(directory).parts
    paths = {folder: Path(folder).parts for folder in files.folders}
    level = len(above) + depth
    return [folder for folder, parts in paths.items() if len(parts) == level and parts[: len(above)] == above]


def _class_names(root: Path, directory: str, files: ImageFiles, depth: int) -> list[str]:
    found = [os.path.basename(folder) for folder in _class_folders(directory, files, depth)]
    check_no_annotations(root, files, directory, found)
    names = sorted({to_nfc(name) for name in found})
    wrong = next((name for name in names if lone_surrogate(name)), None)
    if wrong is not None:
        raise DataError(f"{root / directory}: the name of class folder {printable(wrong)!r} is not UTF-8; rename it")
    warn_about_similar_names(root / directory, names)
    if unlabelled := next(filter(UNLABELLED.fullmatch, names), None):
        log.warning("%s: the folder %s is read as a class; if its images have no labels, as in exports of FiftyOne, "
                    "move it out of the folder of the classes", root / directory, unlabelled)
    if not names:
        listed = f"; left out: {summary(files.left_out)}" if files.left_out else ""
        raise DataError(f"{root / directory}: holds no class folders; expected one folder of images per class{listed}"
                        f"{other_source(root, files) or classes_in_names(files, directory)}")
    return names


def _warn_about_inner_folders(
    root: Path | Archive, directory: str, classes: list[str], files: ImageFiles, class_depth: int
) -> None:
    if message := inner_folders(directory, classes, files, class_depth):
        log.warning("%s: %s", root / directory, message)


def _warn_about_a_table(root: Path | Archive, directory: str, files: ImageFiles) -> None:
    if message := unread_table(root, directory, files):
        log.warning("%s: %s", root, message)


def _check_several(root: Path | Archive, classes: Sequence[str], files: ImageFiles) -> None:
    """Raises DataError if only one of the class folders has images, and it is known where the classes are."""
    full = {to_nfc(name.split(os.sep)[0]) for name in files.images if os.sep in name}
    only = next(iter(full)) if len(full) == 1 else classes[0]
    if len(classes) > 1 and len(full) != 1:
        return
    if other := inner_classes(root, files) or other_source(root, files) or classes_in_names(files, only):
        found = "has a single class folder" if len(classes) == 1 else "has images in a single folder"
        raise DataError(f"{root}: {found}, {printable(only)}, but a classifier needs at least 2 classes{other}")


def _check_no_splits(root: Path | Archive, classes: list[str], files: ImageFiles) -> None:
    """Raises DataError if half of the class folders, or the folders inside one, look like splits, or if the only folder
    contains splits at any depth.
    """
    similar = [name for name in classes if similar_splits([name])]
    found = similar_splits(similar)
    train, others = found.pop("train", None), list(found.values())
    if train is None and len(others) > 1 and 2 * len(similar) >= len(classes):
        raise DataError(f"{root}: the folders {others[0]} and {others[1]} would be classes, but look like splits, and "
                        "none looks like train; rename the folders of the splits to train, val and test"
                        f"{other_source(root, files)}")
    plain = len(similar) < len(classes) and all(match_splits(root, [name]) for name in similar)  # train, test, bus
    if train and others and not plain and 2 * len(similar) >= len(classes):
        rename = "" if is_split_name(train) else f", and rename {train} to train, likewise the others"
        hint = other_source(root, files) or classes_in_names(files, train)
        fix = deeper_classes(train, files) or "put their images into one folder per class in each"
        fix += rename + (hint or ", or set data=table if a table labels the images")
        raise DataError(f"{root}: the folders {train} and {others[0]} would be classes, but look like splits; {fix}")
    inside = defaultdict(list)
    for folder in files.folders:
        inside[os.path.dirname(folder)].append(os.path.basename(folder))
    for name in sorted((name for name in inside if name), key=lambda name: (name.count(os.sep), name)):
        splits = {key: folder for folder in inside[name] for key in match_splits(root, [folder])}
        if "train" not in splits or len(splits) < 2:
            continue
        if len(classes) == 1 and files.below(os.path.join(name, splits["train"])):
            fix = f"set {override_for_shell('data.root', os.path.join(str(root), name))}"
            fix = "extract it and set data.root to this folder" if isinstance(root, Archive) else fix
            raise DataError(f"{root}: the splits are in its folder {name}; {fix}")
        if os.sep not in name:
            listed = " and ".join(sorted(splits.values()))
            raise DataError(f"{root / name}: the class folder contains the splits {listed}; put the classes into the "
                            f"splits, such as train/{name}")


def files_and_rest(
    root: Path | Archive, directories: Sequence[str], progress: StageProgress | None = None
) -> ImageFiles:
    """The image files of the split folders; everything beside these folders is left out.

    Raises:
        DataError: a folder named like the validation split has images, but no class folders.
    """
    beside = sorted((entry for entry in root.iterdir() if entry.name not in directories), key=lambda entry: entry.name)
    folders = [entry.name for entry in beside if entry.is_dir() and not is_hidden(entry.name)]
    found = image_files(root, directories, progress=progress)
    rest = image_files(root, folders, unused=True, progress=progress) if folders else ImageFiles()
    if flat := match_splits(root, folders).get("val"):
        count = len(rest.below(flat))
        if count:
            known = f"; {KIT} or {KAGGLE} beside it states the classes of ImageNet" if is_imagenet(root / flat) else ""
            raise DataError(f"{root / flat}: has {number_of(count, 'image')} but no class folders; move them to "
                            f"{flat}/CLASS, or rename {flat} to leave them out{known}")
    read = {os.path.realpath(os.path.join(str(root), name)) for name in found.folders}  # by links from the splits
    unread = {name for name in rest.folders if os.path.realpath(os.path.join(str(root), name)) not in read}
    names = [name for name in rest.images if os.path.dirname(name) in unread] + [name for name, _ in rest.left_out]
    left_out = [(name, "outside the split folders") for name in sorted(names)]
    left_out += [(entry.name, "hidden" if is_hidden(entry.name) else "outside the split folders")
                 for entry in beside if entry.name not in folders]
    return ImageFiles(found.images, found.folders, found.left_out + left_out)


def _check_classes(classes: list[str], found: list[str], directory: Path, other: str = "") -> None:
    known = set(classes)
    unknown = [c for c in found if c not in known]
    if unknown:
        raise DataError(
            f"{directory}: {len(unknown)} of its {number_of(len(found), 'class')} {agree(len(unknown), 'is', 'are')} "
            f"not among the {len(classes)} of train ({', '.join(map(printable, unknown[:5]))}); rename or remove the "
            f"folders, or add training images{other}"
        )


def _read(root: Path, directory: str, classes: list[str], files: ImageFiles, class_depth: int) -> Split:
    """The images of one split; those outside its class folders are added to `files.left_out`."""
    label_of = {name: label for label, name in enumerate(classes)}
    index = {to_nfc(folder): label_of[to_nfc(os.path.basename(folder))]
             for folder in _class_folders(directory, files, class_depth)}
    above = Path(directory).parts
    depth = len(above) + class_depth
    names, labels, of_folder = [], [], {}
    for name in files.images:
        folder = name.rpartition(os.sep)[0]
        if folder not in of_folder:  # once per folder, not per image
            parts = folder.split(os.sep) if folder else []
            of_folder[folder] = index.get(to_nfc(os.sep.join(parts[:depth]))), tuple(parts[: len(above)]) == above
        label, is_below = of_folder[folder]
        if label is not None:
            names.append(name)
            labels.append(label)
        elif is_below:
            files.left_out.append((name, "outside any class folder"))
    return file_samples(root, names, np.array(labels, dtype=np.int64))
