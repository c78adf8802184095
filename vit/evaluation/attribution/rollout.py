"""How much of each input token reaches each token after the last layer, by attention alone."""

from collections.abc import Sequence

import numpy as np


def rollout(layers: Sequence[np.ndarray]) -> np.ndarray:
    """Attention rollout (arXiv 2005.00928): weights (H,N,N) of each layer, from the first to the last, -> (N,N).

    Row i has the share of each input token in token i after the last layer, under the assumption that only attention
    moves information between tokens: heads are averaged, and the residual branch contributes one half of each token.
    Rows sum to 1.
    """
    flow = np.eye(layers[0].shape[-1])
    for weights in layers:
        mixed = 0.5 * weights.astype(np.float64).mean(axis=0) + 0.5 * np.eye(len(flow))  # (N,N)
        flow = mixed / mixed.sum(axis=-1, keepdims=True) @ flow  # a row of zero weights becomes the identity
    return flow
