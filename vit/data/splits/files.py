"""The format of `splits/SPLIT.tsv`: one row of cells per sample, with tabs and line breaks escaped."""

from collections.abc import Iterable, Sequence
from pathlib import Path

ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
UNESCAPES = {"t": "\t", "n": "\n", "r": "\r"}


def format_rows(rows: Iterable[Sequence[str]]) -> str:
    """The text of a file of these rows."""
    return "".join("\t".join("".join(ESCAPES.get(c, c) for c in cell) for cell in row) + "\n" for row in rows)


def read_rows(file: Path, escaped: bool | None = None) -> list[list[str]]:
    """Name, label and fingerprint of each sample; only name and label, unescaped, in the files of older runs.

    `escaped` states whether the cells of a file of two columns are escaped.
    """
    lines = file.read_text(encoding="utf-8", errors="surrogateescape").split("\n")[:-1]
    rows = [line.split("\t") for line in lines]
    if escaped or rows and len(rows[0]) == 3:
        return [[_unescaped(cell) for cell in row] for row in rows]
    return [line.split("\t", 1) for line in lines if "\t" in line]


def _unescaped(cell: str) -> str:
    if "\\" not in cell:
        return cell
    found, escaped = [], False
    for char in cell:
        found.append(UNESCAPES.get(char, char) if escaped else "" if char == "\\" else char)
        escaped = char == "\\" and not escaped
    return "".join(found)
