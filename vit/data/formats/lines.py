"""Numbered lines of text, and the error of an unusable line."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from vit.data.errors import DataError, printable

UTF8_BOM = b"\xef\xbb\xbf"  # some editors write it at the start of a file


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
        try:
            return self.raw.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
        except UnicodeDecodeError as error:
            reason = f"byte {error.start + 1} is not UTF-8; save the file as UTF-8"
            raise BadText(self.name, reason) from None


def number_lines(lines: Iterable[bytes], file: Path | None = None) -> Iterator[Line]:
    """Numbers lines from 1 and removes the byte order mark of UTF-8 from the first."""
    for number, raw in enumerate(lines, 1):
        yield Line(raw.removeprefix(UTF8_BOM) if number == 1 else raw, number, file)


def lone_surrogate(text: str) -> str | None:
    """The first unpaired surrogate, such as \\ud800, which JSON allows and UTF-8 does not; None if there is none."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return f"\\u{ord(text[error.start]):04x}"
    return None
