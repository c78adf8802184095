"""Files of tables of images as columns: CSV, TSV, lists separated by white space, .xlsx, Parquet and JSON."""

from pathlib import Path
from typing import Any

from vit.data.errors import DataError
from vit.data.formats.delimited import Column, check_header, numbered_rows
from vit.data.formats.parquet import read_parquet
from vit.data.image_sources.files import is_image_name
from vit.data.image_sources.json_tables import JSON_LINES, read_json_columns
from vit.data.image_sources.table_columns import ARRAYS, PIXELS
from vit.data.splits.names import split_of
from vit.messages import number_of

Content = tuple[dict[Column, Any], dict[Column, list[str]]]  # columns, and the class names that are stated for them
NOT_TABLES = {  # of which some would be read as lines of text
    ".mat", ".xml", ".yaml", ".yml", ".html", ".pdf", ".tar", ".tgz", ".zip", ".7z", ".rar", ".pkl", ".pickle", ".npy",
    ".h5", ".hdf5", ".mdb", ".tfrecord", ".arrow", ".feather", ".db", ".sqlite", ".bin",
}


def read_table_columns(path: Path, headed: bool) -> Content:
    """Columns by name, or by number without a header, and the class names of each column that the file or its folder
    states.
    """
    if path.suffix.lower() == ".parquet":
        return read_parquet([path])
    if path.suffix.lower() in (".json", *JSON_LINES):
        return read_json_columns(path), {}
    if path.suffix.lower() in (".xls", ".ods", ".numbers"):
        raise DataError(f"{path}: {path.suffix} files are not supported; save it as .xlsx or .csv")
    if path.suffix.lower() in NOT_TABLES or is_image_name(path.name):
        raise DataError(f"{path}: is not a table; give one in CSV, TSV, .xlsx, Parquet, JSON or JSONL with a column of "
                        "images and one of labels, or .npz arrays")
    rows = _by_white_space(list(numbered_rows(path)))
    if len(rows) <= headed:
        raise DataError(f"{path}: has {number_of(max(len(rows) - 1, 0), 'row')}; expected a header line and one line "
                        "per image")
    header = _header(path, [row for _, row in rows]) if headed else list(range(len(rows[0][1])))
    wrong = next(((number, row) for number, row in rows if len(row) != len(header)), None)
    if wrong:
        expected = "the header" if headed else "the first line"
        raise DataError(f"{path} line {wrong[0]}: has {len(wrong[1])} fields, {expected} has {len(header)}")
    return {name: [row[i] for _, row in rows[headed:]] for i, name in enumerate(header)}, {}


def _by_white_space(rows: list[tuple[int, list[str]]]) -> list[tuple[int, list[str]]]:
    """The rows, which have several fields if white space separates the only one of each into the same number of them,
    as in lists of files and class numbers.
    """
    if not rows or any(len(row) != 1 for _, row in rows):
        return rows
    fields = [(number, row[0].split()) for number, row in rows]
    return fields if len({len(row) for _, row in fields}) == 1 else rows


def _header(path: Path, rows: list[list[str]]) -> list[str]:
    """The first row as column names.

    Raises:
        DataError: it contains an image or values of pixels instead, or two columns have the same name.
    """
    header = rows[0]
    image = next((i for i, cell in enumerate(header) if is_image_name(cell)), None)
    if image is not None:
        others = [i for i in range(len(header)) if i != image]
        splits = [i for i in others if all(i < len(row) and split_of(row[i]) for row in rows)]
        label = next((i for i in others if i not in splits), 1)
        split = f" data.split={splits[0]}" if splits else ""
        raise DataError(
            f"{path}: its first line contains {header[image]!r} instead of column names; add a header line, "
            f"or give column numbers, such as data.image={image} data.label={label}{split}"
        )
    if len(header) > PIXELS and all(map(str.isdecimal, header)):
        raise DataError(f"{path}: its first line consists of {len(header)} numbers; {ARRAYS}")
    check_header(path, header)
    return header
