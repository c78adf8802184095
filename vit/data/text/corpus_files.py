"""Corpora from text files: one sentence per line, an empty line between documents."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vit.data.errors import DataError
from vit.data.formats.delimited import check_single, find_file, line_names, read_lines
from vit.data.sample_names import PackedStrings
from vit.data.sets.number_stories import number_stories
from vit.data.splits.names import SPLIT_NAMES, warn_without_effect
from vit.data.splits.splitting import PARTS
from vit.data.text.corpus import CorpusSource, CorpusSplit, split_by_document
from vit.data.threads import StageProgress


def corpus(
    root: str | Path | None = None,
    train: str | None = None,
    val: str | None = None,
    test: str | None = None,
    fractions: Sequence[float] = (0.8, 0.1, 0.1),
    split_seed: int = 0,
    progress: StageProgress | None = None,
) -> CorpusSource:
    """A corpus with one sentence per line and an empty line between documents; files may be gzipped.

    A folder contains train.txt and optionally val.txt and test.txt (`train`, `val` and `test` are other names); a
    single file, or train.txt alone, is split by `fractions` into whole documents (see `split_by_document`). Without
    `root` it is the generated set `number_stories`. `progress` is called with the number of lines that have been read.

    Raises:
        DataError: a file cannot be read, or a split has no consecutive sentences.
        FileNotFoundError: a file does not exist.
    """
    if root is None:
        return number_stories(split_seed=split_seed)
    root = Path(root).expanduser()
    if root.is_file():
        warn_without_effect({"train": train, "val": val, "test": test}, f"{root} is one file, not a folder of files")
        return CorpusSource(root.name.split(".")[0], _split(root, _read(root, progress), fractions, split_seed))
    if not root.is_dir():
        raise FileNotFoundError(f"data.root: {root} does not exist; give a text file, or a folder with train.txt")
    splits = {}
    for key, name in (("train", train), ("val", val), ("test", test)):
        names = [name] if name else [f"{conventional}.txt" for conventional in SPLIT_NAMES[key]]
        files = [path for path in (find_file(root / n) for n in names) if path]
        check_single(root, key, [path.name for path in files])
        if files:
            splits[key] = _read(files[0], progress)
        elif name or key == "train":
            raise FileNotFoundError(f"data.{key}: {root} has no {names[0]}[.gz]; name the file with data.{key}=NAME")
    splits = _split(root, splits["train"], fractions, split_seed) if set(splits) == {"train"} else splits
    return CorpusSource(root.resolve().name, splits)


def _read(path: Path, progress: StageProgress | None) -> CorpusSplit:
    lines = read_lines(path, progress)
    nonempty = np.array([bool(line.strip()) for line in lines], dtype=bool)
    if not nonempty.any():
        raise DataError(f"{path}: has 0 sentences; expected one per line")
    rows = np.flatnonzero(nonempty)
    return CorpusSplit(PackedStrings([lines[i] for i in rows]), line_names(path, rows + 1), np.cumsum(~nonempty)[rows])


def _split(path: Path, whole: CorpusSplit, fractions: Sequence[float], seed: int) -> dict[str, CorpusSplit]:
    parts = split_by_document(whole, fractions, seed)
    bare = [key for key, share in zip(PARTS, fractions, strict=True)
            if share and (key not in parts or not len(parts[key].followed_sentences()))]
    if bare and len(whole.followed_sentences()):
        found = len(parts.get(bare[0], ()))
        raise DataError(
            f"{path}: with data.fractions={list(fractions)} {bare[0]} gets {found} of {len(whole)} sentences, "
            "none of which is followed by another one in its document; add text, or name a file with "
            f"data.{bare[0]}=NAME"
        )
    return parts
