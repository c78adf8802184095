"""Data sets that commands read, named by the words that training understands."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vit.data import PairSource, Source


def data_words(extra: dict, words: list[str]) -> list[str]:
    """The words that name the data set: those given, after the recorded ones unless another set is chosen."""
    if "data" not in extra and not words:
        raise ValueError("the model does not say which data it was trained on; name some: data=folder data.root=photos")
    recorded = [] if any(word.startswith("data=") for word in words) else extra.get("data", [])
    return [*recorded, *words]


def data_config(words: list[str]) -> dict:
    """The `data` part of the config that these words compose."""
    from vit.launch.composing import compose, plain

    return plain(compose(words))["data"]


def source(data: dict) -> "Source | PairSource":
    from vit.launch.build import build_source

    return build_source(data)
