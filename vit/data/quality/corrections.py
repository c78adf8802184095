"""Corrections of labels, and samples left out of training: the CSV file that `vit audit --labels` writes."""

import csv
import io
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from vit.data.errors import DataError, printable
from vit.data.formats.delimited import numbered_rows
from vit.data.identity import to_nfc
from vit.data.source import Source, separator_of
from vit.files.outputs import write_output
from vit.messages import did_you_mean, nearest_names, number_of

log = logging.getLogger("vit")

COLUMNS = ("name", "label", "new_label")  # required columns; others are ignored
TRAINED_ON = ("train", "val")  # the splits that leave_out shortens; val chooses the best epoch
LOGGED = 20  # changes in the log; all are in splits/corrected.tsv of the run
SIMILAR = 3000  # names among which a similar one is searched

Change = tuple[str, str, str]  # name, label in the data, new label


def apply_corrections(source: Source, path: str | Path) -> Source:
    """The source with the new labels of a corrections file, which are also listed in its `corrected`.

    A row whose `new_label` is empty, or equal to the label of the data, changes nothing.

    Raises:
        DataError: a column is missing; or a row has an unknown or ambiguous sample, an unknown class, a former label
            that differs from the data, or a new label that differs from an earlier row of the same sample.
        FileNotFoundError: there is no such file.
    """
    path = Path(path).expanduser()
    changes = _read(path)
    if not changes:
        log.info("data.corrections=%s: no row has a new_label, so nothing changes", path)
        return source
    positions = _positions(source)
    labels = {key: split.labels.copy() for key, split in source.splits.items()}
    index = {to_nfc(name): c for c, name in enumerate(source.classes)}
    separator = separator_of(source.classes) if source.multi_label else None  # reads the names of all classes
    corrected, lines = [], {}
    for line, (name, label, new) in changes:
        key, row = _find(path, line, name, positions)
        before = source.label_text(key, row)
        value = _encoded(path, line, new, source, index, separator)
        if label and to_nfc(label) != to_nfc(before):
            raise DataError(f"{path} line {line}: {printable(name)} had the label {label!r} when the file was written, "
                            f"but has {before!r} in {source.name}; correct or remove the line")
        first, earlier = lines.setdefault((key, row), (line, value))
        if not np.array_equal(earlier, value):
            raise DataError(f"{path} line {line}: {printable(name)} has another new_label in line {first}; remove one "
                            "of the lines")
        if not np.array_equal(labels[key][row], value):
            labels[key][row] = value
            corrected.append((name, before, new))
    for name, before, new in corrected[:LOGGED]:
        log.info("corrected %s: %s, was %s", printable(name), printable(new), printable(before))
    log.info("data.corrections=%s: %s changed", path, number_of(len(corrected), "label"))
    splits = {key: replace(split, labels=labels[key]) for key, split in source.splits.items()}
    return replace(source, splits=splits, corrected=[*source.corrected, *corrected])


def write_corrections(path: Path, rows: Sequence[dict]) -> None:
    """Write a corrections file to edit; `rows` have at least the keys of `COLUMNS`.

    Raises:
        DataError: the file exists, and may have been edited.
    """
    if path.exists():
        raise DataError(f"{path} exists and may have been edited; choose another name with --csv, or remove it")
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]) if rows else COLUMNS)
    writer.writeheader()
    writer.writerows(rows)
    write_output(path, text.getvalue().encode("utf-8", "surrogateescape"))  # of names of files


def leave_out(source: Source, path: str | Path) -> Source:
    """The source without the training and validation samples whose names are in a CSV file; those of test stay.

    Raises:
        DataError: the file has no column `name`, a row names an unknown or ambiguous sample, or a class would have no
            training sample.
        FileNotFoundError: there is no such file.
    """
    path = Path(path).expanduser()
    positions, dropped = _positions(source), {key: set() for key in TRAINED_ON if key in source.splits}
    for line, (name,) in _rows("data.leave_out", path, COLUMNS[:1]):
        key, row = _find(path, line, name, positions)
        if key in TRAINED_ON:
            dropped[key].add(row)
    splits, listed = dict(source.splits), []
    for key, rows in dropped.items():
        if rows:
            split = source.splits[key]
            splits[key] = split.take(np.setdiff1d(np.arange(len(split)), sorted(rows)))
            listed += [(split.names[i], f"{key}: in {path.name}") for i in sorted(rows)]
    _check_classes_remain(path, source, splits["train"].labels)
    log.info("data.leave_out=%s: %s samples left out", path,
             ", ".join(f"{len(rows)} {key}" for key, rows in dropped.items()))
    return replace(source, splits=splits, left_out=[*source.left_out, *listed])


def _check_classes_remain(path: Path, source: Source, labels: np.ndarray) -> None:
    """Raises DataError if a class has no training sample any more."""
    before, after = (set(np.flatnonzero(each.any(0)) if each.ndim == 2 else each.tolist())
                     for each in (source.splits["train"].labels, labels))
    if gone := sorted(before - after):
        raise DataError(f"data.leave_out={path}: class {source.classes[gone[0]]!r} would have no training sample; "
                        "remove lines from the file")


def _read(path: Path) -> list[tuple[int, Change]]:
    """Line, and name, label and new label, of each row that has a new label."""
    return [(line, row) for line, row in _rows("data.corrections", path, COLUMNS) if row[-1]]


def _rows(key: str, path: Path, columns: Sequence[str]) -> list[tuple[int, tuple[str, ...]]]:
    """Line and cells of each row of a file.

    Args:
        key: the config key that names the file.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{key}: the file {path} does not exist; vit audit --labels writes one")
    rows = list(numbered_rows(path, errors="surrogateescape"))  # as the names of files, which may not be UTF-8
    header = rows[0][1] if rows else []
    missing = [column for column in columns if column not in header]
    if missing:
        raise DataError(f"{path}: has no column {missing[0]!r}; {key} needs {', '.join(columns)}, and its columns are "
                        f"{', '.join(header) or 'none'}")
    found = []
    for line, row in rows[1:]:
        if len(row) != len(header):
            raise DataError(f"{path} line {line}: has {len(row)} fields, the header has {len(header)}")
        found.append((line, tuple(row[header.index(column)].strip() for column in columns)))
    return found


def _positions(source: Source) -> dict[str, list[tuple[str, int]]]:
    positions: dict[str, list[tuple[str, int]]] = {}
    for key, split in source.splits.items():
        for i, name in enumerate(split.names):
            positions.setdefault(to_nfc(name.replace("\\", "/")), []).append((key, i))
    return positions


def _find(path: Path, line: int, name: str, positions: dict[str, list[tuple[str, int]]]) -> tuple[str, int]:
    found = positions.get(to_nfc(name.replace("\\", "/")), [])
    if len(found) == 1:
        return found[0]
    if found:
        raise DataError(f"{path} line {line}: {number_of(len(found), 'sample')} are called {printable(name)}; remove "
                        "the line")
    end = name.rpartition("/")[2]
    likely = [each for each in positions if each.rpartition("/")[2] == end] or list(positions)[:SIMILAR]
    raise DataError(f"{path} line {line}: the data has no sample {printable(name)!r}"
                    f"{did_you_mean(nearest_names(name, likely))}")


def _encoded(
    path: Path, line: int, text: str, source: Source, index: dict[str, int], separator: str | None
) -> np.ndarray | int:
    """The label of one class name, or of several names joined by the source's separator; the separator alone means no
    label.

    Args:
        index: class name -> index.
        separator: None if an image has one label.
    """
    names = [text]
    if separator is not None:
        names = [] if text == separator else [name.strip() for name in text.split(separator)]
    for name in names:
        if to_nfc(name) not in index:
            raise DataError(f"{path} line {line}: {name!r} is not one of the {number_of(len(source.classes), 'class')}"
                            f"{did_you_mean(nearest_names(name, source.classes))}")
    if not source.multi_label:
        return index[to_nfc(text)]
    row = np.zeros(len(source.classes), bool)
    row[[index[to_nfc(name)] for name in names]] = True
    return row
