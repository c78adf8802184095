"""Numbered lines of text, and the error of one that cannot be used."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from vit.data.errors import DataError, printable

MARK = b"\xef\xbb\xbf"  # what some editors put in front of UTF-8


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
        """Without its end.

        Raises:
            BadText: it is no UTF-8.
        """
        try:
            return self.raw.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
        except UnicodeDecodeError as error:
            reason = f"byte {error.start + 1} of it is no UTF-8; save the file as UTF-8"
            raise BadText(self.name, reason) from None


def numbered(lines: Iterable[bytes], file: Path | None = None) -> Iterator[Line]:
    """Numbers lines from 1 and removes UTF-8's byte order mark from the first."""
    for number, raw in enumerate(lines, 1):
        yield Line(raw.removeprefix(MARK) if number == 1 else raw, number, file)


def lone_surrogate(text: str) -> str | None:
    """The first surrogate without its pair, such as \\ud800, which JSON can hold and UTF-8 cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return f"\\u{ord(text[error.start]):04x}"
    return None
