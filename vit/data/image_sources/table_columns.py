"""Columns of a table: their conventional names, and their values."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vit.data.errors import DataError
from vit.data.formats.delimited import Column, find_column
from vit.messages import did_you_mean, nearest_names

IMAGE_COLUMNS = ("image", "img", "path", "file", "filename", "file_name", "filepath", "image_path")
LABEL_COLUMNS = ("label", "class", "target", "category", "fine_label", "labels", "tags", "cls", "choice")


def select_column(
    path: Path, columns: dict[Column, Any], requested: Column | None, names: Sequence[str], what: str
) -> Column:
    """The requested column, else the one with a conventional name, regardless of case.

    Args:
        names: the conventional names in the order of preference.
        what: the option that selects the column, for messages: image, label, ...

    Raises:
        DataError: there is no such column, or several match.
    """
    listed = ", ".join(map(str, columns)) or "none"
    if requested is not None:
        if requested not in columns:
            hint = did_you_mean(f"data.{what}={near}" for near in nearest_names(requested, columns, cutoff=0.6))
            raise DataError(f"{path}: has no column {requested!r} for data.{what}; its columns are {listed}{hint}")
        return requested
    found = next((c for name in names if (c := find_column(path, columns, name, what)) is not None), None)
    if found is None:
        plain = {str(name).strip().lower(): name for name in reversed(columns)}
        near = next((plain[close] for name in names for close in nearest_names(name, plain, cutoff=0.6)), "COLUMN")
        raise DataError(f"{path}: no {what} column found among {listed}; name it with data.{what}={near}")
    return found


def to_list(column: Any) -> list[Any]:
    """The values of a column, which may be an Arrow column."""
    return column if isinstance(column, list) else column.to_pylist()


def distinct(column: Any) -> list[Any]:
    """The values of a column, of an Arrow column of texts or booleans each value once; [] for one of another type."""
    if isinstance(column, list):
        return column
    return column.unique().to_pylist() if str(column.type) in ("string", "large_string", "bool") else []
