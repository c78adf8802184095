"""Tables of labelled images: a column of paths or encoded images, a column of labels, optionally one of splits."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vit.data.class_names import clean_label, labels_are_withheld, warn_about_one_label, withheld_reason
from vit.data.errors import DataError
from vit.data.formats.delimited import Column
from vit.data.formats.split_tables import has_train, tables_of_folder
from vit.data.image_sources.file_names import has_files, spread
from vit.data.image_sources.json_tables import JSON_LINES
from vit.data.image_sources.npz import array_splits, npz
from vit.data.image_sources.open_images import one_row_per_image
from vit.data.image_sources.other_tables import warn_about_shards
from vit.data.image_sources.published.array_files import Arrays
from vit.data.image_sources.published.layouts import find_layout, layout_hint
from vit.data.image_sources.table_columns import (
    IMAGE_COLUMNS,
    has_column,
    select_column,
    to_list,
    values_of,
)
from vit.data.image_sources.table_files import Content, read_table_columns
from vit.data.image_sources.table_labels import TableLabels, table_labels
from vit.data.image_sources.table_samples import table_samples
from vit.data.image_sources.table_splits import (
    lists_of_splits,
    samples_by_column,
    samples_by_files,
    split_column,
    split_file,
    warn_about_groups,
    warn_about_splits_elsewhere,
)
from vit.data.sample_names import PackedStrings
from vit.data.source import Source
from vit.data.splits.groups import group_column
from vit.data.splits.names import (
    similar_splits,
    split_of,
    warn_without_effect,
)
from vit.data.splits.split import Split
from vit.data.splits.splitting import three_ways, validation_fraction, with_validation
from vit.data.threads import StageProgress
from vit.messages import override_for_shell

log = logging.getLogger("vit")

TABLES = (".csv", ".tsv", ".txt", ".xlsx", ".parquet", ".json", *JSON_LINES)  # of a folder with one for each split


@dataclass(frozen=True)
class _Options:
    """The parameters of `table` of these names; `lists` are those of train, val and test that are set."""

    image: Column | None
    label: Column | Sequence[Column] | None
    split: Column | None
    root: Path | None
    classes: Sequence[str] | None
    fractions: Sequence[float]
    split_seed: int
    label_separator: str | None
    on_bad_sample: str
    group: Column | None
    one_hot: bool
    lists: Mapping[str, str]
    progress: StageProgress | None


@dataclass(frozen=True)
class _Table:
    """A table: its columns, the labels of all rows, the samples whose file exists, their rows, and the others."""

    columns: dict[Column, Any]
    labels: TableLabels
    samples: Split
    rows: np.ndarray
    left_out: list[tuple[str, str]]


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
    train: str | None = None,
    val: str | None = None,
    test: str | None = None,
    progress: StageProgress | None = None,
) -> Source:
    """Labelled images from a CSV, TSV, Excel, Parquet, JSON or JSONL table, from the JSON of COCO or Label Studio, from
    the arrays of an .npz file, or from a folder with a table of each split.

    Labels are class names, or numbers: indices into `classes` (or into the names stored in the Parquet file by Hugging
    Face datasets or in a classes.json beside the table), else names. List cells and `label_separator` allow several
    labels per image, or none; so does a list of columns of 0 and 1 as `label`, one for each class, which with `one_hot`
    state one class per image, as do labels (N,classes) of arrays. In a list of images alone the folders in their names
    are the classes. A table with the columns ImageID, LabelName and Confidence of Open Images has a row for each label,
    and a label with Confidence 0 is absent.

    The tables in a folder are those that `split_tables` finds, or the lists of a data set in
    `vit.data.image_sources.published`. Their classes are those of the table of train. A table of val or test without
    labels, or whose labels are all -1, is left out, with a warning. Where the images are not in `root`, they are
    searched in its folder that is named after the split. Without a table of val, a part of train is held out.

    Args:
        image, label, split: columns by name, or by number from 0 in a file without a header line; by default those with
            conventional names. `split` may also be the name of a file beside the table that states a split for each
            image.
        root: the folder that paths are relative to; by default that of the table.
        on_bad_sample: rows with a missing file are an "error" or left out ("skip").
        group: the column of the group that a sample belongs to; a regular expression, with parentheses, is not a column
            and is ignored here.
        train, val, test: the names of other tables in the folder; beside one table those of lists of images. Without a
            list of train, it has the images that are in no list.
        progress: called with the number of image files that have been looked up.

    Raises:
        DataError: the table cannot be read, a column is missing, or a label or split is invalid.
        FileNotFoundError: the table or image files do not exist.
    """
    path, root = Path(path).expanduser(), Path(root).expanduser() if root else None
    if path.suffix.lower() in (".mat", ".bin") and path.is_file() and (hint := layout_hint(path.parent)):
        raise DataError(f"{path}: is no table of images and labels{hint}")
    stated = {"train": train, "val": val, "test": test}
    arrays = path.suffix.lower() == ".npz"
    layout = None if any(stated.values()) or isinstance(image, int) else find_layout(path)
    if layout is not None and not layout.like_tables and has_train(path, TABLES):
        layout = None
    if layout is not None and layout.has_arrays:
        return _of_arrays(path, layout.read(path), classes, fractions, split_seed)
    of_folder = stated if arrays or not path.is_file() else {}
    try:
        tables = None if layout is not None else tables_of_folder(path, TABLES, of_folder, split)
    except DataError as error:
        raise DataError(f"{error}{layout_hint(path)}") from None
    if tables is None and arrays:
        return npz(path, classes, fractions, split_seed, one_hot)
    root = path / layout.images if layout is not None and root is None else root
    lists = {key: name for key, name in stated.items() if name}
    options = _Options(image, label, split, root, classes, fractions, split_seed, label_separator, on_bad_sample, group,
                       one_hot, lists, progress)
    return _one_table(path, options) if tables is None else _several_tables(path, tables, options)


def _of_arrays(
    folder: Path, found: Arrays, classes: Sequence[str] | None, fractions: Sequence[float], split_seed: int
) -> Source:
    name = folder.resolve().name
    source = array_splits(folder, name, found.arrays, classes or found.classes, fractions, split_seed)
    return replace(source, left_out=source.left_out + found.left_out)


def _one_table(path: Path, options: _Options) -> Source:
    """The samples of a table, whose splits a column, a file or lists beside it state, or the fractions."""
    warn_about_shards(path)
    read = _read_table(path, _columns(path, options), options.root or path.parent, options)
    file = split_file(path, read.columns, options.split)
    column = split_column(path, read.columns, options.split) if file is None else None
    lists = lists_of_splits(path, read.labels.columns, read.samples.names, options.lists)
    name = path.resolve().name if path.is_dir() else path.stem
    if file is None and column is None and not lists:
        warn_about_splits_elsewhere(path, read.columns, read.labels.columns, read.samples.names)
        if options.group is None:
            warn_about_groups(path, read.columns)
        splits = three_ways(read.samples, options.fractions, options.split_seed)
        return Source(name, read.labels.classes, splits, read.left_out)
    left_out = read.left_out
    if column is None:
        splits, rest = samples_by_files(path, read.samples, file, lists)
        left_out = left_out + rest
    else:
        warn_without_effect(lists, f"the column {column!r} of {path} states the splits")
        splits = samples_by_column(path, read.samples, column, values_of(path, read.columns, column), read.rows)
    for key in ("val", "test"):
        if key in splits:
            warn_about_one_label(path, key, splits[key].labels, read.labels.classes)
    splits = with_validation(splits, None, validation_fraction(options.fractions), options.split_seed)
    return Source(name, read.labels.classes, splits, left_out)


def _several_tables(folder: Path, tables: dict[str, Path], options: _Options) -> Source:
    """The samples of the tables of a folder, which are the splits."""
    splits, left_out, train = {}, [], None
    for key, path in tables.items():
        content = _columns(path, options)
        if train is not None and (missing := _missing_column(content, train)):
            log.warning("%s: has no column %r of labels, as the table of train has, and is left out", path, missing)
            left_out.append((str(path.relative_to(folder)), "a table without labels"))
            continue
        if train is not None and (values := _withheld_labels(path, content, train)):
            log.warning("%s: %s, and the table is left out", path, withheld_reason(values))
            left_out.append((str(path.relative_to(folder)), withheld_reason(values)))
            continue
        images = _folder_of_images(path, content, options.root or path.parent, key, options)
        read = _read_table(path, content, images, options, options.root or folder, train)
        _check_split_column(path, key, read)
        if train is not None:
            warn_about_one_label(path, key, read.labels.values, train.classes)
        train = train or read.labels
        splits[key] = read.samples
        left_out += read.left_out
    splits = with_validation(splits, None, validation_fraction(options.fractions), options.split_seed)
    return Source(folder.resolve().name, train.classes, splits, left_out)


def _columns(path: Path, options: _Options) -> Content:
    """The columns of a table; it has no header line if the column of images is a number."""
    if path.is_dir():
        return find_layout(path).read(path)
    columns, names = read_table_columns(path, headed=not isinstance(options.image, int))
    return one_row_per_image(path, columns, options.image, options.label), names


def _read_table(
    path: Path, content: Content, root: Path, options: _Options, top: Path | None = None,
    train: TableLabels | None = None,
) -> _Table:
    """A table.

    Args:
        content: its columns.
        root: the folder that the paths of images are relative to.
        top: the folder that the names of the samples are relative to, by default `root`.
        train: the labels of the training split, if that is another table.
    """
    columns, names = content
    image = select_column(path, columns, options.image, IMAGE_COLUMNS, "image")
    label = next(iter(train.columns), None) if options.label is None and train is not None else options.label
    labels = table_labels(path, columns, label, names, options.classes, options.label_separator, options.one_hot, train)
    whole, missing = table_samples(path, root, columns[image], labels.values, options.on_bad_sample, top or root,
                                   options.progress)
    whole = _with_groups(path, columns, whole, options.group)
    left_out = [(whole.names[i], "the file does not exist") for i in missing]
    present = np.delete(np.arange(len(whole)), missing)
    return _Table(columns, labels, whole.take(present) if missing else whole, present, left_out)


def _missing_column(content: Content, train: TableLabels) -> str | None:
    """The first column of the labels of train that a table lacks."""
    return next((str(name) for name in train.columns if not has_column(content[0], name)), None)


def _withheld_labels(path: Path, content: Content, train: TableLabels) -> list[Any]:
    """The labels of a table that states a class per image, if they are withheld; else []."""
    if len(train.columns) != 1 or train.values.ndim == 2:
        return []
    label = next((name for name in content[0] if str(name).strip() == str(train.columns[0]).strip()), train.columns[0])
    values = values_of(path, content[0], select_column(path, content[0], label, (), "label"))
    return values if labels_are_withheld(values, train.classes) else []


def _check_split_column(path: Path, key: str, read: _Table) -> None:
    """Checks that a column named split does not contradict the table of a split."""
    column = split_column(path, read.columns, None)
    values = [] if column is None else values_of(path, read.columns, column)
    other = next((value for value in values if split_of(clean_label(value)) not in (key, None)), None)
    if other is not None:
        raise DataError(f"{path}: is read as the table of {key}, but its column {column!r} has the split {other!r}; "
                        f"set {override_for_shell('data.path', path)} to read this table alone")


def _folder_of_images(path: Path, content: Content, root: Path, key: str, options: _Options) -> Path:
    """The folder of the images of a split: `root`, or, where the images are not there, a folder in it that is named
    after the split, such as train2017 or test_images. All images of train may also be in one that is named after no
    split, as data_256 of Places365.
    """
    columns, _ = content
    column = columns[select_column(path, columns, options.image, IMAGE_COLUMNS, "image")]
    names = [name for name in to_list(spread(column)) if isinstance(name, str)]
    if not names or has_files(root, names):
        return root
    entries = [entry for entry in sorted(root.iterdir()) if entry.is_dir()]
    folders = [entry for entry in entries if key in similar_splits([entry.name])]
    names = [name.lstrip("/") for name in names]
    if (found := next((folder for folder in folders if has_files(folder, names)), None)) is not None:
        return found
    others = [entry for entry in entries if not similar_splits([entry.name])] if key == "train" else []
    return next((folder for folder in others if has_files(folder, names, all_of_them=True)), root)


def _with_groups(path: Path, columns: dict[Column, Any], whole: Split, group: Column | None) -> Split:
    """The samples with the groups that a column states; a regular expression is not a column and is ignored here."""
    if (column := group_column(group, columns)) is None:
        return whole
    values = values_of(path, columns, select_column(path, columns, column, (), "group"))
    return replace(whole, groups=PackedStrings([clean_label(value) for value in values]))
