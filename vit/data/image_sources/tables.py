"""Tables of labelled images: a column of paths or encoded images, a column of labels, optionally one of splits."""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vit.data.class_names import clean_label, encode_labels, parse_class_names
from vit.data.errors import DataError
from vit.data.formats.delimited import Column, check_header, find_column, numbered_rows
from vit.data.formats.parquet import read_parquet
from vit.data.image_sources.file_names import resolve_files
from vit.data.image_sources.files import is_image_name
from vit.data.image_sources.json_tables import JSON_LINES, read_json_columns
from vit.data.image_sources.npz import npz
from vit.data.image_sources.other_tables import warn_about_other_tables, warn_about_shards
from vit.data.image_sources.table_columns import (
    ARRAYS,
    IMAGE_COLUMNS,
    LABEL_COLUMNS,
    PIXELS,
    distinct,
    select_column,
    to_list,
)
from vit.data.image_sources.table_labels import table_labels
from vit.data.sample_names import PackedStrings, RowNames
from vit.data.source import Source
from vit.data.splits.groups import group_column
from vit.data.splits.names import SPLIT_NAMES, UnusedSplits, match_splits, split_of
from vit.data.splits.split import Raw, Split, file_split
from vit.data.splits.splitting import three_ways, validation_fraction, with_validation
from vit.files.untrusted import read_bytes
from vit.messages import agree, number_of, quoted

NOT_TABLES = {  # of which some would be read as lines of text
    ".mat", ".xml", ".yaml", ".yml", ".html", ".pdf", ".tar", ".tgz", ".zip", ".7z", ".rar", ".pkl", ".pickle", ".npy",
    ".h5", ".hdf5", ".mdb", ".tfrecord", ".arrow", ".feather", ".db", ".sqlite", ".bin",
}
VALUES = re.compile(r"\s*(\d{1,3}[ ,;]+){16}")  # of pixels


@dataclass(frozen=True)
class ReadCell:
    """Reads encoded images from an Arrow column of bytes, or of Hugging Face's struct {bytes, path}, in which a path
    below `root` or an absolute one may stand for the bytes.
    """

    column: Any
    root: Path

    def __call__(self, i: int) -> Raw:
        location = self.location(i)
        return read_bytes(location) if isinstance(location, Path) else location

    def location(self, i: int) -> Raw | Path:
        value = self.column[i].as_py()
        if isinstance(value, dict):
            path = value.get("path")
            value = value.get("bytes") or (self.root / path if path else None)
        return value or b""


def table(
    path: str | Path,
    image: Column | None = None,
    label: Column | Sequence[Column] | None = None,
    split: Column | None = None,
    root: str | Path | None = None,
    classes: Sequence[str] | None = None,
    fractions: Sequence[float] = (0.8, 0.1, 0.1),
    split_seed: int = 0,
    label_separator: str | None = None,
    on_bad_sample: str = "error",
    group: Column | None = None,
    one_hot: bool = False,
) -> Source:
    """Labelled images from a CSV, TSV, Excel, Parquet, JSON or JSONL table, from the JSON of COCO or Label Studio, or
    from the arrays of an .npz file.

    `image`, `label` and `split` are column names (numbers from 0 in a file without a header line); by default, columns
    with conventional names are used. Paths are relative to `root` (default: the table's folder). Labels are class
    names, or numbers: indices into `classes` (or into the names stored in the Parquet file by Hugging Face datasets or
    in a classes.json beside the table), else names. List cells and `label_separator` allow several labels per image, or
    none; so does a list of columns of 0 and 1 as `label`, one for each class, which with `one_hot` state one class per
    image, as do labels (N,classes) of arrays. Rows with a missing file are an error, or left out with
    `on_bad_sample="skip"`. `group`: the column of the group that a sample belongs to; a regular expression, with
    parentheses, is not a column and is ignored here.

    Raises:
        DataError: the table cannot be read, a column is missing, or a label or split is invalid.
        FileNotFoundError: the table or image files do not exist.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"data.path: the table {path} does not exist")
    if path.suffix.lower() == ".npz":
        return npz(path, classes, fractions, split_seed, one_hot)
    columns, names = _read(path, headed=not isinstance(image, int))
    warn_about_shards(path)
    image = select_column(path, columns, image, IMAGE_COLUMNS, "image")
    (classes, labels), used = table_labels(path, columns, label, names, classes, label_separator, one_hot)
    directory = Path(root).expanduser() if root else path.parent
    whole, missing = _samples(path, directory, columns[image], labels, on_bad_sample)
    whole = _with_groups(path, columns, whole, group)
    left_out = [(whole.names[i], "the file does not exist") for i in missing]
    present = np.delete(np.arange(len(whole)), missing)
    whole = whole.take(present) if missing else whole
    column = _split_column(path, columns, split)
    if column is None:
        _warn_about_unused_splits(path, {name: columns[name] for name in columns if name not in used})
        warn_about_other_tables(path, used)
        splits = three_ways(whole, fractions, split_seed)
    else:
        splits = _by_column(path, whole, column, to_list(columns[column]), present)
        splits = with_validation(splits, None, validation_fraction(fractions), split_seed)
    return Source(path.stem, classes, splits, left_out)


def _warn_about_unused_splits(path: Path, columns: dict[Column, Any]) -> None:
    """A warning if one of the columns, none of which is read, has the names of splits."""
    unused = UnusedSplits(columns)
    for name, values in columns.items():
        unused.add(name, distinct(values))
    unused.warn(path)


def _split_column(path: Path, columns: dict[Column, Any], split: Column | None) -> Column | None:
    """The column of splits: the stated one, else one with the conventional name, else None."""
    if split is None:
        return find_column(path, columns, "split", "split")
    return select_column(path, columns, split, (), "split")


def _with_groups(path: Path, columns: dict[Column, Any], whole: Split, group: Column | None) -> Split:
    """The samples with the groups that a column states; a regular expression is not a column and is ignored here."""
    if (column := group_column(group, columns)) is None:
        return whole
    values = to_list(columns[select_column(path, columns, column, (), "group")])
    return replace(whole, groups=PackedStrings([clean_label(value) for value in values]))


def parquet_splits(root: Path, classes: list[str] | None) -> tuple[list[str], dict[str, Split]] | None:
    """Class names and splits of train*.parquet, val*.parquet and test*.parquet in root or root/data, regardless of
    case; None if there is no train file.
    """
    files = next((found for directory in (root, root / "data") if "train" in (found := _split_files(directory))), None)
    if files is None:
        return None
    tables = {key: read_parquet(paths) for key, paths in files.items()}
    splits, known = {}, None
    for key, (columns, names) in tables.items():
        path = files[key][0]
        image = select_column(path, columns, None, IMAGE_COLUMNS, "image")
        label = select_column(path, columns, None, LABEL_COLUMNS, "label")
        others = (found.get(label) for _, found in tables.values())
        stored = names.get(label) or next((found for found in others if found), None) or parse_class_names(classes)
        known, labels = encode_labels(path, to_list(columns[label]), None, stored, known)
        splits[key], _ = _samples(path, path.parent, columns[image], labels)
    return known, splits


def _split_files(directory: Path) -> dict[str, list[Path]]:
    """The Parquet files of each split, whose names begin with the split: val.parquet, val-00000-of-00001.parquet."""
    found, names = defaultdict(list), {name for names in SPLIT_NAMES.values() for name in names}
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        prefix = re.match("[A-Za-z]*", path.name)[0]
        if prefix.lower() in names and path.suffix.lower() == ".parquet":
            found[prefix].append(path)
    return {key: found[name] for key, name in match_splits(directory, found).items()}


def _read(path: Path, headed: bool) -> tuple[dict[Column, Any], dict[Column, list[str]]]:
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


def _samples(
    path: Path, root: Path, column: Any, labels: np.ndarray, on_bad_sample: str = "error"
) -> tuple[Split, list[int]]:
    """All samples, and the rows whose file does not exist, which are an error unless on_bad_sample=skip."""
    if not len(column):
        raise DataError(f"{path}: has 0 rows; expected one per image")
    if not isinstance(column, list) and not _are_texts(column):
        _check_encoded(path, column.type)
        return Split(labels, RowNames(path.name, np.arange(len(labels))), ReadCell(column, root)), []
    names = to_list(column)
    wrong = next((i for i, name in enumerate(names) if not isinstance(name, str) or not name), None)
    if wrong is not None:
        raise DataError(f"{path} row {wrong}: the image is {names[wrong]!r}, expected a path; remove the row")
    names, missing = resolve_files(path, root, names)
    if missing and VALUES.match(names[missing[0]]):
        raise DataError(f"{path}: the image is {quoted(names[missing[0]])}; {ARRAYS}")
    if missing and (on_bad_sample != "skip" or len(missing) == len(names)):
        first = quoted(names[missing[0]], 200)
        raise FileNotFoundError(
            f"{path}: {len(missing)} of {number_of(len(names), 'file')} {agree(len(missing), 'does', 'do')} not exist "
            f"under {root}, first {first}; set data.root to their folder, or leave these rows out with "
            "data.on_bad_sample=skip"
        )
    return file_split(root, names, labels), missing


def _are_texts(column: Any) -> bool:
    """Whether an Arrow column has texts, which are paths; its first cells may be null."""
    return isinstance(next((cell.as_py() for cell in column if cell.is_valid), None), str)


def _check_encoded(path: Path, kind: Any) -> None:
    """Raises DataError unless an Arrow type can hold encoded images."""
    import pyarrow

    if pyarrow.types.is_struct(kind) and "bytes" in {field.name for field in kind}:
        kind = kind.field("bytes").type
    if not (pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind) or pyarrow.types.is_string(kind)):
        raise DataError(f"{path}: the type of its image column is {kind}, expected encoded images (binary) or paths "
                        "(string)")


def _by_column(
    path: Path, whole: Split, column: Column, values: Sequence[Any], rows: np.ndarray
) -> dict[str, Split]:
    """The samples, those of the `rows` of the table, by the split that the values of a column state for them."""
    found = [split_of(clean_label(values[row]), column) for row in rows]
    if None in found:
        row = rows[found.index(None)]
        listed = ", ".join(name for names in SPLIT_NAMES.values() for name in names)
        raise DataError(f"{path} row {row}: split {clean_label(values[row]).lower()!r} is not one of {listed}")
    keys = np.array(found)
    return {key: whole.take(np.flatnonzero(keys == key)) for key in SPLIT_NAMES if (keys == key).any()}
