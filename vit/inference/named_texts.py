"""Texts as they are handed in: a name for each, and what cannot be read told by it."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

from vit.data.formats.lines import BadText, Line
from vit.data.images.decode import BadImage

Bad = BadImage | BadText
Answer = TypeVar("Answer")


def named_texts(texts: Iterable) -> Iterator[tuple[str, object]]:
    """(name, text) for every text of an argument, read lazily; a str by itself is one text, as a path is one image."""
    if isinstance(texts, str | Line):
        texts = [texts]
    if not isinstance(texts, Iterable) or isinstance(texts, bytes | dict):
        raise TypeError(f"{type(texts).__name__} is no text; give a str, or several in a list")
    for count, text in enumerate(texts, 1):
        yield (text.name if isinstance(text, Line) else f"text {count}"), text


def text_of(item: object, name: str) -> str:
    """A str or a line as its text.

    Raises:
        BadText: the line is no UTF-8.
        TypeError: it is no text at all.
    """
    if not isinstance(item, str | Line):
        raise TypeError(f"{name} is {type(item).__name__}, but the model reads texts; give a str")
    return item.text if isinstance(item, Line) else item


def all_good(answers: Iterable[Answer | Bad]) -> list[Answer]:
    """The answers, if there is one for everything; else the first error is raised."""
    found = []
    for answer in answers:
        if isinstance(answer, Bad):
            raise answer
        found.append(answer)
    return found
