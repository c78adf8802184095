"""Lines that know where they stand, and what is said of those that cannot be used."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from vit.data.errors import DataError, printable

MARK = b"\xef\xbb\xbf"  # what some editors put in front of UTF-8


class BadText(DataError):
    """A text that cannot be used; the text is one line: its name and the reason."""

    def __init__(self, name: str, reason: str):
        super().__init__(f"{printable(name)}: {reason}")
        self.name, self.reason = name, reason


@dataclass(slots=True)
class Line:
    """A line that knows where it stands; its bytes become text when that is asked for."""

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
    """Lines as they come, without the mark of UTF-8 before the first."""
    for number, raw in enumerate(lines, 1):
        yield Line(raw.removeprefix(MARK) if number == 1 else raw, number, file)


def half_character(text: str) -> str | None:
    """The first half of a character, such as \\ud800, which JSON can write, but no file and no token can."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return f"\\u{ord(text[error.start]):04x}"
    return None
