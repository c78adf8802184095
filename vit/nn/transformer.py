"""The stacks: everything in this house that reads tokens is an Encoder, everything that writes them a Decoder."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vit.nn.block import Block
from vit.nn.cache import Cache, KeyValues, LayerCache
from vit.nn.drop import PatchDropout
from vit.nn.position import MixedRotary, Rotary, Rotation


class Stack(nn.Module):
    """Blocks one after another, then a norm: what encoder and decoder have in common.

    With `checkpointing` a block's activations are computed a second time in the backward pass instead of being kept:
    about a third more work for a fraction of the memory (arXiv 1604.06174).
    """

    def __init__(self, blocks: Iterable[Block], norm: nn.Module, rotary: Rotary | MixedRotary | None = None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm
        self.rotary = rotary
        self.checkpointing = False

    def run(
        self,
        x: Tensor,
        *others: Tensor | bool | None,
        rotary: Rotation | tuple[Rotation, ...] | None = None,
        features: list[Tensor] | None = None,
    ) -> Tensor:
        """(B,N,D) -> (B,N,D) before the norm.

        Args:
            others: mask, memory, its mask and causality, as each block takes them.
            rotary: what turns queries and keys, for all blocks or one for each.
            features: receives what each block puts out.
        """
        for i, block in enumerate(self.blocks):
            inputs = (*others, rotary[i] if isinstance(rotary, tuple) else rotary)
            if self.checkpointing and torch.is_grad_enabled():
                x = checkpoint(block, x, *inputs, use_reentrant=False)
            else:
                x = block(x, *inputs)
            if features is not None:
                features.append(x)
        return x


class Encoder(Stack):
    """Every token sees every other one.

    Args:
        norm: after the last block; an `nn.Identity` for post-norm blocks, or where the norm follows the pooling.
        rotary: positions for queries and keys.
        patch_dropout: hides tokens while training.
    """

    def __init__(
        self,
        blocks: Iterable[Block],
        norm: nn.Module,
        *,
        rotary: Rotary | MixedRotary | None = None,
        patch_dropout: PatchDropout | None = None,
    ) -> None:
        super().__init__(blocks, norm, rotary)
        self.patch_dropout = patch_dropout

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        *,
        places: Tensor | None = None,
        features: list[Tensor] | None = None,
    ) -> Tensor:
        """x (B,N,D), mask (B,N) -> (B,N,D); a list of `features` receives each block's (B,N,D).

        Args:
            places: (N,) where the tokens stand among those the rotary positions were made for; the first N by default.
        """
        N, kept = x.shape[1], None
        if self.patch_dropout is not None:
            x, kept = self.patch_dropout(x)  # (B,N',D), (B,N')
            mask = mask if mask is None or kept is None else mask.gather(1, kept)
        rotary = None
        if self.rotary is not None:
            places = places if kept is None else kept if places is None else places[kept]
            rotary = self.rotary.part(0, N) if places is None else self.rotary(places)
        x = self.run(x, mask, None, None, False, rotary=rotary, features=features)
        return self.norm(x)


class Decoder(Stack):
    """Every token sees those before it, and the whole memory.

    `forward` reads a whole text, to learn from it; `start` and `advance` write one, step by step, and compute nothing
    twice. They give the same tokens.
    """

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> Tensor:
        """x (B,T,D), memory (B,S,D), mask (B,T), memory_mask (B,S) -> (B,T,D)"""
        rotary = None if self.rotary is None else self.rotary.part(0, x.shape[1])
        return self.norm(self.run(x, mask, memory, memory_mask, True, rotary=rotary))

    def start(self, memory: Tensor, memory_mask: Tensor | None = None, room: int = 64) -> Cache:
        """memory (B,S,D) -> what `advance` needs of it, with `room` for tokens to come, which grows."""
        if memory_mask is not None and memory_mask.all():
            memory_mask = None  # a mask costs something at every step
        layers = []
        for block in self.blocks:
            k, v = block.cross_attn.remember(memory)
            shape = (memory.shape[0], block.attn.num_heads, room)
            own = KeyValues(k.new_zeros(*shape, block.attn.head_dim), v.new_zeros(*shape, block.attn.value_dim))
            layers.append(LayerCache(own, KeyValues(k.contiguous(), v.contiguous(), k.shape[2])))
        return Cache(layers, memory_mask)

    def advance(self, x: Tensor, cache: Cache, lines: Tensor | None = None) -> Tensor:
        """x (B,T,D), the next tokens -> (B,T,D); the cache then holds them as well.

        Args:
            lines: (B,T,length+T) bool. With it x are T alternatives for the one next position, such as the beams of a
                search, and each sees the tokens of its own line alone, itself among them; all tokens ever given to
                `advance` are counted in order, x last.
        """
        steps = x.shape[1] if lines is None else 1
        rotary = None if self.rotary is None else self.rotary.part(cache.position, steps)
        causal = lines is None and steps > 1  # one token sees all that is kept
        if lines is not None:
            lines = x.new_zeros(()).where(lines, -torch.inf)  # (B,T,length+T) once, where each layer would do it again
        for block, layer in zip(self.blocks, cache.layers, strict=True):
            x = block(x, lines, None, cache.memory_mask, causal, rotary, layer)
        cache.position += steps
        return self.norm(x)
