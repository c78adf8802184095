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
    ".h5", ".hdf5", ".mdb", ".tfrecord", ".tfrec", ".beton", ".rec", ".arrow", ".feather", ".db", ".sqlite", ".bin",
    ".bz2", ".xz",
}
OF_ARRAYS = (".mat", ".h5", ".hdf5", ".npy", ".bin", ".pkl", ".pickle")
HEAD = 4096  # bytes at the start of a file that show whether it is binary


def read_table_columns(path: Path, headed: bool) -> Content:
    """Columns by name, or by number without a header, and the class names of each column that the file or its folder
    states.

    Raises:
        DataError: the file cannot be read, or is no table.
    """
    if path.suffix.lower() == ".parquet":
        return read_parquet([path])
    if path.suffix.lower() in (".json", *JSON_LINES):
        return read_json_columns(path), {}
    if path.suffix.lower() in (".xls", ".ods", ".numbers"):
        raise DataError(f"{path}: {path.suffix} files are not supported; save it as .xlsx or .csv")
    if path.suffix.lower() in NOT_TABLES or is_image_name(path.name) or _is_binary(path):
        fix = ("give one in CSV, TSV, .xlsx, Parquet, JSON or JSONL with a column of images and one of labels, or .npz "
               "arrays")
        if path.suffix.lower() in OF_ARRAYS:
            fix += "; numpy.savez saves images (N,H,W,C) and labels (N,) as the arrays images and labels of such a file"
        raise DataError(f"{path}: is not a table; {fix}")
    rows, listed = _by_white_space(path, list(numbered_rows(path)))
    if len(rows) <= headed:
        raise DataError(f"{path}: has {number_of(max(len(rows) - 1, 0), 'row')}; expected a header line and one line "
                        "per image")
    header = _header(path, [row for _, row in rows], listed) if headed else list(range(len(rows[0][1])))
    wrong = next(((number, row) for number, row in rows if len(row) != len(header)), None)
    if wrong:
        expected = "the header" if headed else "the first line"
        raise DataError(f"{path} line {wrong[0]}: has {len(wrong[1])} fields, {expected} has {len(header)}")
    return {name: [row[i] for _, row in rows[headed:]] for i, name in enumerate(header)}, {}


def _is_binary(path: Path) -> bool:
    """Whether a file begins with bytes that no text has; not texts in UTF-16, nor files that are decompressed."""
    if path.suffix.lower() in (".xlsx", ".gz"):
        return False
    with path.open("rb") as file:
        head = file.read(HEAD)
    return 0 < 4 * head.count(0) < len(head)  # in UTF-16 about every second byte of Latin letters is 0


def _by_white_space(path: Path, rows: list[tuple[int, list[str]]]) -> tuple[list[tuple[int, list[str]]], bool]:
    """The rows, and whether white space separates their fields, as in lists of files and class numbers. Lines of such a
    list that begin with # are comments.

    Raises:
        DataError: white space separates the lines into different numbers of fields.
    """
    lines = [(number, row) for number, row in rows if not row[0].startswith("#")]
    if not lines or any(len(row) != 1 for _, row in lines):
        return rows, False
    fields = _without_count([(number, row[0].split()) for number, row in lines])
    counts = {len(row) for _, row in fields}
    if max(counts, default=1) == 1:
        return rows, False
    if len(counts) > 1:
        other = next(number for number, row in fields if len(row) != len(fields[0][1]))
        raise DataError(f"{path}: white space separates line {fields[0][0]} into {len(fields[0][1])} fields, but line "
                        f"{other} into another number of them; write it as a table of comma-separated values with the "
                        "header image,label")
    return fields, True


def _without_count(fields: list[tuple[int, list[str]]]) -> list[tuple[int, list[str]]]:
    """The rows of a list without a first line that is the number of the rows behind its header, as in CelebA and
    DeepFashion; the header of CelebA then lacks the name of the column of images, which is added.
    """
    if len(fields) < 4 or fields[0][1] != [str(len(fields) - 2)]:
        return fields
    (number, header), *rows = fields[1:]
    if {len(row) for _, row in rows} == {len(header) + 1}:
        header = ["image", *header]
    return [(number, header), *rows]


def _header(path: Path, rows: list[list[str]], listed: bool) -> list[str]:
    """The first row as column names.

    Args:
        listed: white space separates the fields, so that names of files may lack their extensions.

    Raises:
        DataError: it contains an image or values of pixels instead, or two columns have the same name.
    """
    header = rows[0]
    image = next((i for i, cell in enumerate(header) if is_image_name(cell)), None)
    if image is None and listed and any(map(str.isdecimal, header)):
        image = next((i for i, cell in enumerate(header) if not cell.isdecimal()), None)
    if header[0].count("/") and len(header) == 1:
        raise DataError(f"{path}: its first line contains {header[0]!r} instead of a column name; add a header line, "
                        "or, if the folders in the names are the classes, set data.image=0")
    if header[0].lower().startswith("sep=") and not any(cell.strip() for cell in header[1:]):
        raise DataError(f"{path}: its first line is {header[0]!r}, which only Excel reads; remove this line")
    if len(header) == 1 and "|" in header[0]:
        raise DataError(f"{path}: its first line is one column name, {header[0]!r}; separate the columns by commas, "
                        "semicolons or tabs instead of |")
    if image is not None:
        others = [i for i in range(len(header)) if i != image]
        splits = [i for i in others if all(i < len(row) and split_of(row[i]) for row in rows)]
        labels = [i for i in others if i not in splits and _values_recur(rows, i)]
        split = f" data.split={splits[0]}" if splits else ""
        fix = (f"add a header line, or give column numbers, such as data.image={image} data.label={labels[0]}{split}"
               if labels else "add the labels of the images, and a header line: in no other column does a value recur, "
               "as labels do")
        raise DataError(f"{path}: its first line contains {header[image]!r} instead of column names; {fix}")
    if len(header) > PIXELS and all(map(str.isdecimal, header)):
        raise DataError(f"{path}: its first line consists of {len(header)} numbers; {ARRAYS}")
    check_header(path, header)
    return header


def _values_recur(rows: list[list[str]], column: int) -> bool:
    """Whether a value of a column recurs, as labels do; in a table of a few rows it need not."""
    values = [row[column] for row in rows if column < len(row)]
    return len(values) < 4 or len(set(values)) < len(values)
