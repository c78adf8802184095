"""One layer of an encoder or decoder."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn

from vit.nn.attention import Attention
from vit.nn.cache import LayerCache
from vit.nn.drop import Dropout, DropPath, LayerScale
from vit.nn.norm import LayerNorm, Norm, identity
from vit.nn.position import Rotation


class Block(nn.Module):
    """Self-attention, cross-attention to a memory (with `cross_attn`) and an MLP, each a residual branch.

    Pre-norm normalizes the input of a branch (arXiv 2010.11929), post-norm the sum of residual and branch (arXiv
    1706.03762).

    Args:
        pre_norm: True for pre-norm, False for post-norm.
        layer_scale: initial value of `LayerScale` on each branch; None for none.
        dropout: rate on the output of each branch.
        drop_path: stochastic depth rate of each branch.
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
            return identity if layer_scale is None else LayerScale(dim, layer_scale)

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
        """x (B,N,D), memory (B,S,D) -> (B,N,D); masks as in `Attention`; a cache replaces the memory"""
        self_cache, cross_cache = (None, None) if cache is None else (cache.self_attn, cache.cross_attn)
        attn = partial(self.attn, mask=mask, causal=causal, rotary=rotary, cache=self_cache)
        x = self.add(x, attn, self.norm1, self.ls1)
        if self.cross_attn is not None:
            cross_attn = partial(self.cross_attn, memory=memory, mask=memory_mask, cache=cross_cache)
            x = self.add(x, cross_attn, self.cross_norm, self.cross_ls)
        return self.add(x, self.mlp, self.norm2, self.ls2)

    def add(self, x: Tensor, layer: Callable[[Tensor], Tensor], norm: nn.Module, scale: nn.Module) -> Tensor:
        """x (B,N,D) -> x plus the residual branch of `layer`, (B,N,D), pre- or post-normalized"""
        if self.pre_norm:
            return x + self.branch(layer(norm(x)), scale)
        return norm(x + self.branch(layer(x), scale))

    def branch(self, y: Tensor, scale: nn.Module) -> Tensor:
        """(B,N,D) -> (B,N,D), scaled, with dropout and stochastic depth"""
        return self.drop(scale(y)) if self.training else scale(y)  # skips two module calls in evaluation


class ResPostNormBlock(Block):
    """Res-post-norm (Swin v2, arXiv 2111.09883): the output of each branch is normalized before it is added.

    Activations do not grow with depth; the weights of the norms act as LayerScale.
    """

    def add(self, x: Tensor, layer: Callable[[Tensor], Tensor], norm: nn.Module, scale: nn.Module) -> Tensor:
        """x (B,N,D) -> x plus the normalized output of `layer`, (B,N,D)"""
        return x + self.branch(norm(layer(x)), scale)


class ParallelBlock(Block):
    """Attention and MLP in parallel on the same normalized tokens (ViT-22B, arXiv 2302.05442).

    Raises:
        ValueError: `cross_attn` is given.
    """

    def __init__(self, dim: int, attn: Attention, mlp: nn.Module, cross_attn: None = None, **options: Any) -> None:
        if cross_attn is not None:
            raise ValueError("a parallel block does not support cross-attention; use Block or ResPostNormBlock")
        super().__init__(dim, attn, mlp, **options)
        del self.norm2, self.ls2  # both branches share the first ones

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
        """x (B,N,D) -> (B,N,D), as `Block` without a memory"""
        self_cache = None if cache is None else cache.self_attn
        attn = partial(self.attn, mask=mask, causal=causal, rotary=rotary, cache=self_cache)
        return self.add(x, lambda y: attn(y) + self.mlp(y), self.norm1, self.ls1)
