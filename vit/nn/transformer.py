"""Encoder and decoder: stacks of blocks."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from vit.nn.block import Block
from vit.nn.cache import Cache, KeyValues, LayerCache
from vit.nn.drop import PatchDropout
from vit.nn.norm import BatchNorm, masked_norm, unchanged_statistics
from vit.nn.packing import Packing
from vit.nn.rotary import MixedRotary, Rotary, Rotation


class Stack(nn.Module):
    """Base class of encoder and decoder: blocks, then a norm.

    With `checkpointing` the activations of a block are recomputed in the backward pass instead of stored: about a third
    more compute for a fraction of the memory (arXiv 1604.06174). With `autocast_residual` the sums of the residual
    connections are computed and stored in the dtype of autocast as well, which saves the casts between the layers.
    """

    def __init__(self, blocks: Iterable[Block], norm: nn.Module, rotary: Rotary | MixedRotary | None = None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm
        self.rotary = rotary
        self.checkpointing = self.autocast_residual = False

    def run(
        self,
        x: Tensor,
        *others: Tensor | Packing | bool | None,
        rotary: Rotation | tuple[Rotation, ...] | None = None,
        features: list[Tensor] | None = None,
        first: int | None = None,
    ) -> Tensor:
        """(B,N,D) -> (B,N,D) before the norm.

        Args:
            others: mask, memory, memory mask and causal flag, passed to each block.
            rotary: rotary positions, shared by all blocks or one per block.
            features: a list to which the output of each block is appended.
            first: number of first tokens that the last block computes, if it can; all by default.
        """
        if self.autocast_residual and torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        for i, block in enumerate(self.blocks):
            inputs = (*others, rotary[i] if isinstance(rotary, tuple) else rotary)
            if first is not None and i == len(self.blocks) - 1 and self.can_compute_first(block):
                inputs = (*inputs, None, first)
            if self.checkpointing and torch.is_grad_enabled():
                x = checkpoint(block, x, *inputs, use_reentrant=False, **recomputation(block))
            else:
                x = block(x, *inputs)
            if features is not None:
                features.append(x)
        return x

    def can_compute_first(self, block: nn.Module) -> bool:
        """Whether this block, as the last one, can compute the first tokens without the others."""
        return getattr(block, "can_compute_first", False) and not isinstance(self.norm, BatchNorm)


def recomputation(block: nn.Module) -> dict[str, Callable[[], tuple[AbstractContextManager, ...]]]:
    """Arguments of `checkpoint` with which the second forward pass does not update running averages again; a compiled
    program updates them once anyway.
    """
    if torch.compiler.is_compiling() or not any(isinstance(part, _BatchNorm) for part in block.modules()):
        return {}
    return {"context_fn": lambda: (nullcontext(), unchanged_statistics(block))}


class Encoder(Stack):
    """Blocks with bidirectional self-attention.

    Args:
        norm: applied after the last block; `nn.Identity` for post-norm blocks, or where the norm follows the pooling.
        rotary: rotary positions for queries and keys.
        patch_dropout: drops patches during training.
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
        positions: Tensor | None = None,
        grid: tuple[int, int] | None = None,
        features: list[Tensor] | None = None,
        first: int | None = None,
    ) -> Tensor:
        """x (B,N,D), mask (B,N) -> (B,N,D)

        Args:
            positions: (N,) or (B,N), indices of the tokens in the table of rotary positions; 0 ... N-1 by default.
            grid: (rows, columns) of the patches, one of the grids that the rotary positions have prepared; by default
                the grid that they were constructed with.
            features: a list to which the output (B,N,D) of each block is appended.
            first: number of first tokens that are needed: the last block computes only these, if it can, and returns
                (B,first,D). All by default.
        """
        N, remaining = x.shape[1], None
        if self.patch_dropout is not None:
            x, remaining = self.patch_dropout(x)  # (B,N',D), (B,N')
            mask = mask if mask is None or remaining is None else mask.gather(1, remaining)
        rotary = None
        if self.rotary is not None:
            if remaining is not None:
                positions = remaining if positions is None else positions.expand(x.shape[0], -1).gather(1, remaining)
            whole = positions is None and grid is None
            rotary = self.rotary.part(0, N) if whole else self.rotary(positions, grid)
        x = self.run(x, mask, None, None, False, rotary=rotary, features=features, first=first)
        return masked_norm(self.norm, x, mask)

    def packed(self, x: Tensor, packing: Packing, features: list[Tensor] | None = None) -> Tensor:
        """Images of different grids: x (1,T,D) -> (1,T,D)

        The patches of an image divide its whole extent, whatever its grid. Patches are not dropped.

        Args:
            features: as in `forward`, (1,T,D) each.
        """
        rotary = None if self.rotary is None else self.rotary.packed(packing.grids)
        return self.norm(self.run(x, packing, None, None, False, rotary=rotary, features=features))


class Decoder(Stack):
    """Blocks with causal self-attention and cross-attention to a memory.

    `forward` computes all positions at once, for training; `start` and `advance` compute them step by step with a
    cache, for generation. Both give the same result.
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
        return masked_norm(self.norm, self.run(x, mask, memory, memory_mask, True, rotary=rotary), mask)

    def start(self, memory: Tensor, memory_mask: Tensor | None = None, capacity: int = 64) -> Cache:
        """memory (B,S,D), memory_mask (B,S) -> the cache for `advance`, with initial capacity for `capacity` tokens"""
        if memory_mask is not None and memory_mask.all():
            memory_mask = None  # a mask costs time at every step
        layers = []
        for block in self.blocks:
            k, v = block.cross_attn.memory_keys_values(memory)
            own = block.attn.new_cache(k, capacity)
            layers.append(LayerCache(own, KeyValues(k.contiguous(), v.contiguous(), k.shape[2])))
        return Cache(layers, memory_mask)

    def advance(self, x: Tensor, cache: Cache, beam_mask: Tensor | None = None) -> Tensor:
        """x (B,T,D), the next tokens -> (B,T,D); they are appended to the cache.

        Args:
            beam_mask: (B,T,length+T) bool, True = may be attended. With it, x holds T beams at the same position, and
                each attends only to the tokens of its own beam, itself included. The last axis indexes all cached
                tokens in the order of the calls, then x.
        """
        steps = x.shape[1] if beam_mask is None else 1
        rotary = None if self.rotary is None else self.rotary.part(cache.position, steps)
        causal = beam_mask is None and steps > 1  # a single token attends to the whole cache
        if beam_mask is not None:
            beam_mask = x.new_zeros(()).where(beam_mask, -torch.inf)  # (B,T,length+T), converted once for all layers
        for block, layer in zip(self.blocks, cache.layers, strict=True):
            x = block(x, beam_mask, None, cache.memory_mask, causal, rotary, layer)
        cache.position += steps
        return self.norm(x)


def set_autocast_residual(model: nn.Module) -> int:
    """Turn on `autocast_residual` in every stack of a model; returns their number."""
    stacks = [module for module in model.modules() if isinstance(module, Stack)]
    for stack in stacks:
        stack.autocast_residual = True
    return len(stacks)
