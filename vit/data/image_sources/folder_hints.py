"""Parts of messages about folders without class folders: where the classes are, by the files that are there."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from vit.data.errors import printable
from vit.data.formats.zip_archives import Archive
from vit.data.identity import to_nfc
from vit.data.image_sources.files import ImageFiles
from vit.messages import list_names, number_of, override_for_shell

TABLES = (".csv", ".tsv", ".jsonl", ".json", ".npz")
ANNOTATIONS = (".mat", ".xml", ".txt")
NOT_LABELS = re.compile("readme|license|sample|submission|test|description", re.IGNORECASE)  # in names of other files
LABELS = re.compile("label|annot|class|train|metadata", re.IGNORECASE)
MNIST = re.compile("train-images[-.]idx3-ubyte")
NUMBER = re.compile(r"[\W_]*\d+\)?$")  # cat.17, cat_17, cat (17)


def inner_classes(root: Path | Archive, files: ImageFiles) -> str:
    """The only folder with images, if they are in two or more folders in it, which may be the classes."""
    outer, inner = _folders_of_images(files, "")
    if isinstance(root, Archive) or not inner:
        return ""
    fix = override_for_shell("data.root", os.path.join(str(root), outer))
    return f"; if the {number_of(len(inner), 'folder')} in it are the classes, set {fix}"


def deeper_classes(directory: str, files: ImageFiles) -> str:
    """For the folder of a split, out of whose only folder with images the classes must be moved; "" otherwise."""
    outer, inner = _folders_of_images(files, directory)
    inside = os.path.join(directory, outer)
    if not inner:
        return ""
    return (f"the {number_of(len(inner), 'folder')} with images ({list_names(map(printable, sorted(inner)), 5)}) are "
            f"in its folder {printable(inside)}; move them to {printable(directory)}")


def other_source(root: Path | Archive, files: ImageFiles) -> str:
    """The data set that reads a folder without class folders."""
    names = sorted({name for name, _ in files.left_out}, key=_likeliness)
    suffixes = {os.path.splitext(name)[1].lower() for name in names}
    archive = isinstance(root, Archive)  # of which only a folder of classes is read

    def data(kind: str, key: str, path: object) -> str:
        return f"data={kind} {'after extracting the archive' if archive else override_for_shell(key, path)}"

    if suffixes & {".tar", ".parquet", ".arrow"}:
        return f"; shards are read by {data('hub', 'data.root', root)}"
    if any(MNIST.match(os.path.basename(name)) for name in names):
        return f"; files of MNIST are read by {data('mnist', 'data.root', root)}"
    if any(os.path.basename(name) == "data_batch_1" for name in names):
        return f"; batches of CIFAR-10 are read by {data('cifar10', 'data.root', root)}"
    if table := next((name for name in names if name.lower().endswith(TABLES)), None):
        found = f", with its {printable(table)}" if archive else ""
        hub = re.fullmatch(r"metadata\.(csv|jsonl)", os.path.basename(table))
        listed = f", or {data('hub', 'data.root', root)}" if hub and os.path.dirname(table) and not archive else ""
        return f"; if a table labels the images: {data('table', 'data.path', root / table)}{found}{listed}"
    other = next((name for name in names if name.lower().endswith(ANNOTATIONS) and LABELS.search(name)), None)
    if other is not None and files.images:
        return (f"; if {printable(other)} labels the images, write a table with the columns image, label and, for its "
                "splits, split, and set data=table data.path=TABLE")
    return ""


def classes_in_names(files: ImageFiles, directory: str) -> str:
    """The classes that the names of the images in a folder seem to state, such as cat.0.jpg; "" if there are none."""
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


def inner_folders(directory: str, classes: Sequence[str], files: ImageFiles) -> str:
    """A warning, if no class folder has images of its own, and one or more have several folders with images, which may
    be the classes; else "".
    """
    depth = len(Path(directory).parts)
    inside: dict[str, set[str]] = {name: set() for name in classes}
    for name in files.below(directory) if directory else files.images:
        parts = to_nfc(name).split(os.sep)[depth:]
        if parts[0] in inside:
            inside[parts[0]].add(parts[1] if len(parts) > 2 else "")
    inner = sorted(set().union(*inside.values()))
    if len(classes) < 2 or "" in inner or max(map(len, inside.values())) < 2:
        return ""
    each = "each with the same" if len({frozenset(found) for found in inside.values()}) == 1 else "with the"
    return (f"the classes are the folders {list_names(map(printable, classes), 5)}, {each} folders "
            f"{list_names(map(printable, inner), 5)}; if those are the classes, set data.class_depth=2")


def _likeliness(name: str) -> tuple[bool, bool, bool, str]:
    """Sort key: files that may state labels first, those that may not last."""
    return bool(NOT_LABELS.search(name)), not LABELS.search(name), name.lower().endswith(".json"), name
