"""The samples of a data set as cards of a page, found by their names."""

from collections.abc import Sequence

from vit.data import BadImage, LinePreprocessing, Preprocessing, Source, TextSplit
from vit.report.pages.embedded import thumbnail_url
from vit.report.pages.html_parts import card, pair_card, shortened, text_card


class Samples:
    """Images or texts of a source.

    Args:
        preprocessing: how images are decoded; None for a model of texts.
    """

    def __init__(self, source: Source, preprocessing: Preprocessing | LinePreprocessing | None) -> None:
        self.splits = source.splits
        self.preprocessing = preprocessing.pixels if isinstance(preprocessing, LinePreprocessing) else preprocessing
        self.positions = {(key, name): i for key, split in self.splits.items() for i, name in enumerate(split.names)}

    def card(self, name: str, lines: Sequence[str]) -> str:
        """The sample of this name with lines of text below, without a picture if its image cannot be read."""
        key = next((key for key in self.splits if (key, name) in self.positions), None)
        split = self.splits.get(key)
        if isinstance(split, TextSplit):
            text = "\t".join(column[self.positions[key, name]] for column in split.texts)
            return text_card(shortened(text), lines)
        return card(None if split is None else self.url(key, name), name, lines)

    def pair(self, one: tuple[str, str], other: tuple[str, str], lines: Sequence[str]) -> str:
        """Two images of (split, name) side by side with lines of text below."""
        return pair_card([(self.url(*each), each[1]) for each in (one, other)], lines)

    def url(self, key: str, name: str) -> str | None:
        """The data URL of an image of a split; None if it cannot be read."""
        if self.preprocessing is None:
            return None
        try:
            return thumbnail_url(self.preprocessing.decode(self.splits[key].read(self.positions[key, name]), name))
        except (BadImage, OSError):
            return None
