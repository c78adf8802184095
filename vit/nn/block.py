"""One layer of an encoder or decoder."""

from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any

from torch import Tensor, nn

from vit.nn.attention import Attention
from vit.nn.cache import LayerCache
from vit.nn.drop import Dropout, DropPath, LayerScale
from vit.nn.local import Local
from vit.nn.mixers import Mixer
from vit.nn.mlp import Mlp, SwiGLU
from vit.nn.norm import BatchNorm, LayerNorm, Norm, identity
from vit.nn.packing import Packing
from vit.nn.rotary import Rotation
from vit.nn.scores import ScaledDotProduct

Branch = Callable[[Tensor], Tensor]  # (B,N,D) -> (B,N,D)


class Block(nn.Module):
    """Self-attention, cross-attention to a memory (with `cross_attn`) and an MLP, each a residual branch.

    Pre-norm normalizes the input of a branch (arXiv 2010.11929), post-norm the sum of residual and branch (arXiv
    1706.03762). With pre-norm the sums are never normalized: the gradient also reaches the first block unchanged along
    them, and the stack needs a norm at its end. With post-norm the gradients of the last blocks are large at first,
    which is why it needs a warm-up (arXiv 2002.04745).

    Args:
        attn: self-attention, or another layer between the tokens.
        pre_norm: True for pre-norm, False for post-norm.
        layer_scale: initial value of `LayerScale` on each branch; None for none.
        dropout: rate on the output of each branch.
        drop_path: stochastic depth rate of each branch.
    """

    def __init__(
        self,
        dim: int,
        attn: Attention | Mixer,
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
        self.cross_attn, self.cross_norm = cross_attn, None
        if cross_attn is not None:
            self.cross_norm, self.cross_ls = norm(dim), scale()
        self.norm2, self.mlp, self.ls2 = norm(dim), mlp, scale()
        drops = dropout or drop_path
        self.drop = nn.Sequential(Dropout(dropout), DropPath(drop_path)) if drops else None
        self.pre_norm = pre_norm
        self.accepts_first = "first" in signature(self.forward).parameters

    @property
    def can_compute_first(self) -> bool:
        """Whether the outputs of the first tokens can be computed without those of the others.

        This requires the `forward` of `Attention`, the score `ScaledDotProduct`, an MLP of `vit.nn`, no `BatchNorm`,
        and a `forward` of the block that has the argument `first`.
        """
        own_forward = type(self.attn).forward is not Attention.forward or "forward" in self.attn.__dict__
        if own_forward or type(self.mlp) not in (Mlp, SwiGLU):
            return False
        if not isinstance(self.attn.score, ScaledDotProduct) or isinstance(self.attn.score, Local):
            return False
        return self.accepts_first and not any(isinstance(part, BatchNorm) for part in self.modules())

    def forward(
        self,
        x: Tensor,
        mask: Tensor | Packing | None = None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        causal: bool = False,
        rotary: Rotation | None = None,
        cache: LayerCache | None = None,
        first: int | None = None,
    ) -> Tensor:
        """x (B,N,D), memory (B,S,D) -> (B,N,D); masks as in `Attention`; a cache replaces the memory

        Args:
            first: number of first tokens to compute, (B,first,D), if `can_compute_first`; all by default.
        """
        attn, cross_attn, norm1, cross_norm, norm2 = self.bound(mask, memory, memory_mask, causal, rotary, cache, first)
        if self.pre_norm:
            x = first_tokens(x, first) + self.drop_branch(self.ls1(attn(norm1(x))), mask)
            if cross_attn is not None:
                x = x + self.drop_branch(self.cross_ls(cross_attn(cross_norm(x))), mask)
            return x + self.drop_branch(self.ls2(self.mlp(norm2(x))), mask)
        x = norm1(first_tokens(x, first) + self.drop_branch(self.ls1(attn(x)), mask))
        if cross_attn is not None:
            x = cross_norm(x + self.drop_branch(self.cross_ls(cross_attn(x)), mask))
        return norm2(x + self.drop_branch(self.ls2(self.mlp(x)), mask))

    def bound(
        self,
        mask: Tensor | Packing | None,
        memory: Tensor | None,
        memory_mask: Tensor | None,
        causal: bool,
        rotary: Rotation | None,
        cache: LayerCache | None,
        first: int | None,
    ) -> tuple[Branch, Branch | None, Branch, Branch | None, Branch | None]:
        """Self-attention, cross-attention and the norms `norm1`, `cross_norm` and `norm2` as functions (B,N,D) ->
        (B,N,D), with all other arguments bound; None for those that the block does not have.
        """
        self_cache, cross_cache = (None, None) if cache is None else (cache.self_attn, cache.cross_attn)
        attn = partial(self.attn, mask=mask, causal=causal, rotary=rotary, cache=self_cache)
        attn = attn if first is None else partial(attn, first=first)
        cross_attn = self.cross_attn and partial(
            self.cross_attn, memory=memory, mask=memory_mask, cache=cross_cache)
        norms = self.norm1, self.cross_norm, self.norm2
        if isinstance(self.norm1, BatchNorm) and mask is not None:
            norms = (norm and partial(norm, mask=mask) for norm in norms)
        return attn, cross_attn, *norms

    def drop_branch(self, y: Tensor, mask: Tensor | Packing | None) -> Tensor:
        """(B,N,D) -> (B,N,D), with dropout and, per image of a packing, stochastic depth in training"""
        if self.drop is None or not self.training:
            return y
        if isinstance(mask, Packing):
            dropout, drop_path = self.drop
            return drop_path(dropout(y), mask)
        return self.drop(y)


class ResPostNormBlock(Block):
    """Res-post-norm (Swin v2, arXiv 2111.09883): the output of each branch is normalized before it is added.

    Activations do not grow with depth; the weights of the norms act as LayerScale.
    """

    def forward(
        self,
        x: Tensor,
        mask: Tensor | Packing | None = None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        causal: bool = False,
        rotary: Rotation | None = None,
        cache: LayerCache | None = None,
        first: int | None = None,
    ) -> Tensor:
        """x (B,N,D), memory (B,S,D) -> (B,N,D), as `Block`"""
        attn, cross_attn, norm1, cross_norm, norm2 = self.bound(mask, memory, memory_mask, causal, rotary, cache, first)
        x = first_tokens(x, first) + self.drop_branch(self.ls1(norm1(attn(x))), mask)
        if cross_attn is not None:
            x = x + self.drop_branch(self.cross_ls(cross_norm(cross_attn(x))), mask)
        return x + self.drop_branch(self.ls2(norm2(self.mlp(x))), mask)


class NoResidualBlock(Block):
    """A block without residual connections: each layer replaces its input, so that gradients vanish with depth."""

    def forward(
        self,
        x: Tensor,
        mask: Tensor | Packing | None = None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        causal: bool = False,
        rotary: Rotation | None = None,
        cache: LayerCache | None = None,
        first: int | None = None,
    ) -> Tensor:
        """x (B,N,D), memory (B,S,D) -> (B,N,D), as `Block`"""
        attn, cross_attn, norm1, cross_norm, norm2 = self.bound(mask, memory, memory_mask, causal, rotary, cache, first)
        if self.pre_norm:
            x = self.drop_branch(self.ls1(attn(norm1(x))), mask)
            if cross_attn is not None:
                x = self.drop_branch(self.cross_ls(cross_attn(cross_norm(x))), mask)
            return self.drop_branch(self.ls2(self.mlp(norm2(x))), mask)
        x = norm1(self.drop_branch(self.ls1(attn(x)), mask))
        if cross_attn is not None:
            x = cross_norm(self.drop_branch(self.cross_ls(cross_attn(x)), mask))
        return norm2(self.drop_branch(self.ls2(self.mlp(x)), mask))


class ParallelBlock(Block):
    """Attention and MLP in parallel on the same normalized tokens (ViT-22B, arXiv 2302.05442).

    Raises:
        ValueError: `cross_attn` is given.
    """

    def __init__(self, dim: int, attn: Attention, mlp: nn.Module, cross_attn: None = None, **options: Any) -> None:
        if cross_attn is not None:
            raise ValueError("a parallel block does not support cross-attention; use Block or ResPostNormBlock")
        super().__init__(dim, attn, mlp, **options)
        del self.ls2  # both branches share norm1 and ls1
        self.norm2 = None

    def forward(
        self,
        x: Tensor,
        mask: Tensor | Packing | None = None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        causal: bool = False,
        rotary: Rotation | None = None,
        cache: LayerCache | None = None,
        first: int | None = None,
    ) -> Tensor:
        """x (B,N,D) -> (B,N,D), as `Block` without a memory"""
        attn, _, norm1, _, _ = self.bound(mask, memory, memory_mask, causal, rotary, cache, first)
        selected = first_tokens(x, first)
        if not self.pre_norm:
            return norm1(selected + self.drop_branch(self.ls1(attn(x) + self.mlp(selected)), mask))
        y = norm1(x)
        return selected + self.drop_branch(self.ls1(attn(y) + self.mlp(first_tokens(y, first))), mask)


def first_tokens(x: Tensor, first: int | None) -> Tensor:
    """x (B,N,D) -> (B,first,D); all tokens by default"""
    return x if first is None else x[:, :first]
