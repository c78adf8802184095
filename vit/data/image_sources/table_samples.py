"""The samples of a table of images: files that its cells name, or encoded images in its cells."""

import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vit.data.errors import DataError
from vit.data.image_sources.file_names import resolve_files
from vit.data.image_sources.table_columns import ARRAYS, to_list
from vit.data.sample_names import RowNames
from vit.data.splits.split import Raw, ReadLocation, Split, file_split
from vit.data.threads import StageProgress
from vit.messages import agree, number_of, quoted

log = logging.getLogger("vit")

ADDRESS = re.compile(r"\s*https?://", re.IGNORECASE)
VALUES = re.compile(r"\s*(\d{1,3}[ ,;]+){16}")  # of pixels


@dataclass(frozen=True)
class ReadCell(ReadLocation):
    """Reads encoded images from an Arrow column of bytes, or of Hugging Face's struct {bytes, path}. A struct without
    bytes names a file by a path that is absolute or relative to `root`.
    """

    column: Any
    root: Path

    def location(self, i: int) -> Raw | Path:
        value = self.column[i].as_py()
        if isinstance(value, dict):
            path = value.get("path")
            value = value.get("bytes") or (self.root / path if path else None)
        return value or b""


def table_samples(
    path: Path, root: Path, column: Any, labels: np.ndarray, on_bad_sample: str = "error", top: Path | None = None,
    progress: StageProgress | None = None,
) -> tuple[Split, list[int]]:
    """All samples, and the rows whose file does not exist.

    Args:
        root: the folder that the paths of images are relative to.
        labels: (N,), or (N,classes) bool.
        on_bad_sample: a missing file is an "error", or its row is returned ("skip").
        top: the folder that the names of the samples are relative to, by default `root`.
        progress: called with the number of files that have been looked up.

    Raises:
        DataError: there are no rows, or the column has neither paths nor encoded images.
        FileNotFoundError: a file does not exist, or with `on_bad_sample="skip"` none does.
    """
    above = "" if top is None else os.path.relpath(root, top)
    if not len(column):
        raise DataError(f"{path}: has 0 rows; expected one per image")
    if not isinstance(column, list) and not _are_texts(column):
        _check_encoded(path, column.type)
        name = path.name if above in ("", ".") else os.path.join(os.path.relpath(path.parent, top), path.name)
        return Split(labels, RowNames(name, np.arange(len(labels))), ReadCell(column, root)), []
    names, missing = _existing_files(path, root, to_list(column), on_bad_sample, progress)
    _warn_about_repeated_files(path, names, labels)
    if above not in ("", "."):
        root, names = top, [os.path.join(above, name) for name in names]
    return file_split(root, names, labels), missing


def _existing_files(
    path: Path, root: Path, names: list[Any], on_bad_sample: str, progress: StageProgress | None
) -> tuple[list[str], list[int]]:
    """The files in `root` that the cells name, and the rows whose file does not exist."""
    wrong = next((i for i, name in enumerate(names) if not isinstance(name, str) or not name), None)
    if wrong is not None:
        raise DataError(f"{path} row {wrong}: the image is {names[wrong]!r}, expected a path; remove the row")
    names, missing = resolve_files(path, root, names, progress)
    if missing and VALUES.match(names[missing[0]]):
        raise DataError(f"{path}: the image is {quoted(names[missing[0]])}; {ARRAYS}")
    if missing and (on_bad_sample != "skip" or len(missing) == len(names)):
        first = quoted(names[missing[0]], 200)
        if ADDRESS.match(names[missing[0]]):
            raise DataError(f"{path}: the image is {first}, but images are not downloaded; download them, put their "
                            "file names into the column of images, and set data.root to their folder")
        raise FileNotFoundError(
            f"{path}: {len(missing)} of {number_of(len(names), 'file')} {agree(len(missing), 'does', 'do')} not exist "
            f"under {root}, first {first}; set data.root to their folder, or leave these rows out with "
            "data.on_bad_sample=skip"
        )
    return names, missing


def _warn_about_repeated_files(path: Path, names: Sequence[str], labels: np.ndarray) -> None:
    """Logs a warning if several rows have the same file; it says whether their labels differ."""
    first: dict[str, int] = {}
    again = [(row, first[name]) for row, name in enumerate(names) if first.setdefault(name, row) != row]
    if not again:
        return
    other = next((rows for rows in again if not np.array_equal(*labels[list(rows)])), None)
    if other is None:
        log.warning("%s: %d of %d rows have the file of an earlier row, such as %r; each row counts as an image", path,
                    len(again), len(names), names[again[0][0]])
    else:
        log.warning("%s: %d of %d rows have the file of an earlier row, some with another label, such as %r in rows %d "
                    "and %d; each row counts as an image; if an image may have several labels, write one row for it "
                    "and set data.label_separator", path, len(again), len(names), names[other[0]], other[1], other[0])


def _are_texts(column: Any) -> bool:
    """Whether an Arrow column has texts, which are paths, judged by its first cell that is not null."""
    return isinstance(next((cell.as_py() for cell in column if cell.is_valid), None), str)


def _check_encoded(path: Path, kind: Any) -> None:
    """Raises DataError unless an Arrow type can hold encoded images."""
    import pyarrow

    if pyarrow.types.is_struct(kind) and "bytes" in {field.name for field in kind}:
        kind = kind.field("bytes").type
    if not (pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind) or pyarrow.types.is_string(kind)):
        raise DataError(f"{path}: the type of its image column is {kind}, expected encoded images (binary) or paths "
                        "(string)")
