"""Tables of image files and their texts."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vit.data.errors import DataError
from vit.data.formats.delimited import TABLES, Column, drop_empty, is_table, line_names, read_columns
from vit.data.formats.split_tables import has_train, tables_of_folder
from vit.data.image_sources.file_names import resolve_files
from vit.data.pairs.caption_files import (
    IMAGE_NAMES,
    TEXT_NAMES,
    Captions,
    caption_file,
    coco_files,
    read_captions,
    text_beside_images,
)
from vit.data.pairs.source import PairSource, PairSplit, add_missing_splits, log_several_targets, rows_by_split
from vit.data.pairs.text_forms import strip_texts, warn_about_mixed_forms
from vit.data.sample_names import PackedStrings
from vit.data.splits.names import warn_without_effect
from vit.data.splits.split import ReadFile
from vit.data.threads import StageProgress

LeftOut = list[tuple[str, str]]  # names of rows and reasons


@dataclass(frozen=True)
class _Options:
    """The parameters of `image_text` of these names."""

    image: Column
    text: Column
    on_empty: str
    on_bad_sample: str
    strip: bool
    progress: StageProgress | None

    def columns(self) -> list[tuple[str, Column]]:
        return [("image", self.image), ("text", self.text)]

    def alternatives(self) -> dict[str, Sequence[str]]:
        """Names of columns instead of the default ones."""
        return {key: names for (key, column), names in zip(self.columns(), (IMAGE_NAMES, TEXT_NAMES), strict=True)
                if column == names[0]}


def image_text(
    path: str | Path,
    image: Column = "file",
    text: Column = "text",
    split: Column | None = None,
    root: str | Path | None = None,
    fractions: Sequence[float] = (0.8, 0.1, 0.1),
    on_empty: str = "error",
    split_seed: int = 0,
    on_bad_sample: str = "error",
    on_unknown_split: str = "error",
    strip: bool = False,
    train: str | None = None,
    val: str | None = None,
    test: str | None = None,
    progress: StageProgress | None = None,
) -> PairSource:
    """Images with their text from a CSV, TSV or JSONL table: the columns `image`, `text` and, if present, `split`; from
    a file of captions (`read_captions`) or a folder of COCO; or from a folder with `1.txt` beside `1.jpg`. An image in
    several rows, such as one with several captions, is in one split unless the column `split` divides it.

    Args:
        root: the folder that paths in the table are relative to; by default that of the table.
        fractions: shares of train, val and test in a table without splits.
        on_empty: an image without text is an "error" or left out ("skip").
        on_bad_sample, on_unknown_split: the same for missing files, and for rows of other splits than train, val, test.
        strip: remove white space around the texts; runs of earlier versions, whose config lacks the key, did not.
        train, val, test: the names of the tables, if `path` is a folder with a table for each split, which
            `split_tables` finds by default.
        progress: called with the number of lines that have been read, and of image files that have been looked up.

    Raises:
        DataError: the table cannot be read, or a column, text or split is missing or invalid.
        FileNotFoundError: the table or image files do not exist.
    """
    path, root = Path(path).expanduser(), Path(root).expanduser() if root else None
    options = _Options(image, text, on_empty, on_bad_sample, strip, progress)
    stated = {"train": train, "val": val, "test": test}
    if path.is_dir() and not any(stated.values()) and not has_train(path, TABLES):
        found = _folder_of_captions(path, root, on_unknown_split, options)
    else:
        found = None
    tables = tables_of_folder(path, TABLES, stated, split) if found is None else {}
    if found is not None:
        name = path.resolve().name
        splits, left_out = found
    elif tables is None:
        name = path.stem
        splits, left_out = _one_table(path, root or path.parent, split, on_unknown_split, options)
    else:
        name = path.resolve().name
        splits, left_out = _several_tables(path, tables, root, options)
    return log_several_targets(PairSource(name, add_missing_splits(splits, fractions, split_seed), left_out))


def _one_table(
    path: Path, directory: Path, split: Column | None, on_unknown_split: str, options: _Options
) -> tuple[dict[str, PairSplit], LeftOut]:
    """The splits that a column of a table states, or all pairs as train, and the left-out rows."""
    if captions := read_captions(path):
        columns = {key: column for key, column in options.columns() if key not in options.alternatives()}
        warn_without_effect(columns | {"split": split}, f"{path.name} is a file of captions in a known format")
        return _split_captions(path, directory, captions, on_unknown_split, options)
    if not is_table(path):
        fix = "if commas separate its cells, rename it to .csv, if tabs do, to .tsv"
        if path.suffix == ".tar":
            fix = "unpack it with tar -xf into a folder of images and texts, and set data.path to that"
        raise DataError(f"data.path: {path.name} is not one of {', '.join(TABLES)}; {fix}")
    requested = [*options.columns(), *([("split", split)] if split is not None else [])]
    columns, numbers = read_columns(path, requested, "split" if split is None else "", options.progress,
                                    options.alternatives())
    pairs, left_out, rows = _pairs(path, directory, columns, line_names(path, numbers), options)
    if "split" not in columns:
        return {"train": pairs}, left_out
    values, names = [columns["split"][i] for i in rows], line_names(path, numbers[rows])
    parts = rows_by_split(values, names, on_unknown_split, left_out, need_train=False, column=split)
    return {key: pairs.take(part) for key, part in parts.items()}, left_out


def _split_captions(
    path: Path, directory: Path, captions: Captions, on_unknown_split: str, options: _Options
) -> tuple[dict[str, PairSplit], LeftOut]:
    """The splits that a file of captions states, or all pairs as train, and the left-out rows."""
    columns, names, unlisted = captions
    pairs, left_out, rows = _pairs(path, directory, columns, names, options)
    left_out = [*left_out, *unlisted]
    if "split" not in columns:
        return {"train": pairs}, left_out
    values, names = [columns["split"][i] for i in rows], [names[i] for i in rows]
    parts = rows_by_split(values, names, on_unknown_split, left_out, need_train=False)
    return {key: pairs.take(part) for key, part in parts.items()}, left_out


def _folder_of_captions(
    folder: Path, root: Path | None, on_unknown_split: str, options: _Options
) -> tuple[dict[str, PairSplit], LeftOut] | None:
    """The splits of a folder with the files of captions of a known data set, or with a text file beside each image;
    None for others.
    """
    if files := coco_files(folder):
        splits, left_out = {}, []
        for key, path in files.items():
            columns, names, _ = read_captions(path)
            splits[key], rest, _ = _pairs(path, root or _above_annotations(folder), columns, names, options)
            left_out += rest
        return splits, left_out
    if (path := caption_file(folder)) and (captions := read_captions(path)):
        return _split_captions(path, root or folder, captions, on_unknown_split, options)
    if captions := text_beside_images(folder):
        return _split_captions(folder, folder, captions, on_unknown_split, options)
    if shards := sorted(folder.glob("*.tar")):
        raise DataError(f"data.path: {folder} has shards such as {shards[0].name}, which are not read; unpack them "
                        "with tar -xf into a folder of images and texts, and set data.path to it")
    return None


def _above_annotations(folder: Path) -> Path:
    return folder.parent if folder.resolve().name == "annotations" else folder


def _several_tables(
    folder: Path, tables: dict[str, Path], root: Path | None, options: _Options
) -> tuple[dict[str, PairSplit], LeftOut]:
    """The splits of the tables of a folder, and the left-out rows."""
    splits, left_out = {}, []
    for key, path in tables.items():
        above = "." if root else os.path.relpath(path.parent, folder)
        columns, numbers = read_columns(path, options.columns(), "", options.progress, options.alternatives())
        splits[key], rest, _ = _pairs(path, root or folder, columns, line_names(path, numbers), options, above)
        left_out += rest
    return splits, left_out


def _pairs(
    path: Path, directory: Path, columns: dict[str, list[str]], names: Sequence[str], options: _Options,
    above: str = ".",
) -> tuple[PairSplit, LeftOut, np.ndarray]:
    """The pairs of a table, the left-out rows with the reason, and the rows of the pairs.

    Args:
        above: the folder below `directory` that the paths in the table are relative to.
    """
    name, texts = str(options.text), columns["text"]
    texts = strip_texts(name, texts, names) if options.strip else texts
    warn_about_mixed_forms(name, texts, names)
    files, missing = resolve_files(path, directory / above, columns["image"], options.progress)
    files = files if above == "." else [os.path.join(above, file) for file in files]
    if missing and (options.on_bad_sample != "skip" or len(missing) == len(files)):
        raise missing_files(path, directory, names[missing[0]], files[missing[0]], f"{len(missing)} of {len(files)}")
    rows, left_out = drop_empty({name: texts}, names, options.on_empty)
    rows, left_out = _drop_missing(rows, left_out, names, files, missing)
    files = PackedStrings(files)
    all_pairs = PairSplit(PackedStrings(texts), files, read=ReadFile(directory, files), groups=files)
    return all_pairs if len(rows) == len(all_pairs) else all_pairs.take(rows), left_out, rows


def _drop_missing(
    rows: np.ndarray, left_out: LeftOut, names: Sequence[str], files: Sequence[str], missing: list[int]
) -> tuple[np.ndarray, LeftOut]:
    """Move the `missing` rows from `rows` (N,) to `left_out`, which already has those with an empty text."""
    empty = set(range(len(names))).difference(rows.tolist())
    reasons = [(names[i], f"the file {files[i]} does not exist") for i in missing if i not in empty]
    return np.setdiff1d(rows, missing), [*left_out, *reasons]


def missing_files(path: Path, directory: Path, row: str, file: str, number: str) -> FileNotFoundError:
    """The error about missing image files, which names the first one."""
    return FileNotFoundError(
        f"{row}: {file!r} does not exist under {directory}; {number} files of {path.name} are "
        "missing; set data.root to their folder, or leave them out with "
        "data.on_bad_sample=skip"
    )
