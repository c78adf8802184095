"""Parallel text: two files whose lines i are translations of each other, or two columns of a table."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import count, product, takewhile
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
from vit.data.pairs.source import PairSource, PairSplit, add_missing_splits, log_several_targets, rows_by_split
from vit.data.pairs.text_forms import strip_texts, warn_about_markup, warn_about_mixed_forms
from vit.data.sample_names import PackedStrings, SelectedStrings
from vit.data.splits.names import SPLIT_NAMES, warn_without_effect
from vit.data.threads import StageProgress
from vit.messages import number_of

Found = tuple[PairSplit, list[tuple[str, str]]]


def parallel(
    root: str | Path,
    source: Column = "en",
    target: Column | Sequence[Column] = "de",
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
    ones. A source has several references if `target` names several columns or file endings, of which only the first
    must have a text everywhere, or if a split has `test.de.ref0`, `test.de.ref1`, ... (also `test.de0` or `test.de.0`)
    instead of `test.de`.

    In tables `source` and `target` are columns (numbers from 0 in a file without a header line). Data without splits
    and without a column `split` is split by `fractions`. `on_empty`: a pair with an empty side is an "error" or left
    out ("skip"); `on_unknown_split`: likewise for rows of a table whose split is not train, val or test. `train`, `val`
    and `test` of one table, and `split` of a folder, have no effect, which a warning reports. `strip` removes white
    space around the texts; runs of earlier versions, whose config lacks the key, were trained with it. `progress` is
    called with the number of lines that have been read.

    Raises:
        DataError: a file cannot be read, the numbers of lines differ, or a text is empty.
        FileNotFoundError: a file does not exist.
        ValueError: `source` and `target` are equal.
    """
    root = Path(root).expanduser()
    targets = [target] if isinstance(target, str | int) else list(target)
    if source in targets:
        raise ValueError(f"source and target are both {source!r}; set data.source and data.target to different sides")
    if len(set(targets)) < len(targets) or not targets:
        raise ValueError(f"data.target={targets} must name at least one side, and each only once")
    if root.is_file():
        warn_without_effect({"train": train, "val": val, "test": test}, f"{root} is one table, not a folder of files")
        found = _one_table(root, source, targets, split, fractions, on_empty, split_seed, on_unknown_split, strip,
                           progress)
        return log_several_targets(PairSource(root.name.split(".")[0], *found))
    if not root.is_dir():
        raise FileNotFoundError(
            f"data.root: {root} does not exist; give a folder with train.{source} and train.{targets[0]}, or a table"
        )
    warn_without_effect({"split": split}, f"{root} is a folder, whose files are the splits")
    splits, left_out = {}, []
    for key, stem in (("train", train), ("val", val), ("test", test)):
        found = _split(root, key, stem, source, targets, on_empty, strip, progress)
        if found:
            splits[key], left = found
            left_out += left
    if any(each.groups is not None for each in splits.values()):  # all splits, so that they can be concatenated
        splits = {key: replace(each, groups=each.names) for key, each in splits.items()}
    splits = add_missing_splits(splits, fractions, split_seed)
    return log_several_targets(PairSource(root.resolve().name, splits, left_out))


def _one_table(
    path: Path, source: Column, targets: Sequence[Column], split: Column | None, fractions: Sequence[float],
    on_empty: str, seed: int, on_unknown_split: str, strip: bool, progress: StageProgress | None,
) -> tuple[dict[str, PairSplit], list[tuple[str, str]]]:
    if not is_table(path):
        raise DataError(f"data.root: {path.name} is not a table ({', '.join(TABLES)}); give a table or a folder")
    requested = [*_requested(source, targets), *([("split", split)] if split is not None else [])]
    columns, numbers = read_columns(path, requested, "split" if split is None else "", progress)
    pairs, left_out, lines = _references(_texts(columns, source, targets), line_names(path, numbers), on_empty, strip)
    if "split" not in columns:
        return add_missing_splits({"train": pairs}, fractions, seed), left_out
    values = [columns["split"][i] for i in lines]
    parts = rows_by_split(values, pairs.names, on_unknown_split, left_out, need_train=False, column=split)
    return add_missing_splits({key: pairs.take(rows) for key, rows in parts.items()}, fractions, seed), left_out


def _split(
    root: Path, key: str, stem: str | None, source: Column, targets: Sequence[Column], on_empty: str, strip: bool,
    progress: StageProgress | None,
) -> Found | None:
    """A split of a folder; None if no file has a conventional name. A requested name must exist."""
    names = (stem,) if stem else SPLIT_NAMES[key]
    found = [files for files in (_files(root, name, source, targets) for name in names) if files]
    check_single(root, key, [files[0].name.split(".")[0] for files in found])
    if found and len(found[0]) > 1:
        return _lines_of_files(*found[0], on_empty=on_empty, strip=strip, progress=progress)
    if found:
        (table,) = found[0]
        columns, numbers = read_columns(table, _requested(source, targets), progress=progress)
        return _references(_texts(columns, source, targets), line_names(table, numbers), on_empty, strip)[:2]
    if stem or key == "train":
        stem = stem or "train"
        raise FileNotFoundError(
            f"data.{key}: {root} has neither {stem}.{source}[.gz] and {stem}.{targets[0]}[.gz] nor "
            f"{stem}{f', {stem}'.join(TABLES)}; name the files with data.{key}=STEM, data.source=, data.target="
        )
    return None


def _requested(source: Column, targets: Sequence[Column]) -> list[tuple[str, Column]]:
    """The keys and columns of a table; those of the second reference and further ones are numbered."""
    return [("source", source), *((f"target{i or ''}", column) for i, column in enumerate(targets))]


def _texts(columns: dict[str, list[str]], source: Column, targets: Sequence[Column]) -> dict[str, list[str]]:
    """The columns of source and targets by their names in the table."""
    return {str(column): columns[key] for key, column in _requested(source, targets)}


def _files(root: Path, name: str, source: Column, targets: Sequence[Column]) -> list[Path]:
    """The files of a split, first that of the source, or its table, or an empty list if there are neither; raises
    DataError for two tables.
    """
    references = _target_files(root, name, targets)
    sides = [find_file(root / f"{name}.{source}"), *(references or [None])]
    if all(sides):
        return sides
    if any(sides):
        there, missing = (source, targets[0]) if sides[0] else (targets[0], source)
        raise FileNotFoundError(f"data.root: {root} has {name}.{there}, but no {name}.{missing}[.gz]")
    tables = [path for path in (find_file(root / f"{name}{kind}") for kind in TABLES) if path]
    if len(tables) > 1:
        raise DataError(f"{root}: both {tables[0].name} and {tables[1].name} exist; keep one of them")
    return tables


def _target_files(root: Path, name: str, targets: Sequence[Column]) -> list[Path]:
    """The files of the targets that a split has; of a single target without a file, those of its references, which are
    numbered from 0 or 1.
    """
    files = [file for target in targets if (file := find_file(root / f"{name}.{target}"))]
    if files or len(targets) > 1:
        return files
    for mark, first in product((".ref", "", "."), (0, 1)):
        numbered = (find_file(root / f"{name}.{targets[0]}{mark}{number}") for number in count(first))
        if files := list(takewhile(bool, numbered)):
            return files
    return []


def _lines_of_files(
    first: Path, *others: Path, on_empty: str, strip: bool, progress: StageProgress | None
) -> Found:
    sources = read_lines(first, progress)
    texts = {first.name: sources}
    for other in others:
        texts[other.name] = targets = read_lines(other, progress)
        if len(sources) != len(targets):
            raise DataError(
                f"{first} has {number_of(len(sources), 'line')} but {other.name} has {len(targets)}: line i of one "
                "must be the translation of line i of the other; find the line from which they differ"
            )
    if not sources:
        raise DataError(f"{first}: has 0 lines; expected one sentence per line")
    names = line_names(first, len(sources))
    for side, each in texts.items():
        warn_about_markup(side, each, names)
    return _references(texts, names, on_empty, strip)[:2]


def _references(
    texts: dict[str, list[str]], names: Sequence[str], on_empty: str, strip: bool
) -> tuple[PairSplit, list[tuple[str, str]], np.ndarray]:
    """The pairs of a source and one or several targets, the left-out pairs, and the line of each returned pair from 0.

    The second target and further ones may be empty, where a source has fewer references.
    """
    if len(texts) == 2:
        return _pairs(texts, names, on_empty, strip)
    (side, sources), (first, required), *others = texts.items()
    targets = [required, *(each for _, each in others)]
    chosen = [(i, k) for i in range(len(sources)) for k, each in enumerate(targets) if k == 0 or each[i].strip()]
    lines = np.array([i for i, _ in chosen], dtype=np.int64)
    repeated = {side: [sources[i] for i in lines], first: [targets[k][i] for i, k in chosen]}
    pairs, left_out, rows = _pairs(repeated, SelectedStrings(names, lines), on_empty, strip)
    return replace(pairs, groups=pairs.names), list(dict.fromkeys(left_out)), lines[rows]


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
