"""Word vectors in the text format of GloVe and word2vec: a word and its numbers on each line."""

import codecs
import logging
import zlib
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import takewhile
from pathlib import Path

import numpy as np

from vit.data.class_names import is_number
from vit.data.errors import DataError
from vit.files.untrusted import LimitError, open_decompressed
from vit.messages import check_several

log = logging.getLogger("vit")

MAX_LINE = 1 << 20  # bytes


def read_vectors(path: str | Path, words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """The vectors of words (words, width) float32, and whether each word was found (words,) bool; the vectors of words
    that are not in the file are zero.

    The file may be gzipped, and separated by tabs instead of spaces. A first line of two integers is word2vec's header;
    a warning is logged if it states more vectors than the file has. If a word occurs twice, its first vector is used,
    since these files are sorted by frequency. Empty words are not looked up.

    Raises:
        DataError: the file has no vectors, or a line is malformed.
        FileNotFoundError: the file does not exist.
    """
    check_several("words", words)
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"{path}: the file of word vectors does not exist")
    requested: dict[str, list[int]] = {}
    for i, word in enumerate(words):
        requested.setdefault(word, []).append(i)
    requested.pop("", None)
    matrix, found = None, np.zeros(len(words), dtype=bool)
    width, header_width, stated, count = 0, 0, 0, 0
    for number, line in _lines(path):
        if number == 1 and (header := _header(line))[1]:
            stated, header_width = header
            width = header_width
            continue
        count += 1
        if not width:
            width = _guessed_width(path, number, line)
        if matrix is None:
            matrix = np.zeros((len(words), width), dtype=np.float32)
        word, values = _parsed(path, number, line, width, header_width)
        rows = requested.get(word, [])
        if rows and not found[rows[0]]:
            matrix[rows] = _numbers(path, number, values)
            found[rows] = True
    if matrix is None:
        raise DataError(f"{path}: has 0 word vectors; expected a word and its numbers on each line")
    if count < stated:
        log.warning("%s: has %d word vectors, but its header states %d; the file may be incomplete", path, count,
                    stated)
    return matrix, found


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yields single lines, since such files may exceed the memory; invalid UTF-8 is replaced."""
    try:
        with open_decompressed(path) as file:
            for number, line in enumerate(iter(partial(file.readline, MAX_LINE), b""), 1):
                if len(line) == MAX_LINE:
                    raise LimitError(f"line {number} has {MAX_LINE:,} bytes or more, too many for a word with numbers")
                line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
                if line := line.decode("utf-8", "replace").replace("\t", " ").rstrip("\r\n "):
                    yield number, line
    except (OSError, EOFError, zlib.error, LimitError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error


def _header(line: str) -> tuple[int, int]:
    """The count and width in word2vec's first line; zeros if the line is not such a header."""
    parts = line.split(" ")
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() for part in parts):
        return 0, 0
    return int(parts[0]), int(parts[1])


def _guessed_width(path: Path, number: int, line: str) -> int:
    width = line.count(" ")
    if width < 1:
        raise DataError(f"{path} line {number}: has no numbers after the word; expected WORD 0.1 0.2 ...")
    return width


def _parsed(path: Path, number: int, line: str, width: int, header_width: int) -> tuple[str, list[str]]:
    """The word and its numbers, counted from the end, because words may contain spaces, such as ". . ." in GloVe 840B.
    If the remaining word ends in a number, the line has too many numbers.
    """
    word, *values = line.rsplit(" ", width)
    extra = list(takewhile(is_number, word.split(" ")[:0:-1]))
    if extra or len(values) < width:
        origin = "but the header states" if header_width else "but the first line has"
        raise DataError(
            f"{path} line {number}: has {len(values) + len(extra)} numbers, {origin} {width}; all lines "
            "must have the same number"
        )
    return word, values


def _numbers(path: Path, number: int, values: list[str]) -> np.ndarray:
    """The finite numbers (width,) float32 of a line."""
    try:
        with np.errstate(over="ignore"):
            found = np.array(values, dtype=np.float32)
    except ValueError:
        wrong = next(value for value in values if not is_number(value))
        raise DataError(f"{path} line {number}: {wrong!r} is not a number; correct or remove the line") from None
    finite = np.isfinite(found)
    if not finite.all():
        wrong = values[int(finite.argmin())]
        raise DataError(f"{path} line {number}: {wrong!r} is not a finite number; correct or remove the line")
    return found
