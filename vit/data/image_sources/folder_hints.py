"""Hints in messages about folders without class folders: where the classes may be, judged by the files found."""

import os
import re
from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from itertools import islice
from pathlib import Path

from vit.data.errors import DataError, printable
from vit.data.formats.delimited import numbered_rows
from vit.data.formats.split_tables import split_in_name, split_tables
from vit.data.formats.zip_archives import Archive
from vit.data.identity import to_nfc
from vit.data.image_sources.files import ImageFiles, is_image_name
from vit.data.image_sources.published.layouts import layout_hint
from vit.data.splits.names import split_of
from vit.messages import agree, list_names, number_of, override_for_shell

KINDS = (".csv", ".tsv", ".json", ".jsonl")  # of tables of splits
LARGEST = 2**25  # bytes of a table that is read for a hint
ROWS = 5000  # of these tables that are read, with the header
TABLES = (".csv", ".tsv", ".jsonl", ".json", ".npz")
ANNOTATIONS = (".mat", ".xml", ".txt")
PACKED = re.compile(r"\.(tfrecords?|tfrec|beton|bin|h5|hdf5|mat|npy|pkl|pickle|mdb)(?=$|-\d)")  # files of many images
IDX = re.compile(r"[-.]idx\d-\w+(\.gz)?$")  # as of EMNIST and QMNIST
ARCHIVE = re.compile(r"\.(zip|tgz|tar\.\w+|7z|rar)$", re.IGNORECASE)
NOT_LABELS = re.compile("readme|license|sample|submission|test|description", re.IGNORECASE)  # in names of other files
PLACEHOLDERS = re.compile("sample_?submission", re.IGNORECASE)  # in names of tables whose labels mean nothing
LABELS = re.compile("label|annot|class|train|metadata|attr|list|partition", re.IGNORECASE)
MNIST = re.compile("train-images[-.]idx3-ubyte")
NUMBER = re.compile(r"[\W_]*\d+\)?$")  # cat.17, cat_17, cat (17)


def inner_classes(root: Path | Archive, files: ImageFiles) -> str:
    """The hint that the only folder with images has two or more folders, which may be the classes; else ""."""
    outer, inner = _folders_of_images(files, "")
    if isinstance(root, Archive) or not inner:
        return ""
    fix = override_for_shell("data.root", os.path.join(str(root), outer))
    return f"; if the {number_of(len(inner), 'folder')} in it are the classes, set {fix}"


def deeper_classes(directory: str, files: ImageFiles) -> str:
    """The hint that the classes of a split are one folder too deep, all in its only folder with images; else ""."""
    outer, inner = _folders_of_images(files, directory)
    inside = os.path.join(directory, outer)
    if not inner:
        return ""
    return (f"the {number_of(len(inner), 'folder')} with images ({list_names(map(printable, sorted(inner)), 5)}) are "
            f"in its folder {printable(inside)}; move them to {printable(directory)}")


def other_source(root: Path | Archive, files: ImageFiles) -> str:
    """The hint which data set reads a folder without class folders; "" if none does."""
    names = sorted({name for name, _ in files.left_out}, key=_likeliness)
    suffixes = {os.path.splitext(name)[1].lower() for name in names}
    archive = isinstance(root, Archive)  # from archives only class folders are read
    if not archive and (hint := layout_hint(root)):
        return hint

    def data(kind: str, key: str, path: object) -> str:
        return f"data={kind} {'after extracting the archive' if archive else override_for_shell(key, path)}"

    if suffixes & {".tar", ".parquet", ".arrow"}:
        return f"; shards are read by {data('hub', 'data.root', root)}"
    if any(MNIST.match(os.path.basename(name)) for name in names):
        return f"; files of MNIST are read by {data('mnist', 'data.root', root)}"
    if any(os.path.basename(name) in ("data_batch_1", "data_batch_1.bin") for name in names):
        return f"; batches of CIFAR-10 are read by {data('cifar10', 'data.root', root)}"
    last = set(map(os.path.basename, names))
    if {"train", "test", "meta"} <= last or {"train.bin", "test.bin", "fine_label_names.txt"} <= last:
        return f"; the files of CIFAR-100 are read by {data('cifar100', 'data.root', root)}"
    archives = [] if files.images or archive else [name for name in names if ARCHIVE.search(name)]
    if len(archives) > 1:
        listed = list_names(map(printable, sorted(archives)), 5)
        return f"; if {listed} hold the images of a class or split each, extract each into a folder of its own"
    if archives:
        other, zipped = archives[0], archives[0].lower().endswith(".zip")
        return (f"; if {printable(other)} holds the images: "
                f"{override_for_shell('data.root', root / other) if zipped else 'extract it'}")
    packed = next((found[0] for name in names if (found := PACKED.search(name.lower()))), None)
    if packed is None and any(map(IDX.search, names)):
        packed = "IDX"
    if packed and not files.images:
        return (f"; {packed} files are not read: save the images to a folder per class, or the images (N,H,W,C) and "
                "the labels (N,) with numpy.savez as the arrays images and labels of an .npz file for data=table")
    if table := next((name for name in names if name.lower().endswith(TABLES)), None):
        found = f", with its {printable(table)}" if archive else ""
        hub = re.fullmatch(r"metadata\.(csv|jsonl)", os.path.basename(table))
        listed = f", or {data('hub', 'data.root', root)}" if hub and os.path.dirname(table) and not archive else ""
        path = root / table if archive else with_its_splits(root / table)
        return f"; if a table labels the images: {data('table', 'data.path', path)}{found}{listed}"
    other = next((name for name in names if name.lower().endswith(ANNOTATIONS) and LABELS.search(name)), None)
    if other is not None and files.images:
        return (f"; if {printable(other)} labels the images, write a table with the columns image, label and, for its "
                "splits, split, and set data=table data.path=TABLE")
    return ""


def with_its_splits(table: Path) -> Path:
    """The folder with this table and those of other splits, which data=table reads together; else the table."""
    for folder in (table.parent, table.parent.parent):
        try:
            tables = split_tables(folder, KINDS, {})
        except (DataError, OSError):
            continue
        if len(tables) > 1 and table in tables.values():
            return folder
    return table


def classes_in_names(files: ImageFiles, directory: str) -> str:
    """The hint that names of images such as cat.0.jpg seem to contain the classes; "" if they do not."""
    names = [os.path.basename(name) for name in files.images if os.path.dirname(name) == directory]
    found = {NUMBER.sub("", os.path.splitext(name)[0]) for name in names}
    if "" in found or not 2 <= len(found) <= len(names) / 2:
        return ""
    return (f"; if the names of the images state their classes ({list_names(map(printable, sorted(found)), 5)}), move "
            "the images into folders with these names")


def _folders_of_images(files: ImageFiles, directory: str) -> tuple[str, set[str]]:
    """The only folder below a folder that has images, and two or more folders in it that have all of them; otherwise
    "" and none.
    """
    depth = len(Path(directory).parts)
    paths = [name.split(os.sep)[depth:] for name in (files.below(directory) if directory else files.images)]
    outer, inner = {parts[0] for parts in paths}, {parts[1] for parts in paths if len(parts) > 2}
    if len(outer) != 1 or len(inner) < 2 or any(len(parts) < 3 for parts in paths):
        return "", set()
    return outer.pop(), inner


def inner_folders(directory: str, classes: Sequence[str], files: ImageFiles, class_depth: int = 1) -> str:
    """The warning that the subfolders of class folders may be the classes, if at least one class folder contains no
    images directly, but several subfolders with images; otherwise "".
    """
    level = len(Path(directory).parts) + class_depth - 1  # of the class folders
    inside: dict[str, set[str]] = {name: set() for name in classes}
    for name in files.below(directory) if directory else files.images:
        parts = to_nfc(name).split(os.sep)[level:]
        if len(parts) > 1 and parts[0] in inside:
            inside[parts[0]].add(parts[1] if len(parts) > 2 else "")
    inner = sorted(set().union(*inside.values()))
    deeper = next((name for name, found in inside.items() if len(found) > 1 and "" not in found), None)
    if len(classes) < 2 or deeper is None:
        return ""
    if flat := next((name for name, found in inside.items() if found == {""}), None):
        return (f"the images of the class {printable(deeper)} are in its folders "
                f"{list_names(map(printable, sorted(inside[deeper])), 5)}, and those of {printable(flat)} are not in "
                "further folders; if the folders are classes, move them beside the other class folders")
    if "" in inner:
        return ""
    each = "each with the same" if len({frozenset(found) for found in inside.values()}) == 1 else "with the"
    return (f"the classes are the folders {list_names(map(printable, classes), 5)}, {each} folders "
            f"{list_names(map(printable, inner), 5)}; if those are the classes, set data.class_depth={class_depth + 1}"
            f"{_or_one_of(directory, files, class_depth)}")


def _or_one_of(directory: str, files: ImageFiles, class_depth: int) -> str:
    """The end of a hint: class folders with images of equal names may be versions of the same images, such as color and
    grayscale, of which one has to be selected, since val and test would have versions of the images of train.
    """
    if directory or class_depth != 1:
        return ""
    names = defaultdict(set)
    for name in files.images:
        top, _, rest = name.partition(os.sep)
        names[top].add(os.path.splitext(rest)[0])
    one, *others = names.values()
    if not others or any(2 * len(one & other) < len(one | other) for other in others):
        return ""
    return ("; if they are versions of the same images, whose names are equal, set data.root to one of them, since the "
            "splits would have versions of the same image")


def archived_splits(splits: Container[str], left_out: Sequence[tuple[str, str]]) -> str:
    """A warning about archives that are named after another split than the folders of `splits`; "" without any."""
    found = sorted(name for name, _ in left_out if os.sep not in name and ARCHIVE.search(name)
                   and (key := split_of(ARCHIVE.sub("", name))) is not None and key not in splits)
    if not found:
        return ""
    return (f"{list_names(map(printable, found), 5)} beside train {agree(len(found), 'is', 'are')} not read; extract "
            f"{agree(len(found), 'it', 'them')} to use {agree(len(found), 'this split', 'these splits')}")


def other_splits(classes: Sequence[str], left_out: Sequence[tuple[str, str]]) -> str:
    """A warning about folders beside those of the splits with folders of the same classes; "" if there are none."""
    inside = defaultdict(set)
    for name, _ in left_out:
        parts = to_nfc(name).split(os.sep)
        if len(parts) > 2 and is_image_name(name):
            inside[parts[0]].add(parts[1])
    found = sorted(folder for folder, names in inside.items() if names <= {*classes})
    if not found:
        return ""
    return (f"{list_names(map(printable, found), 5)} beside train {agree(len(found), 'has', 'have')} folders of the "
            f"same classes and {agree(len(found), 'is', 'are')} not read; rename a folder to val or test to use it as "
            "this split")


def unread_table(root: Path | Archive, directory: str, files: ImageFiles) -> str:
    """A warning about a table beside the class folders that names images and does not agree with the folders; else "".

    Args:
        directory: the folder of the class folders below the root, "" for the root itself.
    """
    tables = [name for name, _ in files.left_out
              if os.path.dirname(name) in ("", directory) and name.lower().endswith((".csv", ".tsv"))
              and not PLACEHOLDERS.search(os.path.basename(name))]
    if isinstance(root, Archive) or not tables:
        return ""
    rows = {name: _first_rows(root / name) for name in tables}
    cells = {cell for each in rows.values() for row in each for cell in map(_without_extension, row)}
    read = {end: set(above) for name in files.images for end, above in _ends(name) if end in cells}
    others = {end for name, _ in files.left_out if is_image_name(name) for end, _ in _ends(name) if end in cells}
    named_by = {name: [(image, row) for row in rows[name] if (image := _named_image(row, read, others)) is not None]
                for name in tables}
    of_splits = {name for name in tables if split_in_name(Path(name).stem)[1]}
    # those of splits first, then those of most images
    for name in sorted(tables, key=lambda name: (name not in of_splits, name in of_splits or -len(named_by[name]))):
        named = named_by[name]
        agree = all(image in read and read[image] & {part for cell in row for part in cell.split("/")}
                    for image, row in named)
        if named and 2 * len(named) >= len(rows[name]) and not (agree and _have_folders_as_labels(named, files, read)):
            return (f"{printable(name)} names images and is not read; if it states their labels, set "
                    f"data=table {override_for_shell('data.path', with_its_splits(root / name))}")
    return ""


def _have_folders_as_labels(
    named: Sequence[tuple[str, Sequence[str]]], files: ImageFiles, read: Mapping[str, set[str]]
) -> bool:
    """Whether a column has the folder of each image, if any column holds nothing but names of folders.

    Args:
        named: an image and the row of a table that names it.
        read: image -> the folders above it.
    """
    folders = {os.path.basename(folder) for folder in files.folders}
    columns = zip(*([cell.strip() for cell in row] for _, row in named), strict=False)
    equal = [[cell in read[image] for cell, (image, _) in zip(column, named, strict=True)]
             for column in columns if folders.issuperset(column)]
    return not equal or any(map(all, equal))


def _ends(name: str) -> list[tuple[str, list[str]]]:
    """The ends of the path of an image, without extension, with which a table may name it, and the folders above it."""
    parts = os.path.splitext(name)[0].split(os.sep)
    return [("/".join(parts[i:]), parts[:-1]) for i in range(len(parts))]


def _without_extension(cell: str) -> str:
    cell = cell.strip().replace("\\", "/")
    return os.path.splitext(cell)[0] if is_image_name(cell) else cell


def _named_image(row: Sequence[str], *known: Container[str]) -> str | None:
    """The known image that a cell names, preferably one with an extension; None without such a cell."""
    names = map(_without_extension, sorted(row, key=is_image_name, reverse=True))
    return next((name for name in names if any(name in each for each in known)), None)


def _first_rows(file: Path) -> list[list[str]]:
    """The first rows of a table behind its header, without those that have no cell; [] if it cannot be read."""
    try:
        return [] if file.stat().st_size > LARGEST else [row for _, row in islice(numbered_rows(file), 1, ROWS)]
    except (DataError, OSError):
        return []


def _likeliness(name: str) -> tuple[bool, bool, bool, str]:
    """Sort key: files whose names suggest labels first, other files last."""
    return bool(NOT_LABELS.search(name)), not LABELS.search(name), name.lower().endswith(".json"), name
