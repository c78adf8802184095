"""Attention weights together with the tokens or image patches they refer to, and quantities derived from them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from vit.evaluation.attribution.rollout import rollout
from vit.messages import ArgumentError

Layers = Mapping[str, np.ndarray]  # layer name -> weights (H,N,S), in order


@dataclass(frozen=True)
class TokenMaps:
    """Attention from tokens to tokens: row i of a layer's weights (H,N,S) is the attention of `queries[i]` to `keys`.

    Args:
        pooling: for classifiers, the share (N,) of each token after the last layer in the pooled vector.
        is_cross: whether queries and keys are tokens of two texts, which may have the same names.

    Raises:
        ValueError: the weights do not match the numbers of queries and keys.
    """

    layers: Layers
    queries: Sequence[str]
    keys: Sequence[str]
    pooling: np.ndarray | None = None
    is_cross: bool = False

    def __post_init__(self) -> None:
        for name, weights in self.layers.items():
            if weights.shape[1:] != (len(self.queries), len(self.keys)):
                raise ValueError(f"{name} has weights {weights.shape[1:]} for {len(self.queries)} queries and "
                                 f"{len(self.keys)} keys; pass one name per token")

    @property
    def is_self_attention(self) -> bool:
        """Whether tokens attend to themselves and each other."""
        return not self.is_cross and list(self.queries) == list(self.keys)

    def mean(self) -> np.ndarray:
        """Mean over all layers and heads: (N,S)."""
        return np.mean([weights.mean(axis=0) for weights in self.layers.values()], axis=0)

    def rollout(self) -> np.ndarray:
        """Attention rollout of self-attention: (N,N)."""
        return rollout(list(self.layers.values()))

    def pooled(self) -> "TokenMaps":
        """The share of each token in the pooled vector of a classifier: after the last layer, and before the first one
        by attention rollout, if there is attention.
        """
        shares = {"pooling": self.pooling} | ({"rollout": self.pooling @ self.rollout()} if self.layers else {})
        return TokenMaps({name: share[None, None] for name, share in shares.items()}, ["pooled output"], self.keys)


@dataclass(frozen=True)
class ImageMaps:
    """Self-attention of an image classifier: weights (H,N,N) of all layers, and how the last tokens are pooled.

    Args:
        image: uint8 (height,width,C), the region that the model reads, at any resolution.
        grid: (rows, columns) in patches.
        prefix: names of the tokens before the patches (class token, registers).
        pooling: the share (N,) of each token after the last layer in the pooled vector.

    Raises:
        ValueError: the weights do not match the number of tokens.
    """

    image: np.ndarray
    layers: Layers
    grid: tuple[int, int]
    prefix: Sequence[str]
    pooling: np.ndarray

    def __post_init__(self) -> None:
        tokens = len(self.prefix) + math.prod(self.grid)
        for name, weights in self.layers.items():
            if weights.shape[1:] != (tokens, tokens):
                raise ValueError(f"{name} has weights {weights.shape[1:]}, but {len(self.prefix)} prefix tokens and a "
                                 f"grid {self.grid} are {tokens} tokens")

    def pooled_layers(self) -> Layers:
        """Attention of the pooled output to the patches in each layer: (H,rows,columns)."""
        return {name: self._on_grid(weights) for name, weights in self.layers.items()}

    def pooled_rollout(self) -> np.ndarray:
        """Share of each patch in the pooled output after all layers, by attention rollout: (rows,columns)."""
        return self._on_grid(self.rollout())

    def rollout(self) -> np.ndarray:
        """Attention rollout of all tokens: (N,N)."""
        return rollout(list(self.layers.values()))

    def _on_grid(self, weights: np.ndarray) -> np.ndarray:
        patches = (self.pooling @ weights)[..., len(self.prefix) :]
        return patches.reshape(*patches.shape[:-1], *self.grid)


def head_entropy(weights: np.ndarray) -> np.ndarray:
    """weights (H,N,S) -> the entropy of each head in bits (H,), the mean over its queries.

    It is 0 where each query attends to one key, and log2(S) where all keys have the same weight.
    """
    weights = weights.astype(np.float64)
    logarithms = np.log2(weights, out=np.zeros_like(weights), where=weights > 0)
    return -(weights * logarithms).sum(axis=-1).mean(axis=-1)


def recorded_layers(recorded: Mapping[str, Sequence[Tensor]], part: str = "encoder", leaf: str = "attn") -> Layers:
    """The first sample's weights of each block, from what `vit.nn.attention_maps` recorded in one forward pass.

    Args:
        part: "encoder" or "decoder", the stack that has the blocks.
        leaf: "attn" for self-attention, "cross_attn" for attention to the memory.
    """
    layers = {}
    for name, calls in recorded.items():
        block, _, last = name.rpartition(".")
        if block.startswith(f"{part}.blocks.") and last == leaf and calls:
            layers[f"layer {block.rpartition('.')[2]}"] = calls[-1][0].float().cpu().numpy()
    return layers


def select_layers(layers: Layers, indices: Sequence[int]) -> Layers:
    """The layers with the given indices, from the end if negative; all layers without indices.

    Raises:
        ValueError: an index is out of range.
    """
    names = list(layers)
    if indices and not names:
        raise ArgumentError(f"layers={indices[0]}: no layer of the model has attention; leave it out")
    for index in indices:
        if not -len(names) <= index < len(names):
            raise ArgumentError(f"layers={index}: the model has no such layer; it has {len(names)} layers, 0 to "
                                f"{len(names) - 1}, or -1 for the last one")
    return {names[index]: layers[names[index]] for index in indices} if indices else layers
