"""Unlabelled images for pre-training: all image files below a folder."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vit.data.decoding.decode import EXTENSIONS
from vit.data.errors import DataError
from vit.data.image_sources.files import image_files
from vit.data.image_sources.folders import file_samples, files_and_rest, open_folder
from vit.data.source import Source
from vit.data.splits.names import match_splits
from vit.data.splits.split import Split
from vit.data.splits.splitting import three_ways, validation_fraction, with_validation
from vit.data.threads import StageProgress


@dataclass(frozen=True)
class UnlabelledImages(Source):
    """A source without classes; the labels of its splits are zeros.

    Raises:
        DataError: there are no training images.
    """

    def __post_init__(self) -> None:
        if "train" not in self.splits or len(self.splits["train"]) == 0:
            suffixes = " ".join(sorted(EXTENSIONS))
            raise DataError(f"{self.name}: there are 0 training images; add files with one of the suffixes {suffixes}")

    def counts(self, split: str) -> np.ndarray:
        """(0,), since there are no classes."""
        return np.zeros(0, dtype=np.int64)

    def label_text(self, split: str, i: int) -> str:
        return ""

    def split_lists(self) -> dict[str, list[tuple[str, str]]]:
        """(name, "") of every sample by split."""
        return {key: [(name, "") for name in split.names] for key, split in self.splits.items()}


def unlabelled_images(
    root: str | Path, fractions: Sequence[float] = (0.9, 0.05, 0.05), split_seed: int = 0,
    progress: StageProgress | None = None,
) -> UnlabelledImages:
    """All images below `root`, at any depth; the folders root/train, root/val and root/test are splits if they exist.

    Without them the images are split by `fractions` (train, val, test); with train but no val, val is split off train.
    Files beside the split folders are listed in `left_out` of the source. `progress` is called with the number of
    folders that have been read.
    """
    root = open_folder(root, "expected a folder of images")
    directories = match_splits(root, sorted(directory.name for directory in root.iterdir() if directory.is_dir()))
    undivided = "train" not in directories
    if undivided:
        files = image_files(root, progress=progress)
        splits = three_ways(_split(root, files.images), fractions, split_seed)
    else:
        files = files_and_rest(root, list(directories.values()), progress)
        found = {key: _split(root, files.below(directory)) for key, directory in directories.items()}
        splits = with_validation(found, None, validation_fraction(fractions), split_seed)
    return UnlabelledImages(root.resolve().name, [], splits, files.left_out)


def _split(root: Path, names: list[str]) -> Split:
    return file_samples(root, names, np.zeros(len(names), dtype=np.int64))
