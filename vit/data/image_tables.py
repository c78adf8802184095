"""A table of image files and the text that each shows."""

from collections.abc import Sequence
from pathlib import Path

from vit.data.lines import TABLES, Column, drop_empty, is_table, line_names, read_columns
from vit.data.pairs import PairSource, PairSplit, complete, split_rows
from vit.data.source import DataError, Names, ReadFile


def image_text(
    path: str | Path,
    image: Column = "file",
    text: Column = "text",
    split: Column | None = None,
    root: str | Path | None = None,
    fractions: Sequence[float] = (0.8, 0.1, 0.1),
    on_empty: str = "error",
    split_seed: int = 0,
) -> PairSource:
    """Images with their text from a CSV, TSV or JSONL table: the columns `image`, `text` and, if there, `split`.

    Paths are relative to `root` (default: the table's folder). A table without splits is split by `fractions`.
    `on_empty`: an image without text is an error, or (skip) left out.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"data.path: the table {path} does not exist")
    if not is_table(path):
        raise DataError(f"data.path: {path.name} is not one of {', '.join(TABLES)}")
    place = Path(root).expanduser() if root else path.parent
    wanted = [("image", image), ("text", text), *([("split", split)] if split is not None else [])]
    columns, numbers = read_columns(path, wanted, maybe="split" if split is None else "")
    _check_files(path, place, columns["image"], line_names(path, numbers))
    rows, left_out = drop_empty({str(text): columns["text"]}, line_names(path, numbers), on_empty)
    files = Names(columns["image"])
    whole = PairSplit(Names(columns["text"]), files, read=ReadFile(place, files))
    pairs = whole if len(rows) == len(whole) else whole.take(rows)
    if "split" not in columns:
        return PairSource(path.stem, complete({"train": pairs}, fractions, split_seed), left_out)
    parts = split_rows([columns["split"][i] for i in rows], line_names(path, numbers[rows]))
    splits = complete({key: pairs.take(found) for key, found in parts.items()}, fractions, split_seed)
    return PairSource(path.stem, splits, left_out)


def _check_files(path: Path, root: Path, files: Sequence[str], names: Sequence[str]) -> None:
    missing = [i for i, file in enumerate(files) if not (root / file).is_file()]
    if missing:
        raise FileNotFoundError(
            f"{names[missing[0]]}: {files[missing[0]]!r} is not under {root}; {len(missing)} of {len(files)} files of "
            f"{path.name} are not there: set data.root to their folder"
        )
