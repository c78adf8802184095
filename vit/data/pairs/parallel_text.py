"""Parallel text: line i of one file means line i of the other, or two columns of a table."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vit.data.errors import DataError
from vit.data.formats.delimited import (
    TABLES,
    Column,
    check_one,
    drop_empty,
    is_table,
    line_names,
    present,
    read_columns,
    read_lines,
)
from vit.data.pairs.source import PairSource, PairSplit, complete, split_rows
from vit.data.sample_names import Names
from vit.data.split_names import SPLIT_NAMES

Found = tuple[PairSplit, list[tuple[str, str]]]


def parallel(
    root: str | Path,
    source: Column = "en",
    target: Column = "de",
    train: str | None = None,
    val: str | None = None,
    test: str | None = None,
    split: str | None = None,
    fractions: Sequence[float] = (0.8, 0.1, 0.1),
    on_empty: str = "error",
    split_seed: int = 0,
) -> PairSource:
    """Text pairs from a folder or one table.

    In a folder every split is two files, `train.en` and `train.de`, or a table, `train.tsv`, `.csv` or `.jsonl`,
    gzipped or not. `train`, `val` and `test` are the stems of the file names, by default the conventional ones. In
    tables `source` and `target` name columns (numbers from 0 in a file without a header line). Data without splits and
    without a column `split` is split by `fractions`. `on_empty`: a pair with an empty side is an error, or left out
    (skip).
    """
    root = Path(root).expanduser()
    if source == target:
        raise ValueError(f"source and target are both {source!r}; a pair needs two sides")
    if root.is_file():
        found = _one_table(root, source, target, split, fractions, on_empty, split_seed)
        return PairSource(root.name.split(".")[0], *found)
    if not root.is_dir():
        raise FileNotFoundError(
            f"data.root: {root} does not exist; give a folder with train.{source} and train.{target}, or a table"
        )
    splits, left_out = {}, []
    for key, stem in (("train", train), ("val", val), ("test", test)):
        found = _split(root, key, stem, source, target, on_empty)
        if found:
            splits[key], left = found
            left_out += left
    return PairSource(root.resolve().name, complete(splits, fractions, split_seed), left_out)


def _one_table(
    path: Path, source: Column, target: Column, split: str | None, fractions: Sequence[float], on_empty: str, seed: int
) -> tuple[dict[str, PairSplit], list[tuple[str, str]]]:
    if not is_table(path):
        raise DataError(f"data.root: {path.name} is one file, but no table ({', '.join(TABLES)}); give one or a folder")
    wanted = [("source", source), ("target", target), *([("split", split)] if split else [])]
    columns, numbers = read_columns(path, wanted, maybe="" if split else "split")
    texts = {str(source): columns["source"], str(target): columns["target"]}
    pairs, left_out, rows = _pairs(texts, line_names(path, numbers), on_empty)
    if "split" not in columns:
        return complete({"train": pairs}, fractions, seed), left_out
    parts = split_rows([columns["split"][i] for i in rows], pairs.names)
    return complete({key: pairs.take(rows) for key, rows in parts.items()}, fractions, seed), left_out


def _split(root: Path, key: str, stem: str | None, source: Column, target: Column, on_empty: str) -> Found | None:
    """A split of a folder, None where none of the usual names is there; a name that was given must be there."""
    names = (stem,) if stem else SPLIT_NAMES[key]
    found = [files for files in (_files(root, name, source, target) for name in names) if files]
    check_one(root, key, [files[0].name.split(".")[0] for files in found])
    if found and len(found[0]) == 2:
        return _two_files(*found[0], on_empty)
    if found:
        (table,) = found[0]
        columns, numbers = read_columns(table, [("source", source), ("target", target)])
        texts = {str(source): columns["source"], str(target): columns["target"]}
        return _pairs(texts, line_names(table, numbers), on_empty)[:2]
    if stem or key == "train":
        stem = stem or "train"
        raise FileNotFoundError(
            f"data.{key}: {root} has neither {stem}.{source}[.gz] and {stem}.{target}[.gz] nor "
            f"{stem}{f', {stem}'.join(TABLES)}; name the files with data.{key}=STEM, data.source=, data.target="
        )
    return None


def _files(root: Path, name: str, source: Column, target: Column) -> list[Path]:
    """The two files of a split, else its table, else nothing."""
    sides = [present(root / f"{name}.{side}") for side in (source, target)]
    if all(sides):
        return sides
    if any(sides):
        there, missing = (source, target) if sides[0] else (target, source)
        raise FileNotFoundError(f"data.root: {root} has {name}.{there}, but no {name}.{missing}[.gz]")
    return [path for path in (present(root / f"{name}{kind}") for kind in TABLES) if path][:1]


def _two_files(first: Path, second: Path, on_empty: str) -> Found:
    sources, targets = read_lines(first), read_lines(second)
    if len(sources) != len(targets):
        raise DataError(
            f"{first} has {len(sources)} lines but {second.name} has {len(targets)}: line i of one must translate "
            "line i of the other; find the line from which they differ"
        )
    if not sources:
        raise DataError(f"{first}: has 0 lines; expected one sentence per line")
    return _pairs({first.name: sources, second.name: targets}, line_names(first, len(sources)), on_empty)[:2]


def _pairs(
    texts: dict[str, list[str]], names: Sequence[str], on_empty: str
) -> tuple[PairSplit, list[tuple[str, str]], np.ndarray]:
    """The pairs that have text on both sides, what was left out, and the rows that stayed."""
    rows, left_out = drop_empty(texts, names, on_empty)
    sources, targets = texts.values()
    whole = PairSplit(Names(targets), names, Names(sources))
    return (whole, left_out, rows) if len(rows) == len(whole) else (whole.take(rows), left_out, rows)
