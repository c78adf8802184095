"""What a decoder keeps while it writes, so that a step costs one token and not the whole text so far."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from vit.nn.linear import Packed


class KeyValues:
    """Keys and values (B,H,S,K) of an attention layer: the first `length` are in use, the rest is room.

    New ones are written in place; where the room ends it is doubled.
    """

    def __init__(self, keys: Tensor, values: Tensor, length: int = 0) -> None:
        self.keys, self.values, self.length = keys, values, length

    def all(self) -> tuple[Tensor, Tensor]:
        """Those in use, as views."""
        if self.length == self.keys.shape[2]:
            return self.keys, self.values
        return self.keys.narrow(2, 0, self.length), self.values.narrow(2, 0, self.length)

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """(B,H,T,K) of the next tokens -> all in use, the new ones last"""
        start, self.length = self.length, self.length + keys.shape[2]
        if self.length > self.keys.shape[2]:
            room = max(self.length, 2 * self.keys.shape[2])
            self.keys, self.values = wider(self.keys, start, room), wider(self.values, start, room)
        self.keys.narrow(2, start, keys.shape[2]).copy_(keys)
        self.values.narrow(2, start, keys.shape[2]).copy_(values)
        return self.all()

    def keep(self, rows: Tensor) -> None:
        """Rows of the batch by their numbers: others are dropped, and a row may be taken more than once."""
        self.keys, self.values = self.keys.index_select(0, rows), self.values.index_select(0, rows)

    def recall(self, tokens: Tensor) -> None:
        """Tokens (B,N) of each row by their numbers: they become the only ones in use, in this order."""
        B, H, room, _ = self.keys.shape
        firsts = torch.arange(0, B * H * room, room, device=tokens.device).view(B, H, 1)
        places, self.length = (firsts + tokens[:, None]).flatten(), tokens.shape[1]  # rows of (B*H*S,K)
        for kept in (self.keys, self.values):
            chosen = kept.view(B * H * room, -1).index_select(0, places)
            kept.narrow(2, 0, self.length).copy_(chosen.view(B, H, self.length, -1))


def wider(kept: Tensor, length: int, room: int) -> Tensor:
    """(B,H,S,K) -> (B,H,room,K), the first `length` as they were"""
    B, H, _, K = kept.shape
    new = kept.new_zeros(B, H, room, K)
    new[:, :, :length] = kept[:, :, :length]
    return new


@dataclass
class LayerCache:
    """What one block keeps: of the tokens written so far, and of the memory."""

    own: KeyValues
    memory: KeyValues


@dataclass
class Cache:
    """What a decoder keeps, made by `Decoder.start`; `position` is where the next token stands, and `packed` the matrix
    that makes logits."""

    layers: list[LayerCache]
    memory_mask: Tensor | None = None  # (B,S)
    position: int = 0
    packed: Packed = field(default_factory=Packed)

    def keep(self, rows: Tensor) -> None:
        """Rows (R,) of the batch by their numbers, in their order: finished ones are left out, others taken twice."""
        for layer in self.layers:
            layer.own.keep(rows)
            layer.memory.keep(rows)
        if self.memory_mask is not None:
            self.memory_mask = self.memory_mask.index_select(0, rows)

    def recall(self, tokens: Tensor) -> None:
        """Tokens (B,N) of each row by their numbers; all others that were written are forgotten."""
        for layer in self.layers:
            layer.own.recall(tokens)
