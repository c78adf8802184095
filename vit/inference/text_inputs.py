"""The texts passed to a predictor, each with a name for error messages."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from vit.data.decoding.decode import BadImage
from vit.data.formats.lines import BadText, Line
from vit.messages import agree, number_of

BadInput = BadImage | BadText  # returned in place of a prediction by `stream`
Prediction = TypeVar("Prediction")


def named_texts(texts: Iterable) -> Iterator[tuple[str, object]]:
    """(name, text) of each text, read lazily; a single str is one text.

    Raises:
        TypeError: the argument is neither a str nor an iterable of texts.
    """
    if isinstance(texts, str | Line):
        texts = [texts]
    if not isinstance(texts, Iterable) or isinstance(texts, bytes | dict):
        raise TypeError(f"{type(texts).__name__} is not a text; pass a str or a list of str")
    for count, text in enumerate(texts, 1):
        yield (text.name if isinstance(text, Line) else f"text {count}"), text


def text_of(item: object, name: str) -> str:
    """The text of a str or of a line of a file.

    Raises:
        BadText: the line is not UTF-8.
        TypeError: the item is not a text.
    """
    if not isinstance(item, str | Line):
        raise TypeError(f"{name} is {type(item).__name__}, but the model reads texts; pass a str")
    return item.text if isinstance(item, Line) else item


def raise_first_error(predictions: Iterable[Prediction | BadInput]) -> list[Prediction]:
    """The predictions as a list.

    Raises:
        BadText, BadImage: the first input that could not be read.
    """
    read = []
    for prediction in predictions:
        if isinstance(prediction, BadInput):
            raise prediction
        read.append(prediction)
    return read


def warn_about_unknown(unknown: Sequence[tuple[str, str]], count: int) -> None:
    """Warns about (name, character) of the texts, out of `count`, that have a character which the tokenizer lacks."""
    if unknown:
        name, character = unknown[0]
        warnings.warn(f"{len(unknown)} of {number_of(count, 'text')} {agree(len(unknown), 'has', 'have')} characters "
                      f"that the tokenizer of the model lacks, such as {character!r} in {name}; the model reads all of "
                      "them as the same unknown token", stacklevel=3)
