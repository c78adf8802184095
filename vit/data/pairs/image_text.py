"""Tables of image files and their texts."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vit.data.errors import DataError
from vit.data.formats.delimited import TABLES, Column, drop_empty, is_table, line_names, read_columns
from vit.data.formats.split_tables import split_tables
from vit.data.image_sources.file_names import resolve_files
from vit.data.pairs.source import PairSource, PairSplit, add_missing_splits, rows_by_split
from vit.data.pairs.text_forms import strip_texts, warn_about_mixed_forms
from vit.data.sample_names import PackedStrings, RowNames
from vit.data.splits.names import warn_without_effect
from vit.data.splits.split import ReadFile


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
) -> PairSource:
    """Images with their text from a CSV, TSV or JSONL table: the columns `image`, `text` and, if present, `split`.

    Args:
        root: the folder that paths in the table are relative to; by default that of the table.
        fractions: shares of train, val and test in a table without splits.
        on_empty: an image without text is an "error" or left out ("skip").
        on_bad_sample, on_unknown_split: the same for missing files, and for rows of other splits than train, val, test.
        strip: remove white space around the texts; runs of earlier versions, whose config lacks the key, did not.
        train, val, test: the names of the tables, if `path` is a folder with a table for each split, which
            `split_tables` finds by default.

    Raises:
        DataError: the table cannot be read, or a column, text or split is missing or invalid.
        FileNotFoundError: the table or image files do not exist.
    """
    path, stated = Path(path).expanduser(), {"train": train, "val": val, "test": test}
    if path.is_dir():
        warn_without_effect({"split": split}, f"{path} is a folder, whose tables are the splits")
        directory = Path(root).expanduser() if root else path
        splits, left_out = {}, []
        for key, file in split_tables(path, TABLES, stated).items():
            above = os.path.relpath(directory if root else file.parent, directory)
            columns, names, _ = _read(file, image, text, None, "")
            pairs, rest, _ = _pairs(file, directory, columns, names, text, strip, on_empty, on_bad_sample, above)
            splits[key], left_out = pairs, left_out + rest
        return PairSource(path.resolve().name, add_missing_splits(splits, fractions, split_seed), left_out)
    warn_without_effect(stated, f"{path} is one table, not a folder of tables")
    _check_table(path)
    directory = Path(root).expanduser() if root else path.parent
    columns, names, numbers = _read(path, image, text, split, "split" if split is None else "")
    pairs, left_out, rows = _pairs(path, directory, columns, names, text, strip, on_empty, on_bad_sample)
    if "split" not in columns:
        return PairSource(path.stem, add_missing_splits({"train": pairs}, fractions, split_seed), left_out)
    values, names = [columns["split"][i] for i in rows], line_names(path, numbers[rows])
    parts = rows_by_split(values, names, on_unknown_split, left_out, need_train=False, column=split)
    splits = add_missing_splits({key: pairs.take(part) for key, part in parts.items()}, fractions, split_seed)
    return PairSource(path.stem, splits, left_out)


def _read(
    path: Path, image: Column, text: Column, split: Column | None, optional: str
) -> tuple[dict[str, list[str]], RowNames, np.ndarray]:
    """The columns of a table by key, the names of its rows and their first lines."""
    requested = [("image", image), ("text", text), *([("split", split)] if split is not None else [])]
    columns, numbers = read_columns(path, requested, optional)
    return columns, line_names(path, numbers), numbers


def _pairs(
    path: Path, directory: Path, columns: dict[str, list[str]], names: RowNames, text: Column, strip: bool,
    on_empty: str, on_bad_sample: str, above: str = ".",
) -> tuple[PairSplit, list[tuple[str, str]], np.ndarray]:
    """The pairs of a table, the left-out rows with the reason, and the rows of the former.

    Args:
        above: the folder below `directory` that the paths in the table are relative to.
    """
    texts = strip_texts(str(text), columns["text"], names) if strip else columns["text"]
    warn_about_mixed_forms(str(text), texts, names)
    files, missing = resolve_files(path, directory / above, columns["image"])
    files = files if above == "." else [os.path.join(above, file) for file in files]
    if missing and (on_bad_sample != "skip" or len(missing) == len(files)):
        raise missing_files(path, directory, names[missing[0]], files[missing[0]], f"{len(missing)} of {len(files)}")
    rows, left_out = drop_empty({str(text): texts}, names, on_empty)
    rows, left_out = _drop_missing(rows, left_out, names, files, missing)
    files = PackedStrings(files)
    all_pairs = PairSplit(PackedStrings(texts), files, read=ReadFile(directory, files))
    return all_pairs if len(rows) == len(all_pairs) else all_pairs.take(rows), left_out, rows


def _check_table(path: Path) -> None:
    if not path.is_file():
        raise FileNotFoundError(f"data.path: the table {path} does not exist")
    if not is_table(path):
        raise DataError(f"data.path: {path.name} is not one of {', '.join(TABLES)}")


def _drop_missing(
    rows: np.ndarray, left_out: list[tuple[str, str]], names: Sequence[str], files: Sequence[str], missing: list[int]
) -> tuple[np.ndarray, list[tuple[str, str]]]:
    """`rows` (N,) without the `missing` ones, and `left_out` with the latter, unless their text is empty."""
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
