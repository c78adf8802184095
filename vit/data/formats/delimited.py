"""Tables with a sample per line: text files, TSV, CSV, JSONL and Excel, optionally gzipped. Errors name the file and
line.
"""

import contextlib
import csv
import json
import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from vit.data.errors import DataError
from vit.data.formats.lines import iterate_lines, lone_surrogate
from vit.data.formats.spreadsheets import spreadsheet_rows
from vit.data.sample_names import RowNames
from vit.data.splits.names import UnusedSplits
from vit.data.threads import StageProgress, reported
from vit.files.untrusted import unique_keys
from vit.messages import agree, check_choice, list_names, number_of, override_for_shell

log = logging.getLogger("vit")

TABLES = (".tsv", ".csv", ".jsonl", ".xlsx")
QUOTED = re.compile(r'"(?:[^"]|"")+"')  # a cell of CSV with quotes
LINES = "lines"  # the stage of the progress in which a table or a text file is read
Column = str | int  # a name, or in a file without a header line a number from 0


def read_lines(path: Path, progress: StageProgress | None = None) -> list[str]:
    """The lines of a UTF-8 file; BadText names a line that is not UTF-8."""
    return list(reported(_lines(path), LINES, None, progress))


def find_file(path: Path) -> Path | None:
    """The file or its gzipped form (.gz), whichever exists, regardless of case; None if neither does.

    Raises:
        DataError: two files differ only by the case of their names.
    """
    files = [entry.name for entry in path.parent.iterdir() if os.path.isfile(entry)] if path.parent.is_dir() else []
    for name in (path.name, f"{path.name}.gz"):
        found = sorted(file for file in files if file.lower() == name.lower())
        if len(found) > 1:
            raise DataError(f"{path.parent}: both {found[0]} and {found[1]} exist; keep one of them")
        if found:
            return path.with_name(found[0])
    return None


def check_single(root: Path, key: str, names: Sequence[str]) -> None:
    """Raises DataError if several files denote the same split."""
    if len(names) > 1:
        raise DataError(f"{root}: both {names[0]} and {names[1]} exist; select one for {key} with "
                        f"{override_for_shell(f'data.{key}', names[0])}")


def is_table(path: Path) -> bool:
    return _suffix(path) in TABLES


def read_columns(
    path: Path, requested: Sequence[tuple[str, Column]], optional: str = "", progress: StageProgress | None = None,
    alternatives: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> tuple[dict[str, list[str]], np.ndarray]:
    """The requested columns of a table by their keys, and the first line of each row.

    `requested` are (key, column); the key is the option that selects the column. `optional` is the conventional name of
    a column that is also read if it exists (see `find_column`). `alternatives` are the names, by key, of which the
    first one in the table is read if it has no requested column. In JSONL a dot selects a nested key: "translation.en".

    Raises:
        DataError: the table has no rows or lacks a column, or a row is malformed; names the line.
    """
    read = _objects if _suffix(path) == ".jsonl" else _fields
    rows = read(path, requested, optional, alternatives)
    found: dict[str, list[str]] = {}
    numbers: list[int] = []
    for number, row in reported(rows, LINES, None, progress):
        numbers.append(number)
        for key, value in row.items():
            found.setdefault(key, []).append(value)
    if not numbers:
        raise DataError(f"{path}: has 0 rows; expected one line for each sample")
    short = next((key for key, values in found.items() if len(values) < len(numbers)), None)
    if short:
        count = len(found[short])
        raise DataError(f"{path}: only {count} of {number_of(len(numbers), 'line')} {agree(count, 'has', 'have')} "
                        f"{short}; add it to all or none")
    return found, np.array(numbers)


def line_names(path: Path, numbers: np.ndarray | int) -> RowNames:
    """ "train.en line 17": a name for each line, or for the lines 1..numbers."""
    return RowNames(path.name, np.arange(1, numbers + 1) if isinstance(numbers, int) else numbers, "line")


def drop_empty(
    columns: dict[str, Sequence[str]], names: Sequence[str], on_empty: str
) -> tuple[np.ndarray, list[tuple[str, str]]]:
    """Indices of rows with text in every column, and (name, reason) of the other rows.

    Raises:
        DataError: there are other rows, with `on_empty="error"`, or no row with text.
        ValueError: `on_empty` is unknown.
    """
    check_choice("on_empty", on_empty, ("error", "skip"))
    full = np.ones(len(names), dtype=bool)
    left_out = {}
    for column, texts in columns.items():
        empty = np.flatnonzero([not text.strip() for text in texts]).tolist()
        full[empty] = False
        left_out.update(dict.fromkeys(empty, f"{column} is empty"))
    if left_out and on_empty == "error":
        first = min(left_out)
        raise DataError(
            f"{names[first]}: {left_out[first]}, as in {len(left_out)} of {number_of(len(full), 'line')}; add the "
            "text, or leave them out with data.on_empty=skip"
        )
    if left_out and not full.any():
        raise DataError(f"{names[0]}: {left_out[0]}, and none of the {number_of(len(full), 'line')} has text in each "
                        "column")
    return np.flatnonzero(full), [(names[i], left_out[i]) for i in sorted(left_out)]


def _suffix(path: Path) -> str:
    return Path(path.name.lower().removesuffix(".gz")).suffix


def _lines(path: Path, errors: str = "strict") -> Iterator[str]:
    return (line.decode(errors) for line in iterate_lines(path))


def numbered_rows(path: Path, errors: str = "strict") -> Iterator[tuple[int, list[str]]]:
    """Rows of TSV (without quoting), CSV or Excel, each with its first line. Empty lines are skipped.

    CSV is separated by commas, or by semicolons or tabs if those separate its first rows. `errors`: of decoding lines
    that are not UTF-8, as in `Line.decode`.

    Raises:
        DataError: the file is not valid CSV; names the line.
    """
    if _suffix(path) == ".xlsx":
        yield from spreadsheet_rows(path)
        return
    if _suffix(path) == ".tsv":
        yield from _tsv_rows(path, errors)
        return
    csv.field_size_limit(2**31 - 1)  # a cell with an encoded image exceeds csv's default limit of 131,072 characters
    lines = [line + "\n" for line in _lines(path, errors)]
    # strict, since otherwise an unclosed quote absorbs the next rows
    reader = csv.reader(iter(lines), strict=True, delimiter=_guess_delimiter(lines))
    first = 1
    try:
        for row in reader:
            if row:
                yield first, row
            first = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"{path} line {first}: the row that begins there is not valid CSV ({error}); close every quote, and double "
            "quotes inside a quoted cell"
        ) from None


def _tsv_rows(path: Path, errors: str) -> Iterator[tuple[int, list[str]]]:
    """The rows of TSV, in which quotes are part of a cell. Logs if all cells with quotes are quoted as in CSV, and some
    have quotes inside: a program such as pandas or Excel has written them so.
    """
    quoted, inside = [], False  # numbers of lines; None if quotes are part of the text
    for number, line in enumerate(_lines(path, errors), 1):
        row = line.split("\t")
        cells = [cell for cell in row if '"' in cell] if quoted is not None and '"' in line else ()
        if not all(QUOTED.fullmatch(cell) for cell in cells):
            quoted = None
        elif cells:
            quoted.append(number)
            inside |= any('""' in cell for cell in cells)
        if line:
            yield number, row
    if quoted and inside:
        log.warning("%s: cells of %s, such as line %d, are quoted as in CSV, but quotes of TSV are part of the text; "
                    "save the table as .csv, or without quotes", path, number_of(len(quoted), "line"), quoted[0])


def _guess_delimiter(lines: Sequence[str]) -> str:
    """The first of comma, semicolon and tab that separates all of the first 20 rows into the same number of fields, at
    least 2; else a comma.
    """
    for sign in ",;\t":
        with contextlib.suppress(csv.Error):
            widths = {len(row) for row in islice(csv.reader(iter(lines), delimiter=sign), 20) if row}
            if len(widths) == 1 and widths.pop() > 1:
                return sign
    return ","


def check_header(path: Path, header: list[str]) -> None:
    """Raises DataError if two columns have the same name; several columns may be unnamed."""
    twice = next((name for name, count in Counter(header).items() if name and count > 1), None)
    if twice is not None:
        raise DataError(
            f"{path}: {header.count(twice)} columns of its header are named {twice!r}; give each a unique name"
        )


def find_column(path: Path, columns: Iterable[Column], name: str, key: str) -> Column | None:
    """The column with this conventional name, regardless of case and surrounding white space; None if there is none.

    Raises:
        DataError: several columns match.
    """
    found = [column for column in columns if name and str(column).strip().lower() == name]
    if len(found) > 1:
        raise DataError(f"{path}: its columns {found[0]!r} and {found[1]!r} differ only by case or white space; select "
                        f"one with {override_for_shell(f'data.{key}', found[0])}")
    return found[0] if found else None


def _available(
    path: Path, header: Iterable[str], requested: Sequence[tuple[str, Column]],
    alternatives: Mapping[str, Sequence[str]],
) -> list[tuple[str, Column]]:
    """The requested columns, each replaced by the first of its alternatives in the header if it is not there."""
    header, found = list(header), []
    for key, column in requested:
        other = next((name for name in alternatives.get(key, ()) if name in header), column)
        if column not in header and other != column:
            log.info("%s: has no column %s, so the column %s is read as data.%s", path.name, column, other, key)
        found.append((key, column if column in header else other))
    return found


def _fields(
    path: Path, requested: Sequence[tuple[str, Column]], optional: str, alternatives: Mapping[str, Sequence[str]]
) -> Iterator[tuple[int, dict[str, str]]]:
    """The requested fields of each row, with its line number."""
    rows = numbered_rows(path)
    headed = all(isinstance(column, str) for _, column in requested)
    if not headed and not all(isinstance(column, int) for _, column in requested):
        listed = ", ".join(f"data.{key}={column}" for key, column in requested)
        raise DataError(f"{path}: {listed} mix names and numbers; give only names of a header line, or only numbers")
    header = next(rows, (0, []))[1] if headed else []
    check_header(path, header)
    requested = _available(path, header, requested, alternatives) if headed else requested
    indices = _indices(path, header, requested, optional) if headed else dict(requested)
    width = len(header)
    sought = optional == "split" and optional not in indices
    unused = UnusedSplits(name for i, name in enumerate(header) if sought and i not in indices.values())
    for number, row in rows:
        width = width or len(row)
        if len(row) != width:
            expected = "the header" if headed else "the first line"
            is_quoted = _suffix(path) == ".tsv" and any(cell.startswith('"') for cell in row)
            fix = "; quotes of TSV do not protect tabs and line breaks: save the table as .csv" if is_quoted else ""
            raise DataError(f"{path} line {number}: has {len(row)} fields, {expected} has {width}{fix}")
        for name in list(unused.found):
            unused.add(name, [row[header.index(name)]])
        yield number, {key: _cell(path, number, row, index) for key, index in indices.items()}
    unused.warn(path)


def _indices(path: Path, header: list[str], requested: Sequence[tuple[str, Column]], optional: str) -> dict[str, int]:
    """Index of each requested column in the header, and of the optional one if there is such a column."""
    for key, column in requested:
        if column not in header:
            raise DataError(
                f"{path}: has no column {column!r} for data.{key}; its columns are {list_names(header)} "
                f"(in a file without a header line give numbers, such as data.{key}=0)"
            )
    selected = {column for _, column in requested}
    found = find_column(path, (name for name in header if name not in selected), optional, optional)
    extra = {optional: header.index(found)} if found is not None else {}
    return {key: header.index(column) for key, column in requested} | extra


def _cell(path: Path, number: int, row: list[str], index: int) -> str:
    if not 0 <= index < len(row):
        raise DataError(f"{path} line {number}: has no column {index}; its {number_of(len(row), 'column')} are "
                        "numbered from 0")
    return row[index]


def _objects(
    path: Path, requested: Sequence[tuple[str, Column]], optional: str, alternatives: Mapping[str, Sequence[str]]
) -> Iterator[tuple[int, dict[str, str]]]:
    """The line number and the requested cells of each object in a JSONL file, as text."""
    selected, unused = None, None
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue  # an empty line, in contrast to a row with an empty text
        try:
            row = json.loads(line, object_pairs_hook=unique_keys)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path} line {number}: is not valid JSON ({error})") from None
        if not isinstance(row, dict):
            raise DataError(f'{path} line {number}: must be an object, such as {{"text": ...}}')
        if selected is None:  # the first row
            requested = _available(path, row, requested, alternatives)
            selected = {column for _, column in requested}
        others = [name for name in row if name not in selected]
        found = find_column(path, others, optional, optional)
        if unused is None:
            sought = optional == "split" and found is None
            unused = UnusedSplits(name for name in others if sought and isinstance(row[name], str | bool | int))
        for name in list(unused.found):
            unused.add(name, [row.get(name)])
        extra = {optional: _text(path, number, optional, row[found])} if found is not None else {}
        cells = {key: (column, _nested_value(path, number, key, column, row)) for key, column in requested}
        if "label" in cells and isinstance(cells["label"][1], float) and cells["label"][1].is_integer():
            cells["label"] = (cells["label"][0], int(cells["label"][1]))  # as `clean_label` does in other formats
        yield number, {key: _text(path, number, *value) for key, value in cells.items()} | extra
    if unused is not None:
        unused.warn(path)


def _nested_value(path: Path, number: int, key: str, column: Column, row: Any) -> Any:
    value = row
    for part in [column] if column in row else str(column).split("."):
        if not isinstance(value, dict) or part not in value:
            raise DataError(
                f"{path} line {number}: has no key {column!r} for data.{key}; its keys are {', '.join(row)}"
            )
        value = value[part]
    return value


def _text(path: Path, number: int, column: Column, value: Any) -> str:
    """A cell as text; null and NaN are empty, as in Parquet."""
    if value is None or value != value:  # NaN, which Python's JSON allows
        return ""
    if isinstance(value, int | float):
        return json.dumps(value)
    if not isinstance(value, str):
        kind = "a list" if isinstance(value, list) else "an object"
        raise DataError(f"{path} line {number}: {column} must be a string, but is {kind}; write a string in each line")
    if half := lone_surrogate(value):
        raise DataError(
            f"{path} line {number}: {column} has {half}, half of a character; write both halves or remove it"
        )
    return value
