"""Features of single images of a source, by their positions in its splits."""

from collections.abc import Callable

import numpy as np
from torch import Tensor

from vit.data import Source
from vit.inference import decode_ahead
from vit.inference.features import Featurizer

BATCH_SIZE = 64


def features_at(
    featurizer: Featurizer, source: Source, positions: list[tuple[str, int]],
    progress: Callable[[str, int, int], None] | None = None,
) -> np.ndarray:
    """(split, index) of N images -> their features (N,D) float32, after the preprocessing of the model.

    Raises:
        BadImage: an image cannot be read.
    """

    def decode(position: tuple[str, int]) -> Tensor:
        split, i = source.splits[position[0]], position[1]
        return featurizer.preprocessing.image(split.read(i), split.names[i])

    parts, done = [], 0
    for batch in decode_ahead(positions, decode, BATCH_SIZE):
        parts.append(featurizer.of_images(featurizer.preprocessing.batch(batch)).numpy())
        done += len(batch)
        if progress:
            progress("features", done, len(positions))
    return np.concatenate(parts) if parts else np.zeros((0, 1), np.float32)
