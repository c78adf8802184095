"""Rows written as they come: CSV, JSON, Parquet and plain lines behind the same three methods, for results longer than
memory.
"""

import csv
import io
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from os import PathLike
from typing import TYPE_CHECKING, BinaryIO, Protocol

from vit.files.strict_json import json_text

if TYPE_CHECKING:
    import pyarrow

Cell = str | int | float | bool | None | list[str] | list[float]
Row = Mapping[str, Cell]
LISTS = {"labels": "string", "probabilities": "double"}  # columns of lists, and the Arrow type of what is in them
NUMBERS = ("probability", "score")  # how the names of columns of numbers begin


class Table(Protocol):
    """A place for rows; `close` ends the table and leaves the stream open."""

    def write(self, row: Row) -> None: ...

    def close(self) -> None: ...


class UnixLines:
    """Ends the rows of a csv writer by "\\n" alone: told to do so itself, it quotes no "\\r" before Python 3.13."""

    def __init__(self, text: io.TextIOBase) -> None:
        self.text = text

    def write(self, row: str) -> None:
        self.text.write(row.removesuffix("\r\n") + "\n")


class CsvTable:
    """Comma-separated lines with a header; file names that are no UTF-8 keep their bytes."""

    def __init__(self, stream: BinaryIO, columns: Iterable[str]) -> None:
        self.text = io.TextIOWrapper(stream, "utf-8", errors="surrogateescape", newline="")
        self.rows = csv.DictWriter(UnixLines(self.text), list(columns), lineterminator="\r\n")
        self.rows.writeheader()

    def write(self, row: Row) -> None:
        self.rows.writerow({name: format(value, ".6f") if isinstance(value, float) else value
                            for name, value in row.items()})

    def close(self) -> None:
        self.text.detach()


class JsonTable:
    """One valid JSON list, one object per line."""

    def __init__(self, stream: BinaryIO, columns: Iterable[str]) -> None:
        self.stream, self.columns, self.opening = stream, list(columns), b"[\n"

    def write(self, row: Row) -> None:
        text = json_text({name: row.get(name) for name in self.columns}, indent=None)
        self.stream.write(self.opening + text.encode())
        self.opening = b",\n"

    def close(self) -> None:
        self.stream.write(b"[]\n" if self.opening == b"[\n" else b"\n]\n")


class ParquetTable:
    """A Parquet file, written a thousand rows at a time; the first rows decide the column types."""

    def __init__(self, stream: BinaryIO, columns: Iterable[str]) -> None:
        self.stream, self.columns, self.rows, self.writer = stream, list(columns), [], None

    def write(self, row: Row) -> None:
        self.rows.append({name: _utf8(row.get(name)) for name in self.columns})
        if len(self.rows) == 1000:
            self._flush()

    def _flush(self) -> None:
        import pyarrow
        import pyarrow.parquet

        schema = self.writer.schema if self.writer else None
        batch = pyarrow.Table.from_pylist(self.rows, schema) if self.rows or schema else pyarrow.table(
            {name: pyarrow.array([], pyarrow.string()) for name in self.columns})
        for number, name in enumerate(batch.column_names):  # empty in the first rows, but perhaps not in later ones
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
    """The column `text` alone, a line per row, each sent off at once: somebody may be waiting for it."""

    def __init__(self, stream: BinaryIO, columns: Iterable[str]) -> None:
        self.stream = stream

    def write(self, row: Row) -> None:
        line = str(row["text"]).replace("\r", " ").replace("\n", " ")
        self.stream.write(line.encode("utf-8", "replace") + b"\n")
        self.stream.flush()

    def close(self) -> None:
        """Nothing is kept back."""


TABLES: dict[str, type[Table]] = {"csv": CsvTable, "json": JsonTable, "parquet": ParquetTable, "text": TextTable}


@contextmanager
def open_table(
    path: str | PathLike[str] | None, columns: Iterable[str], kind: type[Table] = CsvTable
) -> Iterator[Table]:
    """A table in a file, or on standard output where `path` is None; complete also when the work stops early."""
    with open(path, "wb") if path is not None else nullcontext(sys.stdout.buffer) as stream:
        table = kind(stream, columns)
        try:
            yield table
        finally:
            table.close()


def prediction_columns(top_k: int) -> list[str]:
    """`label, probability, label_2, probability_2, ...`: the first answer under plain names, the next ones numbered."""
    columns = ["label", "probability"]
    for place in range(2, top_k + 1):
        columns += [f"label_{place}", f"probability_{place}"]
    return columns


def prediction_cells(names: Iterable[str], probabilities: Iterable[float]) -> dict[str, str | float]:
    """The cells under `prediction_columns`, best answer first."""
    cells = {}
    for place, (name, probability) in enumerate(zip(names, probabilities, strict=True), start=1):
        tail = "" if place == 1 else f"_{place}"
        cells |= {f"label{tail}": name, f"probability{tail}": float(probability)}
    return cells


def _arrow_type(name: str) -> "pyarrow.DataType":
    """The type of a column, where its first rows do not show it."""
    import pyarrow

    if name in LISTS:
        return pyarrow.list_(pyarrow.type_for_alias(LISTS[name]))
    return pyarrow.float64() if name.startswith(NUMBERS) else pyarrow.string()


def _utf8(value: Cell) -> Cell:
    if isinstance(value, list):
        return [_utf8(each) for each in value]
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
