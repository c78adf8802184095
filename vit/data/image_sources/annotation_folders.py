"""Data sets of annotation tools: their folders, such as images and labels, are not classes."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from vit.data.errors import DataError
from vit.data.formats.zip_archives import Archive, read_entry
from vit.data.image_sources.coco_label_studio import DATUMARO, EXPORT, annotation_format, annotation_rows
from vit.data.image_sources.file_names import served_files
from vit.data.image_sources.files import ImageFiles
from vit.data.image_sources.folder_hints import with_its_splits
from vit.data.image_sources.table_columns import IMAGE_COLUMNS
from vit.files.untrusted import LimitError, parse_json
from vit.messages import override_for_shell

MAX_FILES = 20  # JSON files that are read
HEAD = 2**16  # bytes at the start of a file too large to be parsed, by which its format is recognized
COCO = re.compile(rb'"(images|annotations|categories)"\s*:\s*\[')
FILE_NAME = re.compile(rb'"file_name"\s*:\s*"([^"\\]+)"')


def check_no_annotations(root: Path | Archive, files: ImageFiles, directory: str, folders: Sequence[str]) -> None:
    """Checks that no file among the images states their labels, so that folders are classes.

    Args:
        directory: the folder below the root, "" for the root itself.
        folders: its subfolders, which would be the classes; they are, if the labels in the files have these names.

    Raises:
        DataError: there is such a file, in the format of COCO, Label Studio, Datumaro, YOLO or Pascal VOC.
    """
    others = sorted((name for name, reason in files.left_out if reason.startswith("not an image")),
                    key=lambda name: (name.count(os.sep), "train" not in name, name))
    keep = f"or, if the folders are classes, move it out of {root}"
    texts = [name for name in others if name.lower().endswith(".json")]
    found = [(name, *stated) for name in texts[:MAX_FILES] if (stated := _stated(root, name))[0]]
    known = {label for _, _, labels, _ in found for label in labels}
    if found and not (folders and known.issuperset(folders)):
        name, kind, _, image = found[0]
        more = f" (as {len(found) - 1} more)" if len(found) > 1 else ""
        fix = EXPORT if kind == DATUMARO else f"set {_table(root, name, image, files)}"
        raise DataError(f"{root}: {name}{more} states labels in the format of {kind}; {fix}, {keep}")
    if boxes := _boxes(root, others, files, directory, folders):
        raise DataError(f"{root}: {boxes}, which has a class for each object; write a table with the columns image and "
                        f"label, and set data=table data.path=TABLE, {keep}")


def _stated(root: Path | Archive, name: str) -> tuple[str, set[str], str]:
    """The format of a JSON file ("" for any other file), its labels (none if they are unknown), and its first image."""
    try:
        data = read_entry(root / name)
        content = parse_json(data.decode("utf-8-sig"))
    except LimitError:
        image = FILE_NAME.search(data, 0, HEAD)
        known = "COCO" if COCO.search(data, 0, HEAD) else ""
        return known, set(), image[1].decode("utf-8", "replace") if image else ""
    except (OSError, ValueError):
        return "", set(), ""
    kind, _ = annotation_format(content)
    try:
        rows = annotation_rows(Path(name), content) or []
    except DataError:  # data=table reports it
        rows = []
    labels = {label for row in rows for label in (row["label"] if isinstance(row["label"], list) else [row["label"]])}
    return kind, labels, next((str(rows[0][key]) for key in IMAGE_COLUMNS if key in rows[0]), "") if rows else ""


def _table(root: Path | Archive, name: str, image: str, files: ImageFiles) -> str:
    """The overrides that read the file, with the folder of its images if that is not the folder of the file."""
    if isinstance(root, Archive):
        return "data=table after extracting the archive"
    images, known = set(files.images), [os.path.dirname(name), *files.folders]
    found = next((folder for folder in known for each in (image, *served_files(image))
                  if os.path.join(folder, each) in images), known[0])
    if found == known[0]:
        return f"data=table {override_for_shell('data.path', with_its_splits(root / name))}"
    return (f"data=table {override_for_shell('data.path', root / name)} "
            f"{override_for_shell('data.root', root / found)}")


def _boxes(
    root: Path | Archive, others: Sequence[str], files: ImageFiles, directory: str, folders: Sequence[str]
) -> str | None:
    """The first file with boxes, and its format: a text in the folder `labels` beside `images`, or XML of Pascal VOC in
    a folder `annotations`, or in one without images.
    """
    depth = len(Path(directory).parts)
    for name in others:
        parts, suffix = name.split(os.sep), os.path.splitext(name)[1].lower()
        top = parts[depth] if len(parts) > depth + 1 else None  # the folder that would be a class
        if suffix == ".txt" and top == "labels" and "images" in folders and _has_boxes(root / name):
            return f"{name} is in the format of YOLO"
        if suffix == ".xml" and top is not None:
            boxes = top.lower() == "annotations" or not files.below(os.path.join(directory, top))
            return f"{name} is in the format of Pascal VOC" if boxes and _is_annotation(root / name) else None
    return None


def _has_boxes(file: Path | Archive) -> bool:
    """Whether the first line of a text, unless it is empty, consists of a class and the numbers of a box."""
    try:
        lines = read_entry(file).splitlines()
        return not lines or len([float(field) for field in lines[0].split()]) >= 5
    except (OSError, ValueError):
        return False


def _is_annotation(file: Path | Archive) -> bool:
    try:
        return b"<annotation" in read_entry(file)
    except OSError:
        return False
