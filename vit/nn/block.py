"""One layer of a transformer."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn

from vit.nn.attention import Attention
from vit.nn.cache import LayerCache
from vit.nn.drop import Dropout, DropPath, LayerScale
from vit.nn.norm import LayerNorm, Norm, same
from vit.nn.position import Rotation


class Block(nn.Module):
    """Attention, then (with `cross_attn`) attention to a memory, then an MLP, each a residual branch.

    Pre-norm normalises what goes into a branch (arXiv 2010.11929), post-norm the sum of branch and stream
    (arXiv 1706.03762).

    Args:
        pre_norm: where the norms stand.
        layer_scale: first value of a learned factor per channel on each branch; None for none.
        dropout: rate on each branch's result.
        drop_path: rate at which a sample skips a branch.
    """

    def __init__(
        self,
        dim: int,
        attn: Attention,
        mlp: nn.Module,
        cross_attn: Attention | None = None,
        *,
        norm: Norm = LayerNorm,
        pre_norm: bool = True,
        layer_scale: float | None = None,
        dropout: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()

        def scale() -> nn.Module:
            return same if layer_scale is None else LayerScale(dim, layer_scale)

        self.norm1, self.attn, self.ls1 = norm(dim), attn, scale()
        self.cross_attn = cross_attn
        if cross_attn is not None:
            self.cross_norm, self.cross_ls = norm(dim), scale()
        self.norm2, self.mlp, self.ls2 = norm(dim), mlp, scale()
        self.drop = nn.Sequential(Dropout(dropout), DropPath(drop_path))
        self.pre_norm = pre_norm

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        causal: bool = False,
        rotary: Rotation | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """x (B,N,D), memory (B,S,D) -> (B,N,D); masks as in `Attention`. A cache replaces the memory."""
        own, other = (None, None) if cache is None else (cache.own, cache.memory)
        attend = partial(self.attn, mask=mask, causal=causal, rotary=rotary, kept=own)
        x = self.add(x, attend, self.norm1, self.ls1)
        if self.cross_attn is not None:
            look = partial(self.cross_attn, memory=memory, mask=memory_mask, kept=other)
            x = self.add(x, look, self.cross_norm, self.cross_ls)
        return self.add(x, self.mlp, self.norm2, self.ls2)

    def add(self, x: Tensor, layer: Callable[[Tensor], Tensor], norm: nn.Module, scale: nn.Module) -> Tensor:
        """The stream (B,N,D) and what a layer makes of it, normalised where this block does it."""
        if self.pre_norm:
            return x + self.branch(layer(norm(x)), scale)
        return norm(x + self.branch(layer(x), scale))

    def branch(self, y: Tensor, scale: nn.Module) -> Tensor:
        """What a branch adds to the stream, (B,N,D)."""
        return self.drop(scale(y)) if self.training else scale(y)  # two calls less per branch, which a short step feels


class BranchNormBlock(Block):
    """Each branch's result is normalised before it is added (res-post-norm, arXiv 2111.09883): none outgrows the
    others with depth. The norms' weights are its LayerScale."""

    def add(self, x: Tensor, layer: Callable[[Tensor], Tensor], norm: nn.Module, scale: nn.Module) -> Tensor:
        """The stream (B,N,D) and what a layer makes of it, which is normalised."""
        return x + self.branch(norm(layer(x)), scale)


class ParallelBlock(Block):
    """Attention and MLP read the same normalised tokens, and both are added at once (ViT-22B, arXiv 2302.05442)."""

    def __init__(self, dim: int, attn: Attention, mlp: nn.Module, cross_attn: None = None, **options: Any) -> None:
        if cross_attn is not None:
            raise ValueError("a parallel block has no place for a memory; take another block where one is read")
        super().__init__(dim, attn, mlp, **options)
        del self.norm2, self.ls2  # the first ones are both branches'

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        causal: bool = False,
        rotary: Rotation | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """As `Block`, without a memory."""
        own = None if cache is None else cache.own
        attend = partial(self.attn, mask=mask, causal=causal, rotary=rotary, kept=own)
        return self.add(x, lambda y: attend(y) + self.mlp(y), self.norm1, self.ls1)
