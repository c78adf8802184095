"""Images without labels, to pre-train on: any files in any folders."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vit.data.errors import DataError
from vit.data.images.decode import EXTENSIONS
from vit.data.images.files import image_files
from vit.data.images.folders import opened, samples
from vit.data.source import Source
from vit.data.split import Split
from vit.data.split_names import named_splits
from vit.data.splitting import three_ways, with_validation


@dataclass(frozen=True)
class Pictures(Source):
    """A source that has no classes; the labels of its splits are zeros that mean nothing."""

    def __post_init__(self) -> None:
        if "train" not in self.splits or len(self.splits["train"]) == 0:
            endings = " ".join(sorted(EXTENSIONS))
            raise DataError(f"{self.name}: there are 0 training images; endings that count: {endings}")

    def counts(self, split: str) -> np.ndarray:
        """(0,): there are no classes to count."""
        return np.zeros(0, dtype=np.int64)

    def label_text(self, split: str, i: int) -> str:
        return ""

    def split_lists(self) -> dict[str, list[tuple[str, str]]]:
        """Per split the (name, "") of every sample."""
        return {key: [(name, "") for name in split.names] for key, split in self.splits.items()}


def pictures(root: str | Path, fractions: Sequence[float] = (0.9, 0.05, 0.05), split_seed: int = 0) -> Pictures:
    """All images below `root`, however they are sorted; those below root/train, root/val, root/test where these are.

    Without them all is split by `fractions` (train, val, test); with train but no val, val is split off train.
    """
    root = opened(root, "it must hold images")
    places = named_splits(root, sorted(place.name for place in root.iterdir() if place.is_dir()))
    whole = "train" not in places
    files = image_files(root, [] if whole else list(places.values()))
    if whole:
        splits = three_ways(_split(root, files.images), fractions, split_seed)
    else:
        found = {key: _split(root, files.below(place)) for key, place in places.items()}
        share = fractions[1] / max(fractions[0] + fractions[1], 1e-9)
        splits = with_validation(found, None, share, split_seed)
    return Pictures(root.resolve().name, [], splits, files.left_out)


def _split(root: Path, names: list[str]) -> Split:
    return samples(root, names, np.zeros(len(names), dtype=np.int64))
