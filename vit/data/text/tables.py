"""Tables of labelled texts: one or two columns of text, a column of labels, optionally one of splits."""

import json
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vit.data.class_names import (
    check_no_lists,
    clean_label,
    labels_are_withheld,
    parse_class_names,
    warn_about_combined_labels,
    warn_about_missing,
    warn_about_one_label,
    warn_about_similar_names,
    withheld_reason,
)
from vit.data.errors import DataError
from vit.data.formats.delimited import (
    TABLES,
    Column,
    drop_empty,
    find_column,
    is_table,
    numbered_rows,
    read_columns,
)
from vit.data.formats.parquet import read_parquet
from vit.data.formats.split_tables import tables_of_folder
from vit.data.image_sources.coco_label_studio import annotation_format, annotation_rows
from vit.data.image_sources.json_tables import columns_of, read_json_columns
from vit.data.image_sources.table_columns import distinct, values_of
from vit.data.pairs.source import rows_by_split
from vit.data.sample_names import PackedStrings, RowNames
from vit.data.sets.number_stories import number_questions
from vit.data.source import Source
from vit.data.splits.names import UnusedSplits
from vit.data.splits.splitting import three_ways, validation_fraction, with_validation
from vit.data.text.dataset import TextSplit
from vit.data.threads import StageProgress
from vit.files.untrusted import read_bytes, unique_keys
from vit.messages import list_names, number_of, override_for_shell

log = logging.getLogger("vit")

KINDS = (*TABLES, ".parquet", ".json")


def text_table(
    path: str | Path | None = None,
    text: Column = "text",
    second: Column | None = None,
    label: Column = "label",
    split: Column | None = None,
    classes: Sequence[str] | None = None,
    fractions: Sequence[float] = (0.8, 0.1, 0.1),
    on_empty: str = "error",
    split_seed: int = 0,
    group: Column | None = None,
    train: str | None = None,
    val: str | None = None,
    test: str | None = None,
    progress: StageProgress | None = None,
) -> Source:
    """Labelled texts from CSV, TSV, JSONL, .xlsx, Parquet or JSON, also as Label Studio exports it: columns `text`,
    `second` (of pairs), `label` and `split`. Those of Label Studio are the keys of the data of its tasks, and the label
    is the choice of each.

    Labels are class names, or indices into `classes` if that is given. A table without splits is split by `fractions`,
    stratified. `on_empty`: a row without text or label is an "error" or left out ("skip"). `group`: the column of the
    group that a sample belongs to. Without `path` it is the generated set `number_questions`.

    A folder has a table for each split, which `split_tables` finds, or which `train`, `val` and `test` name. The
    classes are those of train; without a table of val, a part of train is held out. A table of val or test without
    labels, or whose labels are all -1, is left out, with a warning. `progress` is called with the number of lines that
    have been read.

    Raises:
        DataError: the table cannot be read, a column is missing, or a label, text or split is invalid.
        FileNotFoundError: the table does not exist.
    """
    if path is None:
        return number_questions(split_seed=split_seed)
    path = Path(path).expanduser()
    requested = [("text", text), ("second", second), ("label", label), ("split", split), ("group", group)]
    requested = [(key, column) for key, column in requested if column is not None]
    tables = tables_of_folder(path, KINDS, {"train": train, "val": val, "test": test}, split)
    if tables is None:
        return _one_table(path, requested, classes, fractions, on_empty, split_seed, progress)
    found, splits, left_out = _read_splits(path, tables, requested, classes, on_empty, progress)
    splits = with_validation(splits, None, validation_fraction(fractions), split_seed)
    return Source(path.resolve().name, found, splits, left_out)


def _one_table(
    path: Path, requested: list[tuple[str, Column]], classes: Sequence[str] | None, fractions: Sequence[float],
    on_empty: str, seed: int, progress: StageProgress | None,
) -> Source:
    """The samples of a table, whose splits a column states, or the fractions."""
    split = dict(requested).get("split")
    columns, names = _read(path, path.name, requested, "split" if split is None else "", classes, progress)
    rows, left_out = _full_rows(columns, names, requested, on_empty)
    found, index = _classes(columns["label"], names, rows, classes)
    whole = _split(columns, names, rows, index)
    if "split" not in columns:
        return Source(path.stem, found, three_ways(whole, fractions, seed), left_out)
    parts = rows_by_split([columns["split"][i] for i in rows], whole.names, column=split)
    splits = {key: whole.take(part) for key, part in parts.items()}
    return Source(path.stem, found, with_validation(splits, None, validation_fraction(fractions), seed), left_out)


def _read_splits(
    folder: Path, tables: dict[str, Path], requested: list[tuple[str, Column]], classes: Sequence[str] | None,
    on_empty: str, progress: StageProgress | None,
) -> tuple[list[str], dict[str, TextSplit], list[tuple[str, str]]]:
    """The classes, the splits and the left-out rows of tables that are the splits."""
    requested = [(key, column) for key, column in requested if key != "split"]
    label = dict(requested)["label"]
    splits, left_out, found, index = {}, [], [], {}
    for key, path in tables.items():
        name = str(path.relative_to(folder))
        if key != "train" and not _has_labels(path, label):
            log.warning("%s: has no column %r of labels and is left out", path, label)
            left_out.append((name, "a table without labels"))
            continue
        columns, names = _read(path, name, requested, "", classes, progress)
        if key != "train" and labels_are_withheld(columns["label"], found):
            log.warning("%s: %s, and the table is left out", path, withheld_reason(columns["label"]))
            left_out.append((name, withheld_reason(columns["label"])))
            continue
        rows, empty = _full_rows(columns, names, requested, on_empty)
        left_out += empty
        if key == "train":
            found, index = _classes(columns["label"], names, rows, classes)
        splits[key] = _split(columns, names, rows, index)
        if key != "train":
            warn_about_one_label(path, key, splits[key].labels, found)
    return found, splits, left_out


def _has_labels(path: Path, label: Column) -> bool:
    """Whether the header of a table has the column of labels; true for tables without a header."""
    if isinstance(label, int) or path.name.lower().removesuffix(".gz").rpartition(".")[2] not in ("csv", "tsv", "xlsx"):
        return True
    return label in next(iter(numbered_rows(path)), (0, [label]))[1]


def _full_rows(
    columns: dict[str, list[str]], names: Sequence[str], requested: list[tuple[str, Column]], on_empty: str
) -> tuple[np.ndarray, list[tuple[str, str]]]:
    """The rows with texts and a label, and the others with the reason."""
    needed = {str(column): columns[key] for key, column in requested if key not in ("split", "group")}
    return drop_empty(needed, names, on_empty)


def _split(columns: dict[str, list[str]], names: Sequence[str], rows: np.ndarray, index: dict[str, int]) -> TextSplit:
    """The samples of some rows."""
    texts = tuple(PackedStrings(columns[key]) for key in ("text", "second") if key in columns)
    groups = PackedStrings([clean_label(value) for value in columns["group"]]) if "group" in columns else None
    return TextSplit(_labels(columns["label"], names, rows, index), names, texts, groups).take(rows)


def _read(
    path: Path, name: str, requested: list[tuple[str, Column]], optional: str, classes: Sequence[str] | None,
    progress: StageProgress | None,
) -> tuple[dict[str, list[str]], Sequence[str]]:
    """The requested columns by key, and a name for each row, which begins with that of the table."""
    if is_table(path):
        columns, numbers = read_columns(path, requested, optional, progress)
        return columns, RowNames(name, numbers, "line")
    if path.suffix.lower() == ".json":
        stored = _json_columns(path)
    elif path.suffix.lower() == ".parquet":
        stored, stated = read_parquet([path])
        _log_stated_classes(path, stored, stated, dict(requested)["label"], classes)
    else:
        raise DataError(f"data.path: {path.name} is not one of {', '.join(KINDS)}")
    for key, column in requested:
        if column not in stored:
            raise DataError(f"{path}: has no column {column!r} for data.{key}; its columns are {list_names(stored)}")
    others = {each: cells for each, cells in stored.items() if each not in dict(requested).values()}
    found = find_column(path, others, optional, optional)
    if optional and found is None:
        unused = UnusedSplits(others)
        for each, cells in others.items():
            unused.add(each, distinct(cells))
        unused.warn(path)
    requested = [*requested, (optional, found)] if found is not None else requested
    values = {key: values_of(path, stored, column) for key, column in requested}
    count = len(values["text"])
    if count == 0:
        raise DataError(f"{path}: has 0 rows; expected one for each sample")
    names = RowNames(name, np.arange(count))
    for key in ("text", "second"):
        _check_texts(dict(requested).get(key), values.get(key, ()), names)
    return {key: [_cell(key, value) for value in column] for key, column in values.items()}, names


def _log_stated_classes(
    path: Path, columns: dict[str, Any], stated: dict[str, list[str]], label: Column, classes: Sequence[str] | None
) -> None:
    """Log the class names that a Parquet file states for labels that are numbers, which are the names without
    `classes`.
    """
    import pyarrow

    found = stated.get(label)
    if found and not classes and label in columns and pyarrow.types.is_integer(columns[label].type):
        log.warning("%s: the numbers in its column %s are the class names, although it states others: %s uses those",
                    path, label, override_for_shell("data.classes", found))


def _check_texts(column: Column | None, values: Sequence[Any], names: Sequence[str]) -> None:
    """Raises DataError for a list or an object in place of a text."""
    row = next((i for i, value in enumerate(values) if isinstance(value, list | dict)), None)
    if row is not None:
        kind = "a list" if isinstance(values[row], list) else "an object"
        raise DataError(f"{names[row]}: {column} must be a string, but is {kind}; write a string in each row")


def _json_columns(path: Path) -> dict[str, list[Any]]:
    """The data and the label of the tasks of Label Studio's export as columns, or those of other JSON.

    Raises:
        DataError: the file is not valid JSON or has another form, or a text of such an export has several labels.
    """
    try:
        content = json.loads(read_bytes(path).decode("utf-8-sig"), object_pairs_hook=unique_keys)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: cannot be read as JSON ({error})") from None
    kind, _ = annotation_format(content)
    if kind != "Label Studio":
        return read_json_columns(path, "text")
    rows = annotation_rows(path, content, "text") or []
    for task, row in zip(content, rows, strict=True):
        if isinstance(row["label"], list) and len(row["label"]) != 1:
            raise DataError(f"{path}: task {task.get('id')} has the choices {row['label']}, but a text has one label; "
                            "correct it in Label Studio, or remove the task")
    return columns_of(rows)


def _cell(key: str, value: Any) -> str:
    """A cell of a Parquet column as text, "" if it is missing."""
    is_nan = isinstance(value, float) and math.isnan(value)
    if key == "label" or is_nan:
        return clean_label(value)
    return "" if value is None else str(value)


def _classes(
    values: list[str], names: Sequence[str], rows: np.ndarray, classes: Sequence[str] | None
) -> tuple[list[str], dict[str, int]]:
    """Ordered class names, and the class of each label."""
    values, classes = [clean_label(value) for value in values], parse_class_names(classes)
    used = {values[i] for i in rows}
    listed = classes or sorted(used, key=_number_or_name)
    where = names[0].rsplit(" ", 2)[0]
    check_no_lists(names.__getitem__, values)
    warn_about_similar_names(where, listed)
    if not classes:
        warn_about_missing(where, [values[i] for i in rows])
        warn_about_combined_labels(where, listed)
    index = {name: i for i, name in enumerate(listed)}
    if classes and not used & set(index):
        index = {str(i): i for i in range(len(listed))}
    return listed, index


def _labels(values: list[str], names: Sequence[str], rows: np.ndarray, index: dict[str, int]) -> np.ndarray:
    """Labels (N,), -1 for rows that are left out.

    Args:
        index: label -> class.
    """
    values, labels = [clean_label(value) for value in values], np.full(len(values), -1, dtype=np.int64)
    for i in rows:
        if values[i] not in index:
            listed = list(index)
            raise DataError(
                f"{names[i]}: label {values[i]!r} is not among the {number_of(len(listed), 'class')} "
                f"({', '.join(listed[:5])}{', ...' if len(listed) > 5 else ''}) and labels are not their indices from "
                "0 either"
            )
        labels[i] = index[values[i]]
    return labels


def _number_or_name(value: str) -> tuple[int, int, str]:
    """Sort key: whole numbers without a sign by value, then all other names in alphabetical order."""
    return (0, int(value), value) if value.isascii() and value.isdigit() else (1, 0, value)
