"""Attention weights with what they are about: tokens or the patches of a picture; and what follows from them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

Layers = Mapping[str, np.ndarray]  # the name of each layer, in order, and its weights (H,N,S)


@dataclass(frozen=True)
class TokenMaps:
    """How tokens look at tokens: row i of a layer's weights (H,N,S) is what `queries[i]` looks at among the `keys`."""

    layers: Layers
    queries: Sequence[str]
    keys: Sequence[str]

    def __post_init__(self) -> None:
        for name, weights in self.layers.items():
            if weights.shape[1:] != (len(self.queries), len(self.keys)):
                raise ValueError(f"{name} has weights {weights.shape[1:]} for {len(self.queries)} queries and "
                                 f"{len(self.keys)} keys; give one name per token")

    def mean(self) -> np.ndarray:
        """Over all layers and heads: (N,S)."""
        return np.mean([weights.mean(axis=0) for weights in self.layers.values()], axis=0)


@dataclass(frozen=True)
class ImageMaps:
    """How an image's tokens look at each other: weights (H,N,N) of all layers, and how the answer reads the last ones.

    Args:
        image: uint8 (height, width, C), the region that the model sees, at any resolution.
        grid: (rows, columns) in patches.
        first: names of the tokens before the patches (class token, registers).
        pooled: "class", "mean", or the weights (patches,) that an attention pooling gave the patches.
    """

    image: np.ndarray
    layers: Layers
    grid: tuple[int, int]
    first: Sequence[str]
    pooled: str | np.ndarray

    def __post_init__(self) -> None:
        tokens = len(self.first) + math.prod(self.grid)
        for name, weights in self.layers.items():
            if weights.shape[1:] != (tokens, tokens):
                raise ValueError(f"{name} has weights {weights.shape[1:]}, but {len(self.first)} tokens and a "
                                 f"grid {self.grid} are {tokens}")

    def answers(self) -> Layers:
        """How the answer looks at the patches in each layer: (H,rows,columns)."""
        return {name: self._on_grid(weights) for name, weights in self.layers.items()}

    def rollout(self) -> np.ndarray:
        """How much of each patch is in the answer after all layers, by attention rollout: (rows,columns)."""
        return self._on_grid(self.flow())

    def flow(self) -> np.ndarray:
        """The rollout of all tokens: (N,N)."""
        return rollout(list(self.layers.values()))

    def _on_grid(self, weights: np.ndarray) -> np.ndarray:
        patches = answering(weights, len(self.first), self.pooled)
        return patches.reshape(*patches.shape[:-1], *self.grid)


def rollout(layers: Sequence[np.ndarray]) -> np.ndarray:
    """Attention rollout (arXiv 2005.00928): weights (H,N,N) of each layer, the first one first, -> (N,N).

    Row i tells what share each input token has in token i after the last layer, if attention alone moved information:
    heads count alike, and half of every token comes through the residual branch. Rows sum to 1.
    """
    flow = np.eye(layers[0].shape[-1])
    for weights in layers:
        mixed = 0.5 * weights.astype(np.float64).mean(axis=0) + 0.5 * np.eye(len(flow))  # (N,N)
        flow = mixed / mixed.sum(axis=-1, keepdims=True) @ flow  # a token with nothing to look at keeps itself
    return flow


def answering(weights: np.ndarray, prefix: int, pooled: str | np.ndarray) -> np.ndarray:
    """The rows (...,N,N) as the pooling reads the last tokens, without the first `prefix` columns: (...,patches)."""
    if isinstance(pooled, str):
        rows = weights[..., 0, :] if pooled == "class" else weights[..., prefix:, :].mean(axis=-2)
    else:
        rows = pooled @ weights[..., prefix:, :]
    return rows[..., prefix:]


def recorded_layers(recorded: Mapping[str, Sequence[Tensor]], part: str = "encoder", leaf: str = "attn") -> Layers:
    """The first sample's weights of each block, of what `vit.nn.attention_maps` recorded in one forward.

    Args:
        part: "encoder" or "decoder", where the blocks stand in the model.
        leaf: "attn" for self-attention, "cross_attn" for attention to a memory.
    """
    layers = {}
    for name, calls in recorded.items():
        place, _, last = name.rpartition(".")
        if place.startswith(f"{part}.blocks.") and last == leaf and calls:
            layers[f"layer {place.rpartition('.')[2]}"] = calls[-1][0].float().cpu().numpy()
    return layers


def chosen_layers(layers: Layers, numbers: Sequence[int]) -> Layers:
    """Those of the given numbers, counted from 0, from the end where negative; all of them where none is given."""
    names = list(layers)
    for number in numbers:
        if not -len(names) <= number < len(names):
            raise ValueError(f"there is no layer {number}: the model has {len(names)}, 0 to {len(names) - 1}, "
                             "or -1 for the last one")
    return {names[number]: layers[names[number]] for number in numbers} if numbers else layers
