"""Streaming tables in CSV, JSON, Parquet, Excel and plain text, for results that do not fit in memory."""

import csv
import io
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from vit.files.outputs import open_output
from vit.files.strict_json import Replaced, json_text, log_replaced

if TYPE_CHECKING:
    import pyarrow

Cell = str | int | float | bool | None | list[str] | list[float]
Row = Mapping[str, Cell]
# columns of lists and the Arrow type of their items
LISTS = {"labels": "string", "probabilities": "double", "set": "string", "tokens": "string", "log_probs": "double"}
# prefixes of the names of columns of real numbers
NUMBERS = ("probability", "score", "log_prob", "unknown", "p_value", "next")
INTEGERS = ("mask",)  # columns of whole numbers


class Table(Protocol):
    """Accepts rows; `close` completes the table and leaves the stream open."""

    def write(self, row: Row) -> None: ...

    def close(self) -> None: ...


class UnixLineEndings:
    """Replaces the "\\r\\n" of a csv writer by "\\n".

    With lineterminator="\\n" Python before 3.13 does not quote a "\\r" in a cell.
    """

    def __init__(self, text: io.TextIOBase) -> None:
        self.text = text

    def write(self, row: str) -> None:
        self.text.write(row.removesuffix("\r\n") + "\n")


class CsvTable:
    """Comma-separated values with a header; file names that are not UTF-8 keep their bytes."""

    def __init__(self, stream: BinaryIO, columns: Iterable[str]) -> None:
        self.text = io.TextIOWrapper(stream, "utf-8", errors="surrogateescape", newline="")
        self.rows = csv.DictWriter(UnixLineEndings(self.text), list(columns), lineterminator="\r\n")
        self.rows.writeheader()

    def write(self, row: Row) -> None:
        self.rows.writerow({name: format(value, ".6f") if isinstance(value, float) else value
                            for name, value in row.items()})

    def close(self) -> None:
        self.text.detach()


class JsonTable:
    """A JSON list with one object per line."""

    def __init__(self, stream: BinaryIO, columns: Iterable[str]) -> None:
        self.stream, self.columns, self.separator = stream, list(columns), b"[\n"
        self.replaced: Replaced = {}

    def write(self, row: Row) -> None:
        text = json_text({name: row.get(name) for name in self.columns}, indent=None, replaced=self.replaced)
        self.stream.write(self.separator + text.encode())
        self.separator = b",\n"

    def close(self) -> None:
        log_replaced(self.replaced)
        self.stream.write(b"[]\n" if self.separator == b"[\n" else b"\n]\n")


class JsonLinesTable:
    """One JSON object per line."""

    def __init__(self, stream: BinaryIO, columns: Iterable[str]) -> None:
        self.stream, self.columns = stream, list(columns)
        self.replaced: Replaced = {}

    def write(self, row: Row) -> None:
        text = json_text({name: row.get(name) for name in self.columns}, indent=None, replaced=self.replaced)
        self.stream.write(text.encode() + b"\n")

    def close(self) -> None:
        log_replaced(self.replaced)  # every row is already written


class ExcelTable:
    """The first sheet of an .xlsx file. A text that begins with = is not a formula; control characters, and bytes of
    file names that are not UTF-8, are escaped as in messages: \\x1b, \\udce9.

    Raises:
        ValueError: there are more rows than a sheet has, or a longer text than a cell has.
    """

    ROWS, LETTERS = 1_048_576, 32_767  # limits of an Excel sheet and of a cell

    def __init__(self, stream: BinaryIO, columns: Iterable[str]) -> None:
        import openpyxl

        self.stream, self.columns, self.rows = stream, list(columns), 1
        self.book = openpyxl.Workbook(write_only=True)
        self.sheet = self.book.create_sheet("predictions")
        self.sheet.append(self.columns)

    def write(self, row: Row) -> None:
        """Appends a row.

        Raises:
            ValueError: as for the class.
        """
        self.rows += 1
        if self.rows > self.ROWS:
            raise ValueError(f"a sheet of Excel has {self.ROWS:,} rows, and there are more predictions; choose a name "
                             "that ends with .csv or .parquet")
        self.sheet.append([self._cell(row.get(name)) for name in self.columns])

    def _cell(self, value: Cell) -> object:
        if not isinstance(value, str):
            return value
        from openpyxl.cell import WriteOnlyCell

        text = "\n".join(map(_visible, _utf8(value).split("\n")))
        if len(text) > self.LETTERS:
            raise ValueError(f"a cell of Excel has {self.LETTERS:,} characters, and a text has {len(text):,}; choose a "
                             "name that ends with .csv or .parquet")
        cell = WriteOnlyCell(self.sheet, text)
        cell.data_type = "s"
        return cell

    def close(self) -> None:
        archive = io.BytesIO()  # zipfile and lxml would print tracebacks about a stream without space
        self.book.save(archive)
        self.stream.write(archive.getbuffer())


class ParquetTable:
    """A Parquet file with row groups of 1000 rows. The first group determines the column types; the type of a column
    that is empty in it follows from its name. Bytes of file names that are not UTF-8 are escaped, as in messages and
    JSON: \\udce9 for the byte E9.
    """

    def __init__(self, stream: BinaryIO, columns: Iterable[str]) -> None:
        self.stream, self.columns, self.rows, self.writer = stream, list(columns), [], None

    def write(self, row: Row) -> None:
        self.rows.append({name: _utf8(row.get(name)) for name in self.columns})
        if len(self.rows) == 1000:
            self._flush()

    def _flush(self) -> None:
        """Write the collected rows as a row group."""
        import pyarrow
        import pyarrow.parquet

        schema = self.writer.schema if self.writer else None
        batch = pyarrow.Table.from_pylist(self.rows, schema) if self.rows or schema else pyarrow.table(
            {name: pyarrow.array([], pyarrow.string()) for name in self.columns})
        for number, name in enumerate(batch.column_names):  # later rows may have values in an empty column
            kind = batch.schema.field(name).type
            if pyarrow.types.is_null(kind) or pyarrow.types.is_list(kind):
                batch = batch.set_column(number, name, batch[name].cast(_arrow_type(name)))
        if self.writer is None:
            self.writer = pyarrow.parquet.ParquetWriter(self.stream, batch.schema)
        self.writer.write_table(batch)
        self.rows = []

    def close(self) -> None:
        if self.rows or self.writer is None:
            self._flush()
        self.writer.close()


class TextTable:
    """Only the column `text`, one line per row; flushed after each row for interactive use."""

    def __init__(self, stream: BinaryIO, columns: Iterable[str]) -> None:
        self.stream = stream

    def write(self, row: Row) -> None:
        line = str(row["text"]).replace("\r", " ").replace("\n", " ")
        self.stream.write(line.encode("utf-8", "replace") + b"\n")
        self.stream.flush()

    def close(self) -> None:
        """Every row is already written."""


class TerminalTable:
    """A table on a terminal: control characters in texts are shown as escape sequences of Python, not sent."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def write(self, row: Row) -> None:
        self.table.write({name: _visible(value) for name, value in row.items()})

    def close(self) -> None:
        self.table.close()


TABLES: dict[str, type[Table]] = {"csv": CsvTable, "json": JsonTable, "jsonl": JsonLinesTable,
                                "parquet": ParquetTable, "xlsx": ExcelTable, "text": TextTable}


@contextmanager
def open_table(
    path: str | PathLike[str] | None, columns: Iterable[str], kind: type[Table] = CsvTable
) -> Iterator[Table]:
    """A table in a file, or on standard output if `path` is None; completed also after an error, which leaves it in
    `streamed_file(path)` and an earlier file unchanged.

    Raises:
        ValueError: standard output is closed.
    """
    if path is None and sys.stdout is None:
        raise ValueError("standard output is closed, as by >&-; choose a file with --output FILE")
    with nullcontext(sys.stdout.buffer) if path is None else open_output(Path(path)) as stream:
        table = kind(stream, columns)
        if path is None and sys.stdout.isatty():
            table = TerminalTable(table)
        try:
            yield table
        finally:
            table.close()


def prediction_columns(top_k: int) -> list[str]:
    """label, probability, label_2, probability_2, ..., most probable first."""
    columns = ["label", "probability"]
    for rank in range(2, top_k + 1):
        columns += [f"label_{rank}", f"probability_{rank}"]
    return columns


def prediction_cells(names: Iterable[str], probabilities: Iterable[float]) -> dict[str, str | float]:
    """The cells of `prediction_columns`, from names and probabilities in descending order."""
    cells = {}
    for rank, (name, probability) in enumerate(zip(names, probabilities, strict=True), start=1):
        suffix = "" if rank == 1 else f"_{rank}"
        cells |= {f"label{suffix}": name, f"probability{suffix}": float(probability)}
    return cells


def join_cell(values: Iterable[str], classes: Sequence[str]) -> str:
    """Several values in one cell, with a separator that occurs in no class name."""
    from vit.data.source import separator_of  # loads torch

    return separator_of(classes).join(values)


def _arrow_type(name: str) -> "pyarrow.DataType":
    """The type of a column that is empty in the first rows."""
    import pyarrow

    if name in LISTS:
        return pyarrow.list_(pyarrow.type_for_alias(LISTS[name]))
    if name in INTEGERS:
        return pyarrow.int64()
    return pyarrow.float64() if name.startswith(NUMBERS) else pyarrow.string()


def _visible(value: Cell) -> Cell:
    if isinstance(value, list):
        return [_visible(each) for each in value]
    if not isinstance(value, str):
        return value
    return "".join(ascii(c)[1:-1] if unicodedata.category(c) == "Cc" and c != "\t" else c for c in value)


def _utf8(value: Cell) -> Cell:
    if isinstance(value, list):
        return [_utf8(each) for each in value]
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
