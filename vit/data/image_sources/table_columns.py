"""Columns of a table: their conventional names, and their values."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vit.data.errors import DataError
from vit.data.formats.delimited import Column, find_column
from vit.data.image_sources.files import is_image_name
from vit.messages import did_you_mean, list_names, nearest_names, override_for_shell

IMAGE_COLUMNS = ("image", "img", "path", "file", "filename", "file_name", "filepath", "image_path",
                 "file_path", "filepaths", "image_id", "imageid", "image_name", "img_name", "fname")
PIXEL, PIXELS = re.compile(r"(pixel|px|p)?_?\d+(x\d+)?", re.IGNORECASE), 16  # columns of a table of single pixels
ARRAYS = ("values of pixels are not read from tables; save the images (N,H,W) and the labels (N,) with numpy.savez as "
          "the arrays images and labels of an .npz file")
LABEL_COLUMNS = ("label", "class", "target", "category", "fine_label", "labels", "tags", "cls", "choice")


def select_column(
    path: Path, columns: dict[Column, Any], requested: Column | None, names: Sequence[str], what: str
) -> Column:
    """The requested column, else the one with a conventional name, regardless of case. A dot selects a key of objects,
    as in "data.file", whose values are then added to the columns.

    Args:
        names: the conventional names in the order of preference.
        what: the option that selects the column, for messages: image, label, ...

    Raises:
        DataError: there is no such column, or several match.
    """
    if requested is not None:
        if requested not in columns and (nested := _nested_column(columns, requested)) is not None:
            columns[requested] = nested
        if requested not in columns:
            hint = did_you_mean(_option(what, near) for near in nearest_names(requested, columns, cutoff=0.6))
            found = list_names(columns)
            raise DataError(f"{path}: has no column {requested!r} for data.{what}; its columns are {found}{hint}")
        return requested
    found = next((c for name in names if (c := find_column(path, columns, name, what)) is not None), None)
    if found is None:
        plain = {str(name).strip().lower(): name for name in reversed(columns)}
        cutoff = 0.8 if what == "label" else 0.65  # with less, a column of ages would be similar to tags
        inside = [column for key, column in plain.items() if any(len(name) > 3 and name in key for name in names)]
        similar = [plain[close] for name in names for close in nearest_names(name, plain, cutoff=cutoff)]
        similar = inside + similar if what == "label" else similar
        similar = [*_columns_of_files(columns), *similar, *filter(_is_id, columns)] if what == "image" else similar
        near = next(iter(similar), "COLUMN")
        pixels = what == "image" and sum(map(_is_pixel, columns)) >= PIXELS
        fix = ARRAYS if pixels else f"name it with {_option(what, near)}"
        raise DataError(f"{path}: no {what} column found among {list_names(columns)}; {fix}")
    return found


def has_column(columns: dict[Column, Any], name: Column) -> bool:
    """Whether there is such a column, regardless of white space, or such a key of objects."""
    plain = str(name).strip()
    return any(str(column).strip() == plain for column in columns) or _nested_column(columns, name) is not None


def _nested_column(columns: dict[Column, Any], requested: Column) -> Any:
    """The values of a key of objects or structs, such as "data.file"; None if there is no such key."""
    first, *keys = str(requested).split(".")
    column = columns.get(first)
    if not keys or column is None:
        return None
    return _values_inside(column, keys) if isinstance(column, list) else _struct_field(column, keys)


def _values_inside(column: list[Any], keys: Sequence[str]) -> list[Any] | None:
    """The values of a key of objects, which may contain dots itself; None if an object lacks it."""
    if not keys:
        return column
    for count in range(len(keys), 0, -1):
        key = ".".join(keys[:count])
        if all(isinstance(value, dict) and key in value for value in column):
            return _values_inside([value[key] for value in column], keys[count:])
    return None


def with_keys_of_objects(columns: dict[Column, Any]) -> dict[Column, Any]:
    """The columns, and those of the keys of objects, such as "data.file"."""
    found = dict(columns)
    for name, column in columns.items():
        if isinstance(column, list) and column and all(isinstance(value, dict) for value in column):
            found |= {f"{name}.{key}": [value.get(key) for value in column] for key in column[0]}
    return found


def _columns_of_files(columns: dict[Column, Any]) -> list[Column]:
    """The columns whose first values are names of image files."""
    first = {name: to_list(column[:5]) for name, column in with_keys_of_objects(columns).items()}
    return [name for name, values in first.items()
            if values and all(isinstance(value, str) and is_image_name(value) for value in values)]


def _is_id(column: Column) -> bool:
    return "id" in re.split(r"[\W_]+", str(column).strip().lower())


def _struct_field(column: Any, keys: Sequence[str]) -> Any:
    import pyarrow
    import pyarrow.compute

    for key in keys:
        if not pyarrow.types.is_struct(column.type) or key not in {field.name for field in column.type}:
            return None
        column = pyarrow.compute.struct_field(column, key)
    return column


def _option(what: str, column: Column) -> str:
    """The override that selects a column, as a shell needs it."""
    return override_for_shell(f"data.{what}", column)


def _is_pixel(column: Column) -> bool:
    """Whether a column has the name of one pixel, such as pixel17 or 3x28, as tables of MNIST do."""
    return PIXEL.fullmatch(str(column).strip()) is not None


def to_list(column: Any) -> list[Any]:
    """The values of a column, which may be an Arrow column."""
    return column if isinstance(column, list) else column.to_pylist()


def values_of(path: Path, columns: dict[Column, Any], name: Column) -> list[Any]:
    """The values of a column of texts or labels. Bytes, as which some programs save strings in Parquet, are read as
    UTF-8.

    Raises:
        DataError: they are not UTF-8.
    """
    column = columns[name]
    if isinstance(column, list) or str(column.type) not in ("binary", "large_binary"):
        return to_list(column)
    import pyarrow

    try:
        return column.cast(pyarrow.large_string()).to_pylist()
    except pyarrow.ArrowInvalid:
        raise DataError(f"{path}: the bytes in its column {name!r} are not text in UTF-8; save it as a column of "
                        "strings") from None


def distinct(column: Any) -> list[Any]:
    """The values of a column, of an Arrow column of texts or booleans each value once; [] for one of another type."""
    if isinstance(column, list):
        return column
    return column.unique().to_pylist() if str(column.type) in ("string", "large_string", "bool") else []
