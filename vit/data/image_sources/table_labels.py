"""The labels of a table of images: one column of names or numbers, of lists, or several columns of 0 and 1."""

import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from vit.data.class_names import clean_label, encode_labels, is_number, labels_are_class_names, parse_class_names
from vit.data.errors import DataError
from vit.data.formats.delimited import Column
from vit.data.formats.parquet import classes_beside
from vit.data.identity import to_nfc
from vit.data.image_sources.files import is_image_name
from vit.data.image_sources.table_columns import LABEL_COLUMNS, distinct, select_column, to_list, values_of
from vit.data.splits.names import is_split_name, split_of
from vit.files.untrusted import read_json, read_text, read_yaml
from vit.messages import agree, did_you_mean, list_names, nearest_names, number_of, override_for_shell

log = logging.getLogger("vit")

TEXTS = (".txt", ".names")
NAMED = (".json", ".yaml", ".yml", *TEXTS)  # of files that may name the classes
LISTS = re.compile(r"^(class|label|categor)\w*$|names$", re.IGNORECASE)  # of texts with a class per line
PRESENT, ABSENT = ("1", "1.0", "true"), ("0", "0.0", "-1", "-1.0", "false")

Labels = tuple[list[str], np.ndarray]  # class names, and indices (N,) or bool (N,classes)


@dataclass(frozen=True)
class TableLabels:
    """The labels of a table.

    Attributes:
        values: indices (N,), or bool (N,classes).
        columns: the columns that state them.
        stated: the names of labels that are numbers; None for labels that are names.
    """

    classes: list[str]
    values: np.ndarray
    columns: list[Column]
    stated: list[str] | None = None


def table_labels(
    path: Path,
    columns: dict[Column, Any],
    label: Column | Sequence[Column] | None,
    names: Mapping[Column, list[str]],
    classes: Sequence[str] | None,
    separator: str | None,
    one_hot: bool = False,
    train: TableLabels | None = None,
) -> TableLabels:
    """The labels of a table.

    Args:
        label: a column, several columns of 0 and 1, or None for a column with a conventional name.
        names: the class names that the file or its folder states for its columns.
        classes: those that the user states.
        separator: of several labels in a cell.
        one_hot: several columns of 0 and 1 state one class per image.
        train: the labels of the training split if that is another table, whose classes these are.

    Raises:
        DataError: there is no such column, or a label is invalid.
    """
    known = parse_class_names(classes) if train is None else train.classes
    if label is None and len(columns) == 1 and (folders := _folders_in_names(*columns.values(), known)):
        log.warning("%s: has no column of labels, so the folders in the names of the images are the classes, such as "
                    "%r", path, next((name for name in folders if "/" in name), folders[0]))
        return TableLabels(*encode_labels(path, folders, None, None, known), [])
    if isinstance(label, Sequence) and not isinstance(label, str):
        return TableLabels(*_indicator_labels(path, columns, label, one_hot), list(label))
    label = _label_column(path, columns, label)
    if one_hot:
        raise DataError(f"{path}: data.one_hot=true needs a column of 0 and 1 for each class, such as "
                        f"{override_for_shell('data.label', ['cat', 'dog'])}, not the single column {label!r}")
    values = values_of(path, columns, label)
    _check_no_objects(path, label, values)
    _warn_about_more_words(path, columns, label)
    if train is None:
        cells = values
        stated, (classes, values) = _classes_and_labels(path, values, names.get(label), classes, separator)
        if stated is None and separator is None:
            _warn_about_signs(path, cells)
            _warn_about_a_column_of_names(path, columns, label, cells)
    else:
        stated = names.get(label) or train.stated
        whole = _whole_numbers(values) if stated else values
        classes, values = encode_labels(path, whole, separator, stated, train.classes)
    return TableLabels(classes, values, [label], stated)


def _check_no_objects(path: Path, label: Column, values: list[Any]) -> None:
    """Raises DataError if a label is an object of JSON or a struct, with its keys."""
    row = next((row for row, value in enumerate(values) if isinstance(value, dict)), None)
    if row is not None:
        keys = list_names((f"{label}.{key}" for key in values[row]), 5)
        raise DataError(f"{path} row {row}: the label is an object; select one of its keys with data.label ({keys}), "
                        "or write a table with the columns image and label")


def _warn_about_more_words(path: Path, columns: dict[Column, Any], label: Column) -> None:
    """A warning if words follow the label in a list without a header, as of class names that white space separates."""
    behind = [values for column, values in columns.items() if isinstance(label, int) and column > label]
    word = next((value for values in behind for value in values if value and not is_number(value)
                 and not is_image_name(value) and split_of(value) is None), None)
    if word is not None and path.suffix.lower() != ".csv":
        log.warning("%s: the fields behind column %d, such as %r, are not read; if they belong to the names of the "
                    "classes, write the table with commas", path, label, word)


def _warn_about_signs(path: Path, values: list[Any]) -> None:
    """A warning if the labels are -1, 0 and 1, as in the lists of Pascal VOC and in CheXpert."""
    signs, found = {"-1", "0", "1"}, set()
    for value in values:
        found.add(clean_label(value))
        if not found <= signs:
            return
    if found == signs:
        log.warning("%s: its labels -1, 0 and 1 are three classes; if they mean absent, difficult or uncertain, and "
                    "present, as in Pascal VOC, leave out the rows of the second kind", path)


def _warn_about_a_column_of_names(path: Path, columns: dict[Column, Any], label: Column, values: list[Any]) -> None:
    """A warning if the labels are numbers, and another column has a name for each of them."""
    numbers = [clean_label(value) for value in values]
    if not all(map(str.isdecimal, numbers)) or not 2 <= len({*numbers}) < len(numbers):
        return
    for column, cells in columns.items():
        if column == label or not (isinstance(cells, list) or str(cells.type) in ("string", "large_string")):
            continue
        name_of: dict[str, str] = {}
        if all(isinstance(cell, str) and cell and not is_number(cell) and name_of.setdefault(number, cell) == cell
               for number, cell in zip(numbers, to_list(cells), strict=True)) and (
                len({*name_of.values()}) == len(name_of)):
            log.warning("%s: its labels are numbers, and the column %r, which has a name for each, such as %r, is not "
                        "read; %s makes these names the classes", path, column, name_of[numbers[0]],
                        override_for_shell("data.label", column))
            return


def _folders_in_names(names: Any, known: Sequence[str] | None) -> list[str]:
    """The last folder in each name of a column; if the names are of different depths, as in SUN397 (a/abbey/1.jpg and
    c/church/outdoor/1.jpg), all folders below those that all names share, since different classes may have folders
    of one name. [] if a name has no folder, or its last one is named after a split.

    Args:
        known: the classes, if another table or the user states them.
    """
    parts = [name.replace("\\", "/").split("/")[:-1] if isinstance(name, str) else [] for name in to_list(names)]
    if any(not each or not each[-1] or is_split_name(each[-1]) for each in parts):
        return []
    if known is not None:
        ends = (["/".join(each[i:]) for i in range(len(each))] for each in parts)
        return [next((end for end in each if to_nfc(end) in known), each[-1]) for each in ends]
    if len(set(map(len, parts))) == 1:
        return [each[-1] for each in parts]
    shared = min(len(os.path.commonprefix(parts)), min(map(len, parts)) - 1)
    return ["/".join(each[shared + is_split_name(each[shared]) :]) for each in parts]


def _label_column(path: Path, columns: dict[Column, Any], requested: Column | None) -> Column:
    """The column of labels; the error names the columns that state labels by 0 and 1, if there are several."""
    try:
        return select_column(path, columns, requested, (*LABEL_COLUMNS, "labelname"), "label")
    except DataError as error:
        found = _indicator_columns({name: distinct(column) for name, column in columns.items()})
        if len(found) < 2:
            raise
        indicators = override_for_shell("data.label", [str(name).strip() for name in found])
        cells = zip(*(to_list(columns[name]) for name in found), strict=True)
        single = all(sum(clean_label(cell).lower() in PRESENT for cell in row) == 1 for row in cells)
        fix = (f"if the columns of 0 and 1 are the classes, one of each image: {indicators} data.one_hot=true" if single
               else f"if each image may have several labels, one in each column of 0 and 1: {indicators}")
        raise DataError(f"{error}; {fix}") from None


def _classes_and_labels(
    path: Path, values: list, names: list[str] | None, classes: Sequence[str] | None, separator: str | None
) -> tuple[list[str] | None, Labels]:
    """The names of labels that are numbers, if they are stated, the class names and the encoded labels of a column with
    these values.

    Args:
        names: the class names that the file or its folder states for the column.
        classes: those that the user states.
    """
    given = parse_class_names(classes)
    if given is not None and separator is None and labels_are_class_names(values, given):
        return None, encode_labels(path, values, separator, None, given)
    whole = _whole_numbers(values)
    stated = given or names or _names_of_indices(path, whole)
    return stated, encode_labels(path, whole if stated else values, separator, stated, None)


def _whole_numbers(values: list) -> list:
    """Labels that are all texts of whole floats, such as "3.0", without the decimals; else the labels."""
    whole = [re.fullmatch(r"\s*(\d+)\.0*\s*", value) if isinstance(value, str) else None for value in values]
    return [match[1] for match in whole] if all(whole) else values


def _names_of_indices(path: Path, values: list[Any]) -> list[str] | None:
    """The names in classes.json if all labels are indices. Another file that names the labels is reported."""
    if not all(clean_label(value).isdecimal() for value in values):
        return None
    names = classes_beside(path.parent)
    if names is None and (path.parent / "classes.txt").is_file():  # which has no common format
        log.warning("%s: its labels are numbers, and classes.txt beside it is not read; a classes.json or "
                    "data.classes, a list of names in the order from 0, names the classes", path)
    elif names is None:
        _warn_about_a_file_of_names(path, [int(clean_label(value)) for value in values])
    return names


def _warn_about_a_file_of_names(path: Path, numbers: Sequence[int]) -> None:
    """A warning if a file beside the table has a name for each of the labels."""
    files = (each for each in sorted(path.parent.iterdir()) if each.suffix.lower() in NAMED and each.name != path.name)
    for file in islice(files, 20):
        try:
            count = _count_names(file) if file.is_file() and file.stat().st_size < 2**20 else 0
        except (OSError, ValueError):
            continue
        lines_of_images = file.suffix.lower() in TEXTS and count >= len(numbers)
        if max(numbers) < count and not lines_of_images:
            log.warning("%s: its labels are numbers, and %s beside it, which names them, is not read; a classes.json "
                        "or data.classes, a list of names in the order from 0, names the classes", path,
                        file.name)
            return


def _count_names(file: Path) -> int:
    """The number of names of classes in a file: a list, a mapping between numbers from 0 and names, `names` of YOLO's
    YAML, or the lines of a text with such a name; 0 for any other file.
    """
    kind = file.suffix.lower()
    if kind in TEXTS:
        lines = read_text(file).split("\n") if kind == ".names" or LISTS.search(file.stem) else []
        return sum(bool(line.strip()) for line in lines)
    content = read_json(file) if kind == ".json" else read_yaml(file)
    if kind != ".json":
        content = content.get("names") if isinstance(content, dict) else None
    listed = content if isinstance(content, list) else ()
    pairs = list(content.items() if isinstance(content, dict) else enumerate(listed))
    names = {str(number): name for number, name in pairs} | {str(number): name for name, number in pairs}
    found = [names.get(str(number)) for number in range(len(pairs))]
    return len(found) if all(isinstance(name, str) for name in found) else 0


def _indicator_labels(path: Path, columns: dict[Column, Any], requested: Sequence[Column], one_hot: bool) -> Labels:
    """The requested columns as class names, without surrounding white space, and labels (N,classes) bool, or (N,) if
    they are `one_hot`.

    Raises:
        DataError: a column is missing, a cell is none of 0, 1, -1, true and false, or with `one_hot` a row does not
            have exactly one class.
    """
    stripped = {str(column).strip(): column for column in columns}
    names = [str(name).strip() for name in requested]
    for name in names:
        if name not in stripped:
            hint = did_you_mean(nearest_names(name, stripped, cutoff=0.6))
            raise DataError(f"{path}: has no column {name!r} for data.label; its columns are {list_names(stripped)}"
                            f"{hint}")
    labels = _table_of(path, columns, [stripped[name] for name in names])
    if one_hot:
        return names, only_label(path, labels)
    warn_about_one_hot(path, labels, "data.one_hot=true")
    return names, labels


def _table_of(path: Path, columns: dict[Column, Any], indicators: Sequence[Column]) -> np.ndarray:
    """Columns of 0 and 1 as (N,columns) bool."""
    each = [_present(path, str(name).strip(), to_list(columns[name])) for name in indicators]
    return np.array(each, dtype=bool).reshape(len(each), -1).T


def only_label(path: Path | str, labels: np.ndarray) -> np.ndarray:
    """(N,classes) bool -> (N,), the only label of each image.

    Raises:
        DataError: an image has none, or several.
    """
    counts = labels.sum(axis=1)
    if len(wrong := np.flatnonzero(counts != 1)):
        raise DataError(f"{path} row {wrong[0]}: has {counts[wrong[0]]} of the {labels.shape[1]} classes, as "
                        f"{len(wrong)} of {number_of(len(labels), 'row')} {agree(len(wrong), 'does', 'do')} not "
                        "have exactly one; correct them, or leave out data.one_hot=true for several labels per image, "
                        "or none")
    return labels.argmax(axis=1)


def warn_about_one_hot(path: Path, labels: np.ndarray, fix: str) -> None:
    """Warns if each image has exactly one of the labels (N,classes), which may be meant as a class per image.

    Args:
        fix: how to state one class per image.
    """
    if labels.shape[1] > 1 and len(labels) and (labels.sum(axis=1) == 1).all():
        log.warning("%s: each of the %d images has exactly one of the %d labels, although this form allows several or "
                    "none; if each image has one class, use %s", path, *labels.shape, fix)


def _indicator_columns(columns: Mapping[Column, Sequence[Any]]) -> list[Column]:
    """The columns that hold nothing but indicators, and both values of them."""
    return [column for column, values in columns.items() if _are_indicators(values)]


def _are_indicators(values: Sequence[Any]) -> bool:
    found = set()
    for value in values:
        cell = clean_label(value).lower()
        if cell not in (*PRESENT, *ABSENT):
            return False
        found.add(cell in PRESENT)
    return len(found) == 2


def _present(path: Path, name: str, values: Sequence[Any]) -> list[bool]:
    cells = [clean_label(value).lower() for value in values]
    wrong = next((i for i, cell in enumerate(cells) if cell not in (*PRESENT, *ABSENT)), None)
    if wrong is not None:
        raise DataError(f"{path} row {wrong}: {name!r} is {values[wrong]!r}, expected 1 if the image has this label, "
                        "and 0 or -1 if not; data.label may be a list of columns of labels")
    negative = next((i for i, cell in enumerate(cells) if cell.startswith("-")), None)
    if negative is not None and not {"0", "0.0"}.isdisjoint(cells):
        raise DataError(f"{path} row {negative}: {name!r} is {values[negative]!r}, but the column has 0 as well, so "
                        "that it may mean uncertain, as in CheXpert; write 0 or 1, or leave the row out")
    return [cell in PRESENT for cell in cells]
