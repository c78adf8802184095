"""Text files and tables of text: lines, TSV, CSV, JSONL and Excel, gzipped or not. Errors name the file and line."""

import codecs
import contextlib
import csv
import json
import os
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from vit.data.errors import DataError
from vit.data.formats.lines import MARK, Line, lone_surrogate, numbered
from vit.data.formats.spreadsheets import spreadsheet_rows
from vit.data.sample_names import RowNames
from vit.files.untrusted import LimitError, open_unpacked

TABLES = (".tsv", ".csv", ".jsonl", ".xlsx")
Column = str | int  # a name, or a number from 0 in a file without a header line


def lines_of(path: Path) -> Iterator[Line]:
    """The lines of a file. Only a newline ends a line; other line separators of Unicode are part of it."""
    lines = _content(path).removeprefix(MARK).split(b"\n")
    return numbered(lines[:-1] if lines[-1] == b"" else lines, path)


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 file, all of which must be text."""
    return list(_lines(path))


def present(path: Path) -> Path | None:
    """The file or its gzipped form, whichever exists; names are compared without case.

    Raises:
        DataError: two files differ only by the case of their names.
    """
    files = [entry.name for entry in os.scandir(path.parent) if entry.is_file()] if path.parent.is_dir() else []
    for name in (path.name, f"{path.name}.gz"):
        found = sorted(file for file in files if file.lower() == name.lower())
        if len(found) > 1:
            raise DataError(f"{path.parent}: both {found[0]} and {found[1]} are there; keep one of them")
        if found:
            return path.with_name(found[0])
    return None


def check_one(root: Path, key: str, names: Sequence[str]) -> None:
    """Raises DataError if several names denote the same split."""
    if len(names) > 1:
        raise DataError(f"{root}: both {names[0]} and {names[1]} are there; choose one for {key} with "
                        f"data.{key}={names[0]}")


def is_table(path: Path) -> bool:
    return _kind(path) in TABLES


def read_columns(
    path: Path, wanted: Sequence[tuple[str, Column]], maybe: str = ""
) -> tuple[dict[str, list[str]], np.ndarray]:
    """The requested columns of a table by their keys, and the line on which each row begins.

    `wanted` holds (key, column); the key is the option that selects the column. `maybe` is a column that is also read
    where it exists (see `usual_column`). In JSONL a dot enters a nested object: "translation.en".
    """
    rows = _objects(path, wanted, maybe) if _kind(path) == ".jsonl" else _fields(path, wanted, maybe)
    found: dict[str, list[str]] = {}
    numbers: list[int] = []
    for number, row in rows:
        numbers.append(number)
        for key, value in row.items():
            found.setdefault(key, []).append(value)
    if not numbers:
        raise DataError(f"{path}: has 0 rows; expected one line for each sample")
    short = next((key for key, values in found.items() if len(values) < len(numbers)), None)
    if short:
        count = len(found[short])
        raise DataError(f"{path}: {short} is there in {count} of {len(numbers)} lines; give it to all or none")
    return found, np.array(numbers)


def line_names(path: Path, numbers: np.ndarray | int) -> RowNames:
    """ "train.en line 17": a name for each line, or for the lines 1..numbers."""
    return RowNames(path.name, np.arange(1, numbers + 1) if isinstance(numbers, int) else numbers, "line")


def drop_empty(
    columns: dict[str, Sequence[str]], names: Sequence[str], on_empty: str
) -> tuple[np.ndarray, list[tuple[str, str]]]:
    """Indices of rows with text in every column, and (name, reason) of the others, which are an error if
    on_empty=error.
    """
    if on_empty not in ("error", "skip"):
        raise ValueError(f"on_empty={on_empty!r} is not one of error, skip")
    full = np.ones(len(names), dtype=bool)
    left_out = {}
    for column, texts in columns.items():
        empty = np.flatnonzero([not text.strip() for text in texts]).tolist()
        full[empty] = False
        left_out.update(dict.fromkeys(empty, f"{column} is empty"))
    if left_out and on_empty == "error":
        first = min(left_out)
        raise DataError(
            f"{names[first]}: {left_out[first]}, as in {len(left_out)} of {len(full)} lines; give them text, "
            "or leave them out with data.on_empty=skip"
        )
    return np.flatnonzero(full), [(names[i], left_out[i]) for i in sorted(left_out)]


def _kind(path: Path) -> str:
    return Path(path.name.lower().removesuffix(".gz")).suffix


def _lines(path: Path) -> Iterator[str]:
    return (line.text for line in lines_of(path))


def _content(path: Path) -> bytes:
    try:
        with open_unpacked(path) as file:
            return _as_utf8(file.read())
    except FileNotFoundError:
        raise FileNotFoundError(f"the file {path} does not exist") from None
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, LimitError) as error:
        raise DataError(f"{path}: cannot be read ({' '.join(str(error).split())})") from error


def _as_utf8(data: bytes) -> bytes:
    """Converts UTF-16, which spreadsheets save with a byte order mark."""
    return data.decode("utf-16").encode() if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else data


def numbered_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Rows of TSV (a tab always separates), CSV (with quotes) or Excel, each with the line it begins on. Empty lines
    are skipped.

    CSV is separated by commas, or by semicolons or tabs if those divide its first rows.
    """
    if _kind(path) == ".xlsx":
        yield from spreadsheet_rows(path)
        return
    if _kind(path) == ".tsv":
        yield from ((number, line.split("\t")) for number, line in enumerate(_lines(path), 1) if line)
        return
    csv.field_size_limit(2**31 - 1)  # an encoded image in a cell is longer than csv's own 131,072 characters
    lines = [line + "\n" for line in _lines(path)]
    reader = csv.reader(iter(lines), strict=True, delimiter=separator(lines))  # else an open quote takes what follows
    first = 1
    try:
        for row in reader:
            if row:
                yield first, row
            first = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"{path} line {first}: the row that begins there is no CSV ({error}); close every quote, and write a quote "
            "inside a quoted cell twice"
        ) from None


def separator(lines: Sequence[str], rows: int = 20) -> str:
    """The first of comma, semicolon and tab that divides each of the first rows into the same number of fields, at
    least 2.
    """
    for sign in ",;\t":
        with contextlib.suppress(csv.Error):
            widths = {len(row) for row in islice(csv.reader(iter(lines), delimiter=sign), rows) if row}
            if len(widths) == 1 and widths.pop() > 1:
                return sign
    return ","


def check_header(path: Path, header: list[str]) -> None:
    """Raises DataError if two columns have the same name; several columns may have none."""
    twice = next((name for name, count in Counter(header).items() if name and count > 1), None)
    if twice is not None:
        raise DataError(
            f"{path}: {header.count(twice)} columns of its header are named {twice!r}; give each a name of its own"
        )


def usual_column(path: Path, columns: Iterable[Column], name: str, key: str) -> Column | None:
    """The column with a conventional name, without regard to case and surrounding white space; None if there is none.

    Raises:
        DataError: several columns match.
    """
    found = [column for column in columns if name and str(column).strip().lower() == name]
    if len(found) > 1:
        raise DataError(f"{path}: its columns {found[0]!r} and {found[1]!r} differ only by case or white space; choose "
                        f"one with data.{key}={found[0]}")
    return found[0] if found else None


def _fields(path: Path, wanted: Sequence[tuple[str, Column]], maybe: str) -> Iterator[tuple[int, dict[str, str]]]:
    """The wanted fields of each row, with its line number."""
    rows = numbered_rows(path)
    headed = all(isinstance(column, str) for _, column in wanted)
    if not headed and not all(isinstance(column, int) for _, column in wanted):
        listed = ", ".join(f"data.{key}={column}" for key, column in wanted)
        raise DataError(f"{path}: {listed}: give either names, of a header line, or only numbers")
    header = next(rows, (0, []))[1] if headed else []
    check_header(path, header)
    indices = _indices(path, header, wanted, maybe) if headed else dict(wanted)
    width = len(header)
    for number, row in rows:
        width = width or len(row)
        if len(row) != width:
            expected = "the header" if headed else "the first line"
            raise DataError(f"{path} line {number}: has {len(row)} fields, {expected} has {width}")
        yield number, {key: _cell(path, number, row, index) for key, index in indices.items()}


def _indices(path: Path, header: list[str], wanted: Sequence[tuple[str, Column]], maybe: str) -> dict[str, int]:
    for key, column in wanted:
        if column not in header:
            raise DataError(
                f"{path}: has no column {column!r} for data.{key}; its columns are {', '.join(header) or 'none'} "
                f"(in a file without a header line give numbers, such as data.{key}=0)"
            )
    found = usual_column(path, header, maybe, maybe)
    extra = {maybe: header.index(found)} if found is not None else {}
    return {key: header.index(column) for key, column in wanted} | extra


def _cell(path: Path, number: int, row: list[str], index: int) -> str:
    if not 0 <= index < len(row):
        raise DataError(f"{path} line {number}: has no column {index}, its {len(row)} columns count from 0")
    return row[index]


def _objects(path: Path, wanted: Sequence[tuple[str, Column]], maybe: str) -> Iterator[tuple[int, dict[str, str]]]:
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue  # no row at all; a row with an empty text is another thing
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path} line {number}: is no JSON that can be read ({error})") from None
        if not isinstance(row, dict):
            raise DataError(f'{path} line {number}: must be an object, like {{"text": ...}}')
        found = usual_column(path, row, maybe, maybe)
        extra = {maybe: _text(path, number, maybe, row[found])} if found is not None else {}
        cells = {key: (column, _inner(path, number, key, column, row)) for key, column in wanted}
        yield number, {key: _text(path, number, *value) for key, value in cells.items()} | extra


def _inner(path: Path, number: int, key: str, column: Column, row: Any) -> Any:
    value = row
    for part in [column] if column in row else str(column).split("."):
        if not isinstance(value, dict) or part not in value:
            raise DataError(
                f"{path} line {number}: has no key {column!r} for data.{key}; its keys are {', '.join(row)}"
            )
        value = value[part]
    return value


def _text(path: Path, number: int, column: Column, value: Any) -> str:
    """A cell as text; null and NaN are the empty one, as in Parquet."""
    if value is None or value != value:  # NaN, which JSON of Python may hold
        return ""
    if isinstance(value, int | float):
        return json.dumps(value)
    if not isinstance(value, str):
        kind = "a list" if isinstance(value, list) else "an object"
        raise DataError(f"{path} line {number}: {column} must be a text, but is {kind}; give it one text in each line")
    if half := lone_surrogate(value):
        raise DataError(
            f"{path} line {number}: {column} has {half}, half of a character; write both halves or take it out"
        )
    return value
