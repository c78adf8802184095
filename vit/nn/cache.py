"""The key-value cache of a decoder: a generation step computes only the new token."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from vit.nn.cpu.linear import Packed


class KeyValues:
    """Keys (B,H,S,K) and values (B,H,S,V) of an attention layer: the first `length` of S are in use, the rest is spare
    capacity.

    New entries are written in place; the capacity is doubled when it is exhausted. A row may hold tokens of several
    beams; the attention mask selects each beam's own.
    """

    def __init__(self, keys: Tensor, values: Tensor, length: int = 0) -> None:
        self.keys, self.values, self.length = keys, values, length

    def all(self) -> tuple[Tensor, Tensor]:
        """Views of the keys (B,H,length,K) and values (B,H,length,V) in use."""
        if self.length == self.keys.shape[2]:
            return self.keys, self.values
        return self.keys.narrow(2, 0, self.length), self.values.narrow(2, 0, self.length)

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """keys (B,H,T,K) and values (B,H,T,V) of new tokens -> all in use, the new ones last"""
        start, self.length = self.length, self.length + keys.shape[2]
        if self.length > self.keys.shape[2]:
            capacity = max(self.length, 2 * self.keys.shape[2])
            self.keys, self.values = grow(self.keys, start, capacity), grow(self.values, start, capacity)
        self.keys.narrow(2, start, keys.shape[2]).copy_(keys)
        self.values.narrow(2, start, keys.shape[2]).copy_(values)
        return self.all()

    def select_rows(self, rows: Tensor) -> None:
        """Select rows of the batch by index (R,); an index may be repeated."""
        self.keys, self.values = self.keys.index_select(0, rows), self.values.index_select(0, rows)

    def select_tokens(self, tokens: Tensor) -> None:
        """Select tokens by index (B,N) in each row, in this order; all others are dropped."""
        B, H, capacity, _ = self.keys.shape
        starts = torch.arange(0, B * H * capacity, capacity, device=tokens.device).view(B, H, 1)
        index, self.length = (starts + tokens[:, None]).flatten(), tokens.shape[1]  # rows of (B*H*S,K) and (B*H*S,V)
        for cached in (self.keys, self.values):
            selected = cached.view(B * H * capacity, -1).index_select(0, index)
            cached.narrow(2, 0, self.length).copy_(selected.view(B, H, self.length, -1))


def grow(cached: Tensor, length: int, capacity: int) -> Tensor:
    """keys or values (B,H,S,W), W = K or V -> (B,H,capacity,W) with the first `length` entries copied"""
    B, H, _, W = cached.shape
    new = cached.new_zeros(B, H, capacity, W)
    new[:, :, :length] = cached[:, :, :length]
    return new


class TokenStates:
    """A state (W,) for each generated token, such as that of a recurrent layer after the token: (B,S,W).

    As in `KeyValues`, a row may hold tokens of several beams; a mask selects each beam's own.
    """

    def __init__(self, states: Tensor) -> None:
        self.states = states

    def append(self, states: Tensor) -> None:
        """Append the states of new tokens, (B,T,W)."""
        self.states = torch.cat([self.states, states.to(self.states.dtype)], dim=1)

    def last(self, count: int, mask: Tensor | None = None) -> Tensor:
        """The last `count` states of the text, (B,1,count,W); with a mask (B,T,S) of each beam, (B,T,count,W).

        A mask is bool, or additive with exactly -inf where masked; states before the first token are zero.
        """
        B, S, W = self.states.shape
        padded = torch.cat([self.states.new_zeros(B, count, W), self.states], dim=1)
        if mask is None:
            return padded[:, None, S:]
        attended = mask[..., :S] if mask.dtype == torch.bool else mask[..., :S] > -torch.inf
        index = torch.arange(count, count + S, device=attended.device) * attended  # in `padded`, 0 where masked
        index = torch.cat([index.new_zeros(*index.shape[:2], count), index], dim=2)
        index = index.topk(count).values.flip(-1)  # (B,T,count), ascending
        return padded.gather(1, index.flatten(1)[..., None].expand(-1, -1, W)).unflatten(1, index.shape[1:])

    def select_rows(self, rows: Tensor) -> None:
        """Select rows of the batch by index (R,); an index may be repeated."""
        self.states = self.states.index_select(0, rows)

    def select_tokens(self, tokens: Tensor) -> None:
        """Select tokens by index (B,N) in each row, in this order; all others are dropped."""
        self.states = self.states.gather(1, tokens[..., None].expand(-1, -1, self.states.shape[2]))


@dataclass
class LayerCache:
    """The cache of one block: of the layer between its tokens, usually self-attention, and of its cross-attention."""

    self_attn: KeyValues | TokenStates
    cross_attn: KeyValues


@dataclass
class Cache:
    """The cache of a decoder, made by `Decoder.start`.

    Args:
        layers: one cache per block.
        memory_mask: (B,S), True for tokens of the memory that may be attended; None for all.
        position: position of the next token.
        packed: the output matrix in oneDNN's layout.
    """

    layers: list[LayerCache]
    memory_mask: Tensor | None = None
    position: int = 0
    packed: Packed = field(default_factory=Packed)

    def select_rows(self, rows: Tensor) -> None:
        """Select rows of the batch by index (R,), in this order; an index may be repeated."""
        for layer in self.layers:
            layer.self_attn.select_rows(rows)
            layer.cross_attn.select_rows(rows)
        if self.memory_mask is not None:
            self.memory_mask = self.memory_mask.index_select(0, rows)

    def select_tokens(self, tokens: Tensor) -> None:
        """Select generated tokens by index (B,N) in each row; all others are dropped; `position` stays."""
        for layer in self.layers:
            layer.self_attn.select_tokens(tokens)
