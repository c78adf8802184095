"""The keys by which batches are requested from data sets."""

from collections.abc import Sequence

import numpy as np


def sample_keys(keys: Sequence[tuple[int, int]] | np.ndarray) -> np.ndarray:
    """Pairs (epoch, index) -> (B,2) int64

    Raises:
        TypeError: they are not pairs, such as the indices of a DataLoader with torch's samplers.
    """
    pairs = np.array(keys, dtype=np.int64)
    if pairs.size and (pairs.ndim != 2 or pairs.shape[1] != 2):
        raise TypeError(f"batches are requested by pairs (epoch, index), not by {pairs.ravel()[:3].tolist()}; load "
                        "this data set with TrainBatches or EvalBatches of vit.data instead of a torch DataLoader")
    return pairs.reshape(-1, 2)
