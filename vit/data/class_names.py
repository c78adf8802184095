"""Labels of tables, one or several per image → ordered class names and label numbers."""

import logging
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vit.data.errors import DataError
from vit.data.formats.lines import lone_surrogate
from vit.data.identity import composed

log = logging.getLogger("vit")

SEPARATORS = "|;,"  # what people put between several names


def class_list(classes: Sequence[Any] | None) -> list[str] | None:
    """Class names of an option, each as text; None where there are none.

    Raises:
        DataError: one is true, false or null, as YAML also parses yes, no, on and off.
    """
    wrong = [name for name in classes or () if name is None or isinstance(name, bool)]
    if wrong:
        raise DataError(f"data.classes={list(classes)}: {wrong[0]} is no class name; put quotes around each name, "
                        "such as data.classes=['yes','no']")
    return [clean(name) for name in classes] if classes else None


def clean(value: Any) -> str:
    """A label as a class name: without surrounding white space, in Unicode's composed form; "" where it is missing.

    Missing are None, NaN and white space alone. Whole numbers that were stored as floats, as pandas does beside NaN,
    are whole numbers.
    """
    if value is None or isinstance(value, float | np.floating) and value != value:
        return ""
    if isinstance(value, float | np.floating) and value.is_integer():
        value = int(value)
    return composed(str(value).strip())


def warn_of_alike(where: Path | str, names: Sequence[str]) -> None:
    """Logs classes whose names differ only by case or white space, since they may be one class."""
    groups = defaultdict(list)
    for name in names:
        groups[" ".join(name.casefold().split())].append(name)
    for group in groups.values():
        if len(group) > 1:
            log.warning("%s: %s are %d classes, although they differ only by case or white space; rename them where "
                        "they mean the same", where, " and ".join(map(repr, group)), len(group))


def known_by_name(values: Sequence[Any], classes: Sequence[str] | None) -> bool:
    """Whether labels are among the class names of an option; then numbers are names, not indices."""
    return bool(classes) and {clean(value) for value in values} <= {*classes, ""}


def labelled(
    path: Path | str, values: list[Any], separator: str | None, stored: list[str] | None, known: list[str] | None = None
) -> tuple[list[str], np.ndarray]:
    """Class names and labels: (N,), or (N,classes) where a separator or cells that are lists allow several per image.

    `stored` are the names of label numbers in this table, `known` those of the training split, against which labels are
    matched. An image may have no label where several are allowed.

    Raises:
        DataError: names the row.
    """
    lists = any(isinstance(value, list | tuple | np.ndarray) for value in values)
    if separator is None and not lists:
        return numbered(path, values, stored, known)
    sets = _listed(path, values) if lists else _cut(path, values, separator)
    rows = np.repeat(np.arange(len(sets)), [len(names) for names in sets])  # the image of each label
    if not len(rows):
        raise DataError(f"{path}: none of its {len(sets)} images has a label; expected names in some of them")
    names, each = numbered(path, [name for names in sets for name in names], stored, known, rows)
    table = np.zeros((len(sets), len(names)), bool)
    table[rows, each] = True
    return names, table


def numbered(
    path: Path | str,
    values: list[Any],
    stored: list[str] | None,
    known: list[str] | None = None,
    rows: Sequence[int] | None = None,
) -> tuple[list[str], np.ndarray]:
    """Class names and (N,) labels: numbers are indices where names are stored; `known` are those of train."""
    rows = range(len(values)) if rows is None else rows
    raw, values = values, [clean(value) for value in values]
    numbers = _as_numbers(values)
    empty = next((i for i, value in enumerate(values) if not value), None)
    if empty is None and numbers is None and "nan" in (lower := [value.lower() for value in values]):
        rest = [value for value in values if value.lower() != "nan"]  # text of a missing number
        empty = lower.index("nan") if all(_is_number(value) for value in rest) else None
    if empty is not None:
        raise DataError(
            f"{path} row {rows[empty]}: the label is empty ({raw[empty]!r}); give every image a label or remove the row"
        )
    stored, known = ([clean(name) for name in names] if names else None for names in (stored, known))
    if numbers is not None and stored:
        _check_range(path, numbers, stored, rows)
        if known is None or known == stored:
            return stored, numbers
        values, numbers = [stored[n] for n in numbers], None
    found = np.unique(numbers).tolist() if numbers is not None else sorted(set(values))
    names = known or stored or [str(v) for v in found]
    if not (known or stored):
        warn_of_alike(path, names)
        _log_trimmed(path, raw)
    if broken := next((name for name in names if lone_surrogate(name)), None):
        row = f" row {rows[values.index(broken)]}" if broken in values else ""
        raise DataError(f"{path}{row}: the label {broken!r} has {lone_surrogate(broken)}, half of a character; write "
                        "both halves or take it out")
    index = {name: i for i, name in enumerate(names)}
    texts = values if numbers is None else [str(v) for v in numbers]
    wrong = next((i for i, text in enumerate(texts) if text not in index), None)
    if wrong is not None:
        listed = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        raise DataError(
            f"{path} row {rows[wrong]}: class {texts[wrong]!r} is not among the {len(names)} known ({listed})"
        )
    return names, np.array([index[text] for text in texts], dtype=np.int64)


def _cut(path: Path | str, values: list[Any], separator: str) -> list[list[str]]:
    """Names between separators, less the blanks around them; an empty cell is an image without a label."""
    if not separator:
        raise DataError("data.label_separator='': must be a sign that stands between the names, such as '|'")
    cells = [clean(value) for value in values]
    other = next((sign for sign in SEPARATORS if any(sign in cell for cell in cells)), None)
    if other and not any(separator in cell for cell in cells):
        shown = next(cell for cell in cells if other in cell)
        raise DataError(f"{path}: data.label_separator={separator!r} is in none of {len(cells)} labels such as "
                        f"{shown!r}; is it {other!r}?")
    sets = [[name.strip() for name in cell.split(separator)] if cell else [] for cell in cells]
    empty = next((i for i, names in enumerate(sets) if "" in names), None)
    if empty is not None:
        raise DataError(f"{path} row {empty}: an empty name between the separators of {cells[empty]!r}; remove one")
    return sets


def _listed(path: Path | str, values: list[Any]) -> list[list[Any]]:
    """Cells that are lists; an empty list or cell is an image without a label."""
    values = [None if isinstance(value, float) and value != value else value for value in values]
    wrong = next((i for i, v in enumerate(values) if v is not None and not isinstance(v, list | tuple | np.ndarray)),
                 None)
    if wrong is not None:
        raise DataError(f"{path} row {wrong}: the label {values[wrong]!r} is no list, as other rows' are; write a list "
                        "in every row")
    return [list(value) if value is not None else [] for value in values]


def _log_trimmed(path: Path | str, raw: Sequence[Any]) -> None:
    """Logs labels that are one class only because white space around them and Unicode's forms do not count."""
    forms = defaultdict(set)
    for value in raw:
        if isinstance(value, str):
            forms[clean(value)].add(value)
    for name, written in forms.items():
        if len(written) > 1:
            log.warning("%s: labels %s are one class, %r", path, " and ".join(map(ascii, sorted(written))), name)


def _is_number(value: str) -> bool:
    try:
        return bool(float(value) or True)
    except ValueError:
        return False


def _as_numbers(values: list[Any]) -> np.ndarray | None:
    try:
        numbers = [int(v) for v in values]
    except (TypeError, ValueError):
        return None
    return (
        np.array(numbers, dtype=np.int64)
        if all(str(n) == str(v) for n, v in zip(numbers, values, strict=True))
        else None
    )


def _check_range(path: Path | str, labels: np.ndarray, names: list[str], rows: Sequence[int]) -> None:
    wrong = np.flatnonzero((labels < 0) | (labels >= len(names)))
    if len(wrong):
        raise DataError(
            f"{path} row {rows[wrong[0]]}: label {labels[wrong[0]]} is out of range for {len(names)} classes "
            f"(0..{len(names) - 1}); {len(wrong)} of {len(labels)} labels are wrong"
        )
