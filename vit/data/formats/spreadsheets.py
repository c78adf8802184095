"""Excel files as rows of text."""

import logging
import zipfile
from collections.abc import Iterator
from pathlib import Path

from vit.data.errors import DataError
from vit.files.untrusted import damaged_member, open_zip
from vit.messages import import_problem, list_names, on_one_line

log = logging.getLogger("vit")


def spreadsheet_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The rows of the first sheet as text, each with its number. Empty rows are skipped; short ones are padded to the
    width of the first. A warning names further sheets that are not empty.

    Raises:
        DataError: openpyxl is not installed, or the file cannot be read.
        FileNotFoundError: the file does not exist.
    """
    try:
        import openpyxl
    except ImportError as error:
        raise DataError(f"{path}: Excel files require openpyxl, which {import_problem(error, 'openpyxl')}: pip install "
                        "'vitwright[xlsx]', or save the file as CSV") from None
    try:
        with open_zip(path) as archive:  # checks the decompressed size
            if damaged := damaged_member(archive):  # which openpyxl would decompress without a limit
                raise zipfile.BadZipFile(f"its part {damaged} is damaged")
            book = openpyxl.load_workbook(path, read_only=True, data_only=True)
            for sheet in book.worksheets:
                sheet.reset_dimensions()  # some programs store wrong dimensions, and cells outside would be lost
            first, *others = book.worksheets
            rows = list(first.iter_rows(values_only=True))
            unread = [sheet.title for sheet in others if any(map(any, sheet.iter_rows(values_only=True)))]
            book.close()
    except FileNotFoundError:
        raise FileNotFoundError(f"the file {path} does not exist") from None
    except Exception as error:  # many types, of zipfile, XML and openpyxl
        reason = on_one_line(error) or type(error).__name__
        raise DataError(f"{path}: cannot be read as .xlsx ({reason}); save it as CSV") from error
    if unread:
        log.warning("%s: only its first sheet, %r, is read, not %s; write all rows into one sheet, or each sheet into "
                    "a file of its own", path, first.title, list_names(map(repr, unread), 5))
    width = 0
    for number, row in enumerate(rows, 1):
        cells = [_text(cell) for cell in row]
        if filled := max((i for i, cell in enumerate(cells, 1) if cell), default=0):
            width = width or filled
            yield number, (cells + [""] * width)[: max(width, filled)]


def _text(cell: object) -> str:
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return "" if cell is None else str(cell)
