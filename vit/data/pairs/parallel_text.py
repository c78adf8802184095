"""Parallel text: two files whose lines i are translations of each other, or two columns of a table."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vit.data.errors import DataError
from vit.data.formats.delimited import (
    TABLES,
    Column,
    check_single,
    drop_empty,
    find_file,
    is_table,
    line_names,
    read_columns,
    read_lines,
)
from vit.data.pairs.source import PairSource, PairSplit, add_missing_splits, rows_by_split
from vit.data.pairs.text_forms import strip_texts, warn_about_markup, warn_about_mixed_forms
from vit.data.sample_names import PackedStrings
from vit.data.splits.names import SPLIT_NAMES, warn_without_effect
from vit.data.threads import StageProgress
from vit.messages import number_of

Found = tuple[PairSplit, list[tuple[str, str]]]


def parallel(
    root: str | Path,
    source: Column = "en",
    target: Column = "de",
    train: str | None = None,
    val: str | None = None,
    test: str | None = None,
    split: Column | None = None,
    fractions: Sequence[float] = (0.8, 0.1, 0.1),
    on_empty: str = "error",
    split_seed: int = 0,
    on_unknown_split: str = "error",
    strip: bool = False,
    progress: StageProgress | None = None,
) -> PairSource:
    """Text pairs from a folder or one table.

    In a folder every split is two files, `train.en` and `train.de`, or a table, `train.tsv`, `.csv`, `.jsonl` or
    `.xlsx`, gzipped or not. `train`, `val` and `test` are the stems of the file names, by default the conventional
    ones. In tables `source` and `target` are columns (numbers from 0 in a file without a header line). Data without
    splits and without a column `split` is split by `fractions`. `on_empty`: a pair with an empty side is an "error" or
    left out ("skip"); `on_unknown_split`: likewise for rows of a table whose split is not train, val or test. `train`,
    `val` and `test` of one table, and `split` of a folder, have no effect, which a warning reports. `strip` removes
    white space around the texts; runs of earlier versions, whose config lacks the key, were trained with it.
    `progress` is called with the number of lines that have been read.

    Raises:
        DataError: a file cannot be read, the numbers of lines differ, or a text is empty.
        FileNotFoundError: a file does not exist.
        ValueError: `source` and `target` are equal.
    """
    root = Path(root).expanduser()
    if source == target:
        raise ValueError(f"source and target are both {source!r}; set data.source and data.target to different sides")
    if root.is_file():
        warn_without_effect({"train": train, "val": val, "test": test}, f"{root} is one table, not a folder of files")
        found = _one_table(root, source, target, split, fractions, on_empty, split_seed, on_unknown_split, strip,
                           progress)
        return PairSource(root.name.split(".")[0], *found)
    if not root.is_dir():
        raise FileNotFoundError(
            f"data.root: {root} does not exist; give a folder with train.{source} and train.{target}, or a table"
        )
    warn_without_effect({"split": split}, f"{root} is a folder, whose files are the splits")
    splits, left_out = {}, []
    for key, stem in (("train", train), ("val", val), ("test", test)):
        found = _split(root, key, stem, source, target, on_empty, strip, progress)
        if found:
            splits[key], left = found
            left_out += left
    return PairSource(root.resolve().name, add_missing_splits(splits, fractions, split_seed), left_out)


def _one_table(
    path: Path, source: Column, target: Column, split: Column | None, fractions: Sequence[float], on_empty: str,
    seed: int, on_unknown_split: str, strip: bool, progress: StageProgress | None,
) -> tuple[dict[str, PairSplit], list[tuple[str, str]]]:
    if not is_table(path):
        raise DataError(f"data.root: {path.name} is not a table ({', '.join(TABLES)}); give a table or a folder")
    requested = [("source", source), ("target", target), *([("split", split)] if split is not None else [])]
    columns, numbers = read_columns(path, requested, "split" if split is None else "", progress)
    texts = {str(source): columns["source"], str(target): columns["target"]}
    pairs, left_out, rows = _pairs(texts, line_names(path, numbers), on_empty, strip)
    if "split" not in columns:
        return add_missing_splits({"train": pairs}, fractions, seed), left_out
    values = [columns["split"][i] for i in rows]
    parts = rows_by_split(values, pairs.names, on_unknown_split, left_out, need_train=False, column=split)
    return add_missing_splits({key: pairs.take(rows) for key, rows in parts.items()}, fractions, seed), left_out


def _split(
    root: Path, key: str, stem: str | None, source: Column, target: Column, on_empty: str, strip: bool,
    progress: StageProgress | None,
) -> Found | None:
    """A split of a folder; None if no file has a conventional name. A requested name must exist."""
    names = (stem,) if stem else SPLIT_NAMES[key]
    found = [files for files in (_files(root, name, source, target) for name in names) if files]
    check_single(root, key, [files[0].name.split(".")[0] for files in found])
    if found and len(found[0]) == 2:
        return _two_files(*found[0], on_empty, strip, progress)
    if found:
        (table,) = found[0]
        columns, numbers = read_columns(table, [("source", source), ("target", target)], progress=progress)
        texts = {str(source): columns["source"], str(target): columns["target"]}
        return _pairs(texts, line_names(table, numbers), on_empty, strip)[:2]
    if stem or key == "train":
        stem = stem or "train"
        raise FileNotFoundError(
            f"data.{key}: {root} has neither {stem}.{source}[.gz] and {stem}.{target}[.gz] nor "
            f"{stem}{f', {stem}'.join(TABLES)}; name the files with data.{key}=STEM, data.source=, data.target="
        )
    return None


def _files(root: Path, name: str, source: Column, target: Column) -> list[Path]:
    """The two files of a split, or its table, or an empty list if there are neither; raises DataError for two tables.
    """
    sides = [find_file(root / f"{name}.{side}") for side in (source, target)]
    if all(sides):
        return sides
    if any(sides):
        there, missing = (source, target) if sides[0] else (target, source)
        raise FileNotFoundError(f"data.root: {root} has {name}.{there}, but no {name}.{missing}[.gz]")
    tables = [path for path in (find_file(root / f"{name}{kind}") for kind in TABLES) if path]
    if len(tables) > 1:
        raise DataError(f"{root}: both {tables[0].name} and {tables[1].name} exist; keep one of them")
    return tables


def _two_files(first: Path, second: Path, on_empty: str, strip: bool, progress: StageProgress | None) -> Found:
    sources, targets = read_lines(first, progress), read_lines(second, progress)
    if len(sources) != len(targets):
        raise DataError(
            f"{first} has {number_of(len(sources), 'line')} but {second.name} has {len(targets)}: line i of one must "
            "be the translation of line i of the other; find the line from which they differ"
        )
    if not sources:
        raise DataError(f"{first}: has 0 lines; expected one sentence per line")
    texts, names = {first.name: sources, second.name: targets}, line_names(first, len(sources))
    for side, each in texts.items():
        warn_about_markup(side, each, names)
    return _pairs(texts, names, on_empty, strip)[:2]


def _pairs(
    texts: dict[str, list[str]], names: Sequence[str], on_empty: str, strip: bool
) -> tuple[PairSplit, list[tuple[str, str]], np.ndarray]:
    """The pairs with text on both sides, the left-out pairs with the reason, and the rows of the returned pairs."""
    if strip:
        texts = {side: strip_texts(side, each, names) for side, each in texts.items()}
    for side, each in texts.items():
        warn_about_mixed_forms(side, each, names)
    rows, left_out = drop_empty(texts, names, on_empty)
    sources, targets = texts.values()
    whole = PairSplit(PackedStrings(targets), names, PackedStrings(sources))
    return (whole, left_out, rows) if len(rows) == len(whole) else (whole.take(rows), left_out, rows)
