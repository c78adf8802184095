"""The texts passed to a predictor, each with a name for error messages."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

from vit.data.decoding.decode import BadImage
from vit.data.formats.lines import BadText, Line

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
