"""Files that state the splits of images, beside a folder or a table that is read without them, for a warning."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from vit.data.errors import DataError, printable
from vit.data.formats.delimited import numbered_rows
from vit.data.formats.split_tables import split_in_name
from vit.data.image_sources.published.layouts import find_layout
from vit.data.splits.names import SPLIT_NAMES
from vit.files.untrusted import LimitError, read_text
from vit.messages import agree, list_names, override_for_shell

KINDS = (".csv", ".tsv", ".txt", ".lst", ".json")
ASSIGNMENTS = {"split", "splits", "partition"}  # words in the name of a file that assigns images to splits
# of files that are judged by their names alone: of CUB-200, which numbers its images, and of Stanford Dogs
BY_NUMBER = re.compile(r"train_?(val_?)?test_?split", re.IGNORECASE)
MATLAB = re.compile(r"(train|test)_(list|split)\.mat", re.IGNORECASE)
BESIDE = re.compile("label|meta|list|split|annot", re.IGNORECASE)  # in the names of folders beside that of the images
OTHERS = re.compile("predict|submission|result", re.IGNORECASE)  # in the names of files with the answers of a model
MAX_ENTRIES = 100  # entries of a folder, beyond which it is not searched
ROWS, LARGEST = 2000, 2**25  # rows of a file that are read, and bytes of one
QUOTED = re.compile(r'"([^"\\]+)"')


def lists_beside_folder(root: Path, images: Sequence[str]) -> str:
    """A warning about lists of splits in the folder of the classes, the folder above, or one beside it, as labels/ of
    DTD and meta/ of Food-101; "" without any.
    """
    above = root.resolve().parent
    near = [file for folder in (root.resolve(), above) for file in _entries(folder)]
    beside = [entry for entry in _entries(above) if BESIDE.search(entry.name) and entry.is_dir()]
    found = _lists([*near, *(file for folder in beside if folder != root.resolve() for file in _entries(folder)
                             if not _is_judged_by_name(file))], images)
    if not found:
        return ""
    return f"{_listed(found, root)} {_override(found, root) or 'write a table with the columns image, label and split'}"


def lists_beside_table(path: Path, images: Sequence[str]) -> str:
    """A warning about lists of splits in the folder of a table without a column of splits; "" without any."""
    if split_in_name(path.stem)[1]:  # the other tables of its splits are reported as such
        return ""
    found = _lists([file for file in _entries(path.parent) if file.name != path.name], images)
    return f"{_listed(found, path.parent)} {_options(found) or 'add a column split to the table'}" if found else ""


def _options(files: Sequence[Path]) -> str:
    """The overrides with which a table is read together with files of its splits; "" if it is unclear which."""
    readable = [file for file in files if not _is_judged_by_name(file) and file.suffix.lower() != ".json"]
    if assigned := [file for file in readable if not split_in_name(file.stem)[1]]:
        return f"set {override_for_shell('data.split', assigned[0].name)}"
    lists: dict[str, str] = {}
    for file in readable:
        splits = split_in_name(file.stem)[1]
        key = "train" if "train" in splits else splits[0]  # train_val_list.txt
        if lists.setdefault(key, file.name) != file.name:
            return ""
    return "set " + " ".join(override_for_shell(f"data.{key}", lists[key]) for key in SPLIT_NAMES if key in lists)


def _listed(files: Sequence[Path], root: Path) -> str:
    names = list_names((printable(os.path.relpath(file, root.resolve())) for file in files), 4)
    return (f"{names} {agree(len(files), 'states', 'state')} splits of the images and {agree(len(files), 'is', 'are')} "
            f"not used; to use {agree(len(files), 'it', 'them')},")


def _override(files: Sequence[Path], root: Path) -> str:
    """The overrides that read the tables of train and of val or test; "" if there are none of equal names."""
    for file in files:
        if _is_judged_by_name(file) and find_layout(file.parent) is not None:
            return f"set data=table {override_for_shell('data.path', file.parent)}"
    for file in files:
        rest, splits = split_in_name(file.stem)
        if splits != ["train"] or file.suffix == ".mat":
            continue
        names = _names_alone(file)
        if names and not all("/" in name for name in names):  # without labels
            continue
        tables = {"train": file}
        for other in files:
            stem, keys = split_in_name(other.stem)
            if stem == rest and len(keys) == 1 and (other.parent, other.suffix) == (file.parent, file.suffix):
                tables.setdefault(keys[0], other)
        if len(tables) > 1:
            keys = [key for key in SPLIT_NAMES if key in tables]
            stated = " ".join(override_for_shell(f"data.{key}", tables[key].name) for key in keys)
            inside = "" if file.parent == root.resolve() else f" {override_for_shell('data.root', root)}"
            column = " data.image=0" if names else ""
            return f"set data=table {override_for_shell('data.path', file.parent)} {stated}{inside}{column}"
    return ""


def _names_alone(file: Path) -> list[str]:
    """The first lines of a text, if each is a name, without a label; else []."""
    if file.suffix.lower() not in (".txt", ".lst"):
        return []
    rows = [row[0].split() if len(row) == 1 else row for _, row in islice(numbered_rows(file), 5)]
    return [row[0] for row in rows] if all(len(row) == 1 for row in rows) else []


def _is_judged_by_name(file: Path) -> bool:
    return file.suffix.lower() == ".mat" or BY_NUMBER.fullmatch(file.stem) is not None


def _lists(files: Iterable[Path], images: Sequence[str]) -> list[Path]:
    """Those of the files that state splits: their names contain that of a split, and they name the images."""
    named = []
    for file in sorted(files, key=lambda file: (str(file.parent), file.name)):
        words = {word.lower() for word in re.findall("[A-Za-z]+", file.stem)}
        if OTHERS.search(file.name):
            continue
        listed = file.suffix.lower() in KINDS and (split_in_name(file.stem)[1] or words & ASSIGNMENTS)
        if listed or MATLAB.fullmatch(file.name):
            named.append(file)
    if not named:
        return []
    known = {end for name in images for end in _ends(os.path.splitext(name)[0])}
    found = [file for file in named if _is_judged_by_name(file) or _names_images(file, known)]
    return found if any(split_in_name(file.stem)[1] != ["train"] for file in found) else []


def _names_images(file: Path, known: set[str]) -> bool:
    """Whether most of the first rows of a table or list name one of the images."""
    try:
        rows = list(_cells(file)) if file.stat().st_size <= LARGEST else []
    except (DataError, LimitError, OSError, ValueError):
        return False
    return 2 * sum(any(map(known.__contains__, row)) for row in rows) > len(rows)


def _cells(file: Path) -> Iterator[list[str]]:
    """The names that each row of a table, or each text of a JSON file, may contain, as in `_ends`."""
    if file.suffix.lower() == ".json":
        texts = QUOTED.findall(read_text(file))
        rows = [[text] for text in texts if "/" in text or "." in text][:ROWS]
    else:
        rows = [row if len(row) > 1 else row[0].split() for _, row in islice(numbered_rows(file), ROWS)]
    for row in rows:
        ends = (_ends(os.path.splitext(cell.strip().replace("\\", "/"))[0]) for cell in row)
        # a number of a few digits may be anything; a path counts with its folder
        yield [each[-1] for each in ends if len(each) > 1 or not (each[0].isdecimal() and len(each[0]) < 5)]


def _ends(name: str) -> list[str]:
    """The last part of a path, and the last two, if there are two."""
    parts = name.replace(os.sep, "/").split("/")
    return [parts[-1], *(["/".join(parts[-2:])] if len(parts) > 1 else [])]


def _entries(folder: Path) -> list[Path]:
    """The entries of a folder; [] if they are many, or cannot be listed."""
    try:
        with os.scandir(folder) as entries:
            found = [Path(entry.path) for entry in islice(entries, MAX_ENTRIES + 1)]
    except OSError:
        return []
    return found if len(found) <= MAX_ENTRIES else []
