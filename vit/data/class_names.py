"""Labels of tables, one or several per image → ordered class names and class indices."""

import logging
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from vit.data.errors import DataError
from vit.data.formats.lines import lone_surrogate
from vit.data.identity import to_nfc
from vit.messages import agree, number_of, override_for_shell

log = logging.getLogger("vit")

SEPARATORS = "|;,"  # common separators of several labels in one cell
MISSING = frozenset({"nan", "na", "n/a", "<na>", "null", "none"})  # texts of missing values, in lower case
PLACEHOLDERS = 10  # equal labels of a split that give a warning
PLAIN_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?")
LIST_AS_TEXT = re.compile(r"\[\s*(['\"\d].*)?\]|\{\s*['\"].*\}", re.DOTALL)  # as pandas and Label Studio write cells


def parse_class_names(classes: Sequence[Any] | None) -> list[str] | None:
    """The class names of the option `classes` as text; None if it is empty.

    Raises:
        DataError: it is one name instead of a list, or a name is true, false or null, as YAML also reads yes, no, on,
            off and ~.
    """
    if isinstance(classes, str) and classes:
        raise DataError(f"data.classes={classes} is one text; write a list, such as "
                        f"{override_for_shell('data.classes', ['cat', 'dog'])}")
    wrong = [name for name in classes or () if name is None or isinstance(name, bool)]
    if wrong:
        raise DataError(f"data.classes={list(classes)}: {wrong[0]} is not a class name; put quotes around each name, "
                        f"such as {override_for_shell('data.classes', ['yes', 'no'])}")
    return [clean_label(name) for name in classes] if classes else None


def clean_label(value: Any) -> str:
    """A label as a class name: stripped of white space, in Unicode's NFC form; "" for None, NaN and white space.

    Whole numbers stored as floats, which pandas writes in columns with missing values, are converted to integers.
    """
    if value is None or isinstance(value, float | np.floating) and value != value:
        return ""
    if isinstance(value, float | np.floating) and value.is_integer():
        value = int(value)
    return to_nfc(str(value).strip())


def warn_about_similar_names(where: Path | str, names: Sequence[str]) -> None:
    """Warns about classes whose names differ only by case or white space, or are the same number, since they may be
    meant as one class.
    """
    groups = defaultdict(list)
    for name in names:
        number = Decimal(name) if PLAIN_NUMBER.fullmatch(name) else None  # a float would round large numbers
        groups[" ".join(name.casefold().split()) if number is None else number].append(name)
    for key, group in groups.items():
        if len(group) > 1:
            what = "are the same number" if isinstance(key, Decimal) else "differ only by case or white space"
            log.warning("%s: %s are %d classes, although they %s; rename them if they mean the same", where,
                        " and ".join(map(repr, group)), len(group), what)


def warn_about_missing(where: Path | str, values: Sequence[str]) -> None:
    """Warns about the class of labels such as `nan` and `None`, as some programs write missing values."""
    found = [value for value in values if value.lower() in MISSING]
    if found:
        log.warning("%s: %d of %s %s %r, which is a class; if this is a missing value, remove such rows", where,
                    len(found), number_of(len(values), "label"), agree(len(found), "is", "are"), found[0])


def labels_are_class_names(values: Sequence[Any], classes: Sequence[str] | None) -> bool:
    """Whether all labels are among the given class names; then numeric labels are names, not indices."""
    return bool(classes) and {clean_label(value) for value in values} <= {*classes, ""}


def labels_are_withheld(values: Sequence[Any], known: Sequence[str]) -> bool:
    """Whether all labels of a split are -1, as in the test splits of competitions, which is none of the known classes.
    """
    return len(values) > 0 and "-1" not in known and all(clean_label(value) == "-1" for value in values)


def withheld_reason(values: Sequence[Any]) -> str:
    """Why a split whose labels are withheld is left out."""
    return f"all of its {number_of(len(values), 'label')} are -1, so they are withheld"


def warn_about_one_label(where: Path | str, key: str, labels: np.ndarray, classes: Sequence[str]) -> None:
    """Warns about ten or more samples of val or test with the same label, which may be a placeholder, as in the test
    tables of competitions.

    Args:
        key: the split.
        labels: indices (N,), or bool (N,classes).
    """
    if len(labels) < PLACEHOLDERS or len(classes) < 2 or (labels != labels[0]).any():
        return
    name = classes[labels[0]] if labels.ndim == 1 else [classes[i] for i in np.flatnonzero(labels[0])]
    log.warning("%s: all of the %d labels of %s are %r, and the data has %d classes; if this is a placeholder of "
                "withheld labels, leave out these rows, since accuracies on them mean nothing", where, len(labels), key,
                name, len(classes))


def encode_labels(
    path: Path | str, values: list[Any], separator: str | None, stored: list[str] | None, known: list[str] | None = None
) -> tuple[list[str], np.ndarray]:
    """Class names and labels: (N,) indices, or (N,classes) bool if a separator or list cells allow several per image.

    `stored` are the names of numeric labels in this table, `known` the classes of the training split, which labels must
    match. With several labels per image allowed, an image may also have none.

    Raises:
        DataError: a label is empty, unknown or out of range; names the row.
    """
    lists = any(isinstance(value, list | tuple | np.ndarray) for value in values)
    if not lists:
        check_no_lists(lambda row: f"{path} row {row}", values)
    if separator is None and not lists:
        return _encode_single_labels(path, values, stored, known)
    sets = _list_cells(path, values) if lists else _split_cells(path, values, separator)
    rows = np.repeat(np.arange(len(sets)), [len(names) for names in sets])  # the row of each label
    if not len(rows):
        raise DataError(f"{path}: none of its {number_of(len(sets), 'image')} has a label; expected class names for "
                        "some of them")
    names, each = _encode_single_labels(path, [name for names in sets for name in names], stored, known, rows)
    table = np.zeros((len(sets), len(names)), bool)
    table[rows, each] = True
    return names, table


def _encode_single_labels(
    path: Path | str,
    values: list[Any],
    stored: list[str] | None,
    known: list[str] | None = None,
    rows: Sequence[int] | None = None,
) -> tuple[list[str], np.ndarray]:
    """Class names and (N,) labels of one label per entry; numbers are indices if names are `stored`."""
    rows = range(len(values)) if rows is None else rows
    raw, values = values, [clean_label(value) for value in values]
    numbers = _as_numbers(values)
    empty = next((i for i, value in enumerate(values) if not value), None)
    if empty is None and numbers is None and "nan" in (lower := [value.lower() for value in values]):
        rest = [value for value in values if value.lower() != "nan"]  # text of a missing number
        empty = lower.index("nan") if all(is_number(value) for value in rest) else None
    if empty is not None:
        raise DataError(
            f"{path} row {rows[empty]}: the label is empty ({raw[empty]!r}); give every image a label or remove the row"
        )
    stored, known = ([clean_label(name) for name in names] if names else None for names in (stored, known))
    if numbers is not None and stored:
        _check_range(path, numbers, stored, rows)
        if known is None or known == stored:
            return stored, numbers
        values, numbers = [stored[n] for n in numbers], None
    found = np.unique(numbers).tolist() if numbers is not None else sorted(set(values))
    names = known or stored or [str(v) for v in found]
    if not (known or stored):
        warn_about_similar_names(path, names)
        warn_about_missing(path, values)
        _warn_about_merged_labels(path, raw)
        warn_about_combined_labels(path, names)
    if broken := next((name for name in names if lone_surrogate(name)), None):
        row = f" row {rows[values.index(broken)]}" if broken in values else ""
        raise DataError(f"{path}{row}: the label {broken!r} has {lone_surrogate(broken)}, half of a character; write "
                        "both halves or remove it")
    index = {name: i for i, name in enumerate(names)}
    texts = values if numbers is None else [str(v) for v in numbers]
    wrong = next((i for i, text in enumerate(texts) if text not in index), None)
    if wrong is not None:
        listed = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        raise DataError(
            f"{path} row {rows[wrong]}: class {texts[wrong]!r} is not among the {len(names)} known classes ({listed})"
        )
    return names, np.array([index[text] for text in texts], dtype=np.int64)


def _split_cells(path: Path | str, values: list[Any], separator: str) -> list[list[str]]:
    """The stripped names between separators; an empty cell is an image without a label."""
    if not separator:
        raise DataError("data.label_separator is empty, but must be the character between the names, as in "
                        f"{override_for_shell('data.label_separator', '|')}")
    cells = [clean_label(value) for value in values]
    other = next((sign for sign in SEPARATORS if any(sign in cell for cell in cells)), None)
    if other and not any(separator in cell for cell in cells):
        shown = next(cell for cell in cells if other in cell)
        raise DataError(f"{path}: data.label_separator={separator!r} does not occur in the "
                        f"{number_of(len(cells), 'label')}, such as {shown!r}; did you mean {other!r}?")
    sets = [[name.strip() for name in cell.split(separator)] if cell else [] for cell in cells]
    empty = next((i for i, names in enumerate(sets) if "" in names), None)
    if empty is not None:
        raise DataError(f"{path} row {empty}: {cells[empty]!r} has an empty name between two separators; remove one of "
                        "them")
    return sets


def _list_cells(path: Path | str, values: list[Any]) -> list[list[Any]]:
    """Cells that are lists; an empty list or cell is an image without a label."""
    values = [None if isinstance(value, float) and value != value else value for value in values]
    wrong = next((i for i, v in enumerate(values) if v is not None and not isinstance(v, list | tuple | np.ndarray)),
                 None)
    if wrong is not None:
        raise DataError(f"{path} row {wrong}: the label {values[wrong]!r} is not a list, in contrast to other rows; "
                        "write a list in every row")
    return [list(value) if value is not None else [] for value in values]


def _warn_about_merged_labels(path: Path | str, raw: Sequence[Any]) -> None:
    """Warns about labels that differ only by surrounding white space or Unicode form and become one class."""
    forms = defaultdict(set)
    for value in raw:
        if isinstance(value, str):
            forms[clean_label(value)].add(value)
    for name, written in forms.items():
        if len(written) > 1:
            log.warning("%s: labels %s are one class, %r", path, " and ".join(map(ascii, sorted(written))), name)


def check_no_lists(locate: Callable[[int], str], values: Sequence[Any]) -> None:
    """Raises DataError, at `locate(row)`, for a label that is a list written as text, as pandas writes cells."""
    wrong = next((i for i, value in enumerate(values) if LIST_AS_TEXT.fullmatch(clean_label(value))), None)
    if wrong is not None:
        raise DataError(f"{locate(wrong)}: the label {clean_label(values[wrong])!r} is a list written as text; for "
                        "several labels per image join the names, as in cat|dog, and set "
                        f"{override_for_shell('data.label_separator', '|')}, or save the table as JSON or Parquet (a "
                        "text has one label)")


def warn_about_combined_labels(where: Path | str, names: Sequence[str]) -> None:
    """Warns about class names that consist of other class names, or of a few names that recur in most of them."""
    known = set(names)
    for sign in (*SEPARATORS, " "):
        combined = {name: [part.strip() for part in name.split(sign)] for name in names if sign in name}
        parts = {part for each in combined.values() for part in each}
        of_others = [name for name, each in combined.items() if known.issuperset(each)]
        recurring = 2 * len(combined) > len(names) > (5 if sign == " " else 1) * len(parts)
        if of_others or recurring:
            example = next(iter(of_others or combined))
            log.warning("%s: class names such as %r combine several names; if an image may have several labels, set "
                        "%s (a text has one)", where, example, override_for_shell("data.label_separator", sign))
            return


def is_number(value: str) -> bool:
    """Whether Python parses the text as a number."""
    try:
        float(value)
    except ValueError:
        return False
    return True


def _as_numbers(values: list[Any]) -> np.ndarray | None:
    """The labels as int64; None if one is not a number in plain digits, or exceeds int64 and can only be a name."""
    try:
        numbers = [int(v) for v in values]
        if any(str(n) != str(v) for n, v in zip(numbers, values, strict=True)):
            return None
        return np.array(numbers, dtype=np.int64)
    except (TypeError, ValueError, OverflowError):
        return None


def _check_range(path: Path | str, labels: np.ndarray, names: list[str], rows: Sequence[int]) -> None:
    wrong = np.flatnonzero((labels < 0) | (labels >= len(names)))
    if len(wrong):
        raise DataError(
            f"{path} row {rows[wrong[0]]}: label {labels[wrong[0]]} is out of range for "
            f"{number_of(len(names), 'class')} (0..{len(names) - 1}); {len(wrong)} of "
            f"{number_of(len(labels), 'label')} {agree(len(wrong), 'is', 'are')} wrong"
            + ("; they count from 1: subtract 1, or leave out the names" if _count_from_1(labels, names) else "")
        )


def _count_from_1(labels: np.ndarray, names: list[str]) -> bool:
    return labels.min() == 1 and labels.max() == len(names)
