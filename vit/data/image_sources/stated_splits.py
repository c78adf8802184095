"""Files beside a table that state the splits of its images: one with a split in each row, as list_eval_partition.txt of
CelebA, or a list of images for each split, as test_list.txt of ChestX-ray14.
"""

import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from vit.data.errors import DataError
from vit.data.formats.delimited import numbered_rows
from vit.data.identity import to_nfc
from vit.data.image_sources.files import is_image_name
from vit.data.splits.names import SPLIT_NAMES, split_of
from vit.messages import agree, number_of, quoted

log = logging.getLogger("vit")

KINDS = (".csv", ".tsv", ".txt", ".lst", ".xlsx")
NUMBERS = dict(zip("012", SPLIT_NAMES, strict=True))  # of CelebA
COLUMNS = ("split", "partition", "set", "subset")
TRIED = 2000  # rows by which the column of names is found
Fields = tuple[int, list[str]]  # number of a line and its cells
Row = tuple[int, list[str], str | None]  # number, cells, the image that it names


def splits_in_file(file: Path, names: Sequence[str]) -> list[str]:
    """The split of each image that a row of a file states, by its name or by CelebA's numbers 0, 1 and 2.

    Raises:
        DataError: the file names none of the images, lacks one, or has an unknown split or two for an image.
    """
    rows, column = _rows_of_images(file, names)
    values = _values(file, rows, column)
    numbers = {*values.values()} == {*NUMBERS}
    found: dict[str, str] = {}
    for (number, _, image), value in zip([row for row in rows if row[2] is not None], values.values(), strict=True):
        key = NUMBERS[value] if numbers else split_of(value)
        if key is None:
            fix = "; write train, val or test, since 0 and 1 may be either" if value in NUMBERS else ""
            raise DataError(f"{file} line {number}: split {value!r} is not one of "
                            f"{', '.join(name for each in SPLIT_NAMES.values() for name in each)}{fix}")
        _add(found, file, image, key)
    missing = [name for name in names if name not in found]
    if missing:
        raise DataError(f"{file}: states no split of {len(missing)} of {number_of(len(names), 'image')}, first "
                        f"{missing[0]!r}; add them, or remove them from the table")
    return [found[name] for name in names]


def splits_in_lists(files: Mapping[str, Path], names: Sequence[str]) -> list[str | None]:
    """The split of each image by a list of the images of each split. Images in no list are in train if it has no list,
    otherwise in no split (None).

    Raises:
        DataError: a list names none of the images, or an image is in two lists.
        FileNotFoundError: a list does not exist.
    """
    found: dict[str, str] = {}
    for key, file in files.items():
        if not file.is_file():
            raise FileNotFoundError(f"data.{key}: the list {file} of images does not exist")
        for _, _, image in _rows_of_images(file, names)[0]:
            if image is not None:
                _add(found, file, image, key)
    rest = None if "train" in files else "train"
    return [found.get(name, rest) for name in names]


def names_images(file: Path, names: Sequence[str]) -> bool:
    """Whether a file is a list or delimited table that names any of the images."""
    return file.suffix.lower() in KINDS and _most_names(file, _Names(names))[2] > 0


def _add(found: dict[str, str], file: Path, image: str, key: str) -> None:
    if found.setdefault(image, key) != key:
        raise DataError(f"{file}: {image!r} is in two splits, {found[image]} and {key}; leave it in one of them")


def _rows_of_images(file: Path, names: Sequence[str]) -> tuple[list[Row], int]:
    """The rows of a file, each with the image that it names, and the column of these names, which is that of most
    images.
    """
    if file.suffix.lower() not in KINDS:
        raise DataError(f"{file}: is not a list of images ({', '.join(KINDS)})")
    known = _Names(names)
    rows, column, most = _most_names(file, known)
    if not most:
        raise DataError(f"{file}: names none of the {number_of(len({*names}), 'image')} of the table, such as "
                        f"{quoted(names[0])}; correct the names, or set another file")
    rows = [(number, row, _image(file, number, row[column], known) if column < len(row) else None)
            for number, row in rows]
    unknown = [row for row in rows[1:] if row[2] is None]  # the first row may be a header
    if unknown:
        log.warning("%s: %d of %s %s no image of the table, such as line %d", file, len(unknown),
                    number_of(len(rows), "row"), agree(len(unknown), "names", "name"), unknown[0][0])
    return rows, column


def _values(file: Path, rows: Sequence[Row], column: int) -> dict[int, str]:
    """Number of a row with an image -> the cell that states its split."""
    header = [cell.strip().lower() for cell in rows[0][1]] if rows[0][2] is None else []
    width = Counter(len(row) for _, row, image in rows if image is not None).most_common(1)[0][0]
    others = [i for i in range(width) if i != column]
    named = [i for i in others if i < len(header) and header[i] in COLUMNS]
    chosen = others if len(others) == 1 else named
    if len(chosen) != 1:
        raise DataError(f"{file}: has {number_of(len(others), 'column')} beside the names of the images; data.split "
                        "needs one, or one that its header names split")
    wrong = next((number for number, row, image in rows if image is not None and len(row) <= chosen[0]), None)
    if wrong is not None:
        raise DataError(f"{file} line {wrong}: states no split")
    return {number: row[chosen[0]].strip() for number, row, image in rows if image is not None}


def _most_names(file: Path, known: "_Names") -> tuple[Sequence[Fields], int, int]:
    """The rows of a file, the column that names most images, and their number among the rows that are tried."""
    whole = [(number, row) for number, row in numbered_rows(file) if any(cell.strip() for cell in row)]
    by_white_space = [(number, row[0].split() if len(row) == 1 else row) for number, row in whole]
    return max((_column_of_names(rows, known) for rows in (whole, by_white_space)), key=lambda found: found[2])


def _column_of_names(rows: Sequence[Fields], known: "_Names") -> tuple[Sequence[Fields], int, int]:
    """The rows, the column in which most of up to `TRIED` of them name an image, and their number."""
    tried = [row for _, row in rows[:: len(rows) // TRIED + 1]]
    width = max(map(len, tried), default=0)
    counts = [sum(i < len(row) and known.find(row[i])[0] for row in tried) for i in range(width)]
    most = max(counts, default=0)
    return rows, counts.index(most) if counts else 0, most


def _image(file: Path, number: int, cell: str, known: "_Names") -> str | None:
    found, name = known.find(cell)
    if found and name is None:
        raise DataError(f"{file} line {number}: {cell.strip()!r} is the name of several images of the table; add their "
                        "folders")
    return name


class _Names:
    """Finds the image that a cell names by the end of its path, with or without extension and further folders."""

    def __init__(self, names: Sequence[str]) -> None:
        self.whole = {form: name for name in names for form in _forms(name)}
        self.ends: dict[str, str | None] = {}  # None: of several images
        for name in dict.fromkeys(names):
            for form in _forms(name):
                for end in _ends(form):
                    self.ends[end] = name if self.ends.get(end, name) == name else None

    def find(self, cell: str) -> tuple[bool, str | None]:
        """Whether a cell names an image, and the image, None if there are several."""
        for form in _forms(cell.strip()):
            if form in self.whole:
                return True, self.whole[form]
            if form in self.ends:
                return True, self.ends[form]
            if inner := next((end for end in _ends(form) if end in self.whole), None):
                return True, self.whole[inner]
        return False, None


def _ends(path: str) -> list[str]:
    """The path without its first folders, the longest first."""
    parts = path.split("/")
    return ["/".join(parts[i:]) for i in range(1, len(parts))]


def _forms(name: str) -> list[str]:
    """A path with slashes, with and without the extension of an image."""
    path = to_nfc(name).replace("\\", "/").removeprefix("./")
    return [path, os.path.splitext(path)[0]] if is_image_name(path) else [path]
