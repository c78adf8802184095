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
    return composed(words)["data"]


def composed(words: list[str], besides: str | None = None) -> dict:
    """The config of words on data, and on one other node that the command reads.

    Raises:
        ConfigError: a word on anything else, which would change nothing.
    """
    from vit.launch.composing import ConfigError, compose, parse, plain

    config = plain(compose(words))
    read = ("data.", f"{besides}.") if besides else ("data.",)
    for override in parse(words):
        if override.key_or_group not in ("data", "experiment") and not override.key_or_group.startswith(read):
            known = " or ".join(f"{node}*" for node in read)
            raise ConfigError(f"{override.input_line} changes nothing here; leave it out: this command reads data=, "
                              f"experiment= and {known}")
    return config


def source(data: dict) -> "Source | PairSource":
    from vit.launch.build import build_source

    return build_source(data)
