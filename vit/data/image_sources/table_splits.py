"""The splits of a table of images, which a column, a file or lists beside the table state."""

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vit.data.class_names import clean_label
from vit.data.errors import DataError
from vit.data.formats.delimited import Column, find_column
from vit.data.image_sources.other_tables import has_columns, warn_about_other_tables
from vit.data.image_sources.split_lists import lists_beside_table
from vit.data.image_sources.stated_splits import names_images, splits_in_file, splits_in_lists
from vit.data.image_sources.table_columns import distinct, select_column, to_list, with_keys_of_objects
from vit.data.splits.names import MAX_SPLIT_NAMES, SPLIT_NAMES, UnusedSplits, split_of, warn_without_effect
from vit.data.splits.split import Split
from vit.messages import agree, number_of, override_for_shell

log = logging.getLogger("vit")

# columns of what several images may show, of which a model must not see some in training and others in the test
GROUPS = re.compile(r"(patient|lesion|subject|participant|individual|person)([_ ]?(id|number|no))?", re.IGNORECASE)


def split_column(path: Path, columns: dict[Column, Any], split: Column | None) -> Column | None:
    """The column of splits: the stated one, else one with the conventional name, else None."""
    if split is None:
        return find_column(path, columns, "split", "split")
    return select_column(path, columns, split, (), "split")


def split_file(path: Path, columns: dict[Column, Any], split: Column | None) -> Path | None:
    """The file beside the table that `data.split` names; None if that is a column."""
    file = path.parent / split if isinstance(split, str) and split not in columns else None
    return file if file is not None and file.is_file() else None


def lists_of_splits(
    path: Path, labels: Sequence[Column], names: Sequence[str], stated: Mapping[str, str]
) -> dict[str, str]:
    """The stated lists of images, without tables of other images, which are read with those of a folder alone.

    Args:
        labels: the columns of labels, by which such a table is recognized.
        names: the images.
    """
    names = list(names) if stated else []
    named = bool(labels) and all(isinstance(column, str) for column in labels)
    others = {key: name for key, name in stated.items() if named and (path.parent / name).is_file()
              and has_columns(path.parent / name, labels) and not names_images(path.parent / name, names)}
    warn_without_effect(others, f"{path} is one table, not a folder of tables")
    return {key: name for key, name in stated.items() if key not in others}


def samples_by_column(
    path: Path, whole: Split, column: Column, values: Sequence[Any], rows: np.ndarray
) -> dict[str, Split]:
    """The samples by split: the values of a column at the `rows` of the samples name their splits.

    Raises:
        DataError: a value is not the name of a split.
    """
    found = [split_of(clean_label(values[row]), column) for row in rows]
    if None in found:
        row = rows[found.index(None)]
        listed = ", ".join(name for names in SPLIT_NAMES.values() for name in names)
        raise DataError(f"{path} row {row}: split {clean_label(values[row]).lower()!r} is not one of {listed}")
    keys = np.array(found)
    return {key: whole.take(np.flatnonzero(keys == key)) for key in SPLIT_NAMES if (keys == key).any()}


def samples_by_files(
    path: Path, whole: Split, file: Path | None, lists: Mapping[str, str]
) -> tuple[dict[str, Split], list[tuple[str, str]]]:
    """The samples by split as a file or lists of images state them, and those that are in no list, with the reason.

    Raises:
        DataError: as `splits_in_file` and `splits_in_lists`.
        FileNotFoundError: a list does not exist.
    """
    names = list(whole.names)
    if file is not None:
        warn_without_effect(lists, f"{file} states the splits")
        found = splits_in_file(file, names)
    else:
        found = splits_in_lists({key: path.parent / name for key, name in lists.items()}, names)
    left_out = [(name, "in no list of a split") for name, key in zip(names, found, strict=True) if key is None]
    if left_out:
        log.warning("%s: %d of %s %s in none of the lists (%s) and %s left out", path, len(left_out),
                    number_of(len(names), "image"), agree(len(left_out), "is", "are"), ", ".join(lists.values()),
                    agree(len(left_out), "is", "are"))
    keys = np.array([key or "" for key in found])
    return {key: whole.take(np.flatnonzero(keys == key)) for key in SPLIT_NAMES if (keys == key).any()}, left_out


def warn_about_splits_elsewhere(
    path: Path, columns: Mapping[Column, Any], labels: Sequence[Column], names: Sequence[str]
) -> None:
    """Warnings about columns, tables, folders and lists that may state the splits, for a table split by fractions.

    Args:
        labels: the columns of labels.
        names: the images.
    """
    _warn_about_unused_splits(path, with_keys_of_objects({key: columns[key] for key in columns if key not in labels}))
    warn_about_other_tables(path, labels)
    _warn_about_folders_of_splits(path, names)
    if message := lists_beside_table(path, names):
        log.warning("%s: %s", path, message)


def warn_about_groups(path: Path, columns: dict[Column, Any]) -> None:
    """A warning if a column with the name of one of patients or lesions has a value for several images."""
    for name in columns:
        if not GROUPS.fullmatch(str(name).strip()):
            continue
        values = [value for value in map(clean_label, to_list(columns[name])) if value]
        if 1 < len({*values}) < len(values):
            log.warning("%s: the column %r has %d values for %s, so that images of one value may be in train and in "
                        "test; %s keeps them in one split", path, name, len({*values}),
                        number_of(len(values), "image"), override_for_shell("data.group", name))


def _warn_about_unused_splits(path: Path, columns: dict[Column, Any]) -> None:
    """A warning if one of the columns, which are not read, contains only names of splits."""
    unused = UnusedSplits(columns)
    for name, values in columns.items():
        unused.add(name, distinct(values))
    unused.warn(path)


def _warn_about_folders_of_splits(path: Path, names: Sequence[str]) -> None:
    """A warning if one of the folders in the name of each image is called like a split, and not always the same one."""
    paths = [folder.split("/") for folder in {name.rpartition("/")[0] for name in names}]
    for level in range(min(map(len, paths), default=0)):
        found = {parts[level] for parts in paths}
        splits = {split_of(name) for name in found} if len(found) <= MAX_SPLIT_NAMES else set()
        if len(splits) > 1 and None not in splits:
            log.warning("%s: the images are in folders of splits (%s), which are not used, since the table has no "
                        "column split; to use them, add one with train, val or test in each row", path,
                        ", ".join(sorted(found)))
            return
