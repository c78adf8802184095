"""Numbered lines of text, and the error of an unusable line."""

import codecs
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from vit.data.errors import DataError, printable
from vit.files.untrusted import LimitError, open_decompressed
from vit.messages import on_one_line

UTF8_BOM = b"\xef\xbb\xbf"  # some editors write it at the start of a file
UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")  # files with one are decoded, standard input is not


class BadText(DataError):
    """A text that cannot be used; the message is its name and the reason."""

    def __init__(self, name: str, reason: str):
        super().__init__(f"{printable(name)}: {reason}")
        self.name, self.reason = name, reason


@dataclass(slots=True)
class Line:
    """A line with its number and file; its bytes are decoded when `text` is read."""

    raw: bytes
    number: int
    file: Path | None = None  # None: standard input

    @property
    def name(self) -> str:
        return f"line {self.number}" if self.file is None else f"{self.file} line {self.number}"

    @property
    def text(self) -> str:
        """The line without its line break.

        Raises:
            BadText: the line is not UTF-8.
        """
        return self.decode()

    def decode(self, errors: str = "strict") -> str:
        """`text`; with "surrogateescape" as `errors` any bytes are decoded, as those of file names.

        Raises:
            BadText: the line is not UTF-8, with "strict".
        """
        try:
            return self.raw.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", errors)
        except UnicodeDecodeError as error:
            reason = f"byte {error.start + 1} is not UTF-8; save the file as UTF-8"
            raise BadText(self.name, reason) from None


def iterate_lines(path: Path) -> Iterator[Line]:
    """The lines of a file, which may be gzipped.

    They are separated by newlines only, not by other line separators of Unicode; in a file without any, by carriage
    returns, as spreadsheets for Macintosh save tables.

    Raises:
        DataError: the file cannot be read.
        FileNotFoundError: it does not exist.
    """
    content = _content(path).removeprefix(UTF8_BOM)
    lines = content.split(b"\n" if b"\n" in content else b"\r")
    return number_lines(lines[:-1] if lines[-1] == b"" else lines, path)


def _content(path: Path) -> bytes:
    try:
        with open_decompressed(path) as file:
            return _as_utf8(file.read())
    except FileNotFoundError:
        raise FileNotFoundError(f"the file {path} does not exist") from None
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, LimitError) as error:
        raise DataError(f"{path}: cannot be read ({on_one_line(error)})") from error


def _as_utf8(data: bytes) -> bytes:
    """Converts UTF-16, which spreadsheets save with a byte order mark."""
    return data.decode("utf-16").encode() if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else data


def number_lines(lines: Iterable[bytes], file: Path | None = None) -> Iterator[Line]:
    """Numbers lines from 1 and removes the byte order mark of UTF-8 from the first.

    Raises:
        DataError: the first line shows that the text is UTF-16 or UTF-32, whose further lines are nonsense in UTF-8.
    """
    for number, raw in enumerate(lines, 1):
        if number == 1 and (raw.startswith(UTF16_BOMS) or raw.count(0) * 4 > len(raw)):
            what = "standard input" if file is None else printable(str(file))
            raise DataError(f"{what}: is not UTF-8, but UTF-16 or UTF-32; convert it, as with iconv -f UTF-16 -t UTF-8")
        yield Line(raw.removeprefix(UTF8_BOM) if number == 1 else raw, number, file)


def lone_surrogate(text: str) -> str | None:
    """The first unpaired surrogate, such as \\ud800, which JSON allows and UTF-8 does not; None if there is none."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return f"\\u{ord(text[error.start]):04x}"
    return None
