"""Labels as tables hold them, one or several per image → class names in order and numbers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vit.data.lines import half_character
from vit.data.source import DataError

SEPARATORS = "|;,"  # what people put between several names

def labelled(
    path: Path | str, values: list[Any], separator: str | None, stored: list[str] | None, known: list[str] | None = None
) -> tuple[list[str], np.ndarray]:
    """Class names, and labels (N,); of several per image, which a separator or cells that are lists say, (N,classes).

    `stored` names are those of numbers from 0, `known` those of train. An image may have no label where several are
    allowed.

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
    empty = next((i for i, v in enumerate(values) if v is None or v == ""), None)
    if empty is not None:
        raise DataError(f"{path} row {rows[empty]}: the label is empty; give every image a label or remove the row")
    numbers = _as_numbers(values)
    if numbers is not None and stored:
        _check_range(path, numbers, stored, rows)
        return stored, numbers
    found = np.unique(numbers).tolist() if numbers is not None else sorted(set(map(str, values)))
    names = stored or known or [str(v) for v in found]
    if broken := next((name for name in names if half_character(name)), None):
        row = f" row {rows[values.index(broken)]}" if broken in values else ""
        raise DataError(f"{path}{row}: the label {broken!r} has {half_character(broken)}, half of a character; write "
                        "both halves or take it out")
    index = {name: i for i, name in enumerate(names)}
    texts = [str(v) for v in (values if numbers is None else numbers)]
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
    cells = ["" if value is None else str(value).strip() for value in values]
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
    wrong = next((i for i, v in enumerate(values) if v is not None and not isinstance(v, list | tuple | np.ndarray)),
                 None)
    if wrong is not None:
        raise DataError(f"{path} row {wrong}: the label {values[wrong]!r} is no list, as other rows' are; write a list "
                        "in every row")
    return [list(value) if value is not None else [] for value in values]


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
