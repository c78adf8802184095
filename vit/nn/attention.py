"""Multi-head attention, as self-attention or cross-attention, made of a projection, a score and norms, and the
projections.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from vit.nn.cache import KeyValues
from vit.nn.cpu.linear import apply_linear, linear
from vit.nn.norm import Norm, identity
from vit.nn.packing import Packing
from vit.nn.rotary import Rotation
from vit.nn.scores import Heads, ScaledDotProduct, Score

Output = Callable[[int, int], nn.Module]  # (width of the concatenated heads, dim) -> (B,N,width) -> (B,N,D)
# (dim, num_heads, widths) -> a module (B,N,D) -> (B,N,sum of H*width): for each of `widths`, such as those of queries,
# keys and values, the H heads of that width one after the other
Projection = Callable[[int, int, Sequence[int]], nn.Module]


def stacked(dim: int, num_heads: int, widths: Sequence[int], bias: bool = True) -> nn.Linear:
    """The usual projection: one linear layer, faster than a layer for each of queries, keys and values."""
    parts = [num_heads * width for width in widths]
    layer = nn.Linear(dim, sum(parts), bias)
    layer.parts = parts  # initialized as one matrix each
    return layer


class Attention(nn.Module):
    """Multi-head attention (arXiv 1706.03762): self-attention, or with `cross=True` cross-attention to a memory.

    The score's kernel always computes the result; `attention_maps` records the weights in addition. Parameters are
    named as in timm: `qkv, proj` for self-attention, `q, kv, proj` for cross-attention, `q_norm, k_norm` with QK-norm
    and `norm`.

    Args:
        heads: number of heads that share the width `dim`, or `Heads` of other widths.
        projection: constructor of the projection to queries, keys and values.
        score: constructor of the module that computes the heads from them, a class of `vit.nn.scores`.
        qk_norm: norm of queries and keys per head, against growing logits (arXiv 2302.05442); None for none.
        norm: norm of the concatenated heads before the output projection (arXiv 2210.06423); None for none.
        output: constructor of the output projection; None for none.
        relative: module whose output is added to the scores of self-attention, such as `RelativePositions`.
        dropout: rate on the attention weights.

    Raises:
        ValueError: `dim` is not divisible by the number of heads, or the heads have widths that do not fit the parts.
    """

    def __init__(
        self,
        dim: int,
        heads: int | Heads,
        *,
        cross: bool = False,
        projection: Projection = stacked,
        score: Score = ScaledDotProduct,
        qk_norm: Norm | None = None,
        norm: Norm | None = None,
        output: Output | None = nn.Linear,
        relative: nn.Module | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.heads = heads = heads if isinstance(heads, Heads) else Heads.split(dim, heads)
        H, K, V = heads.num_heads, heads.head_dim, heads.value_dim
        if cross:
            self.q, self.kv = projection(dim, H, [K]), projection(dim, H, [K, V])
        else:
            self.qkv = projection(dim, H, [K, K, V])
        self.q_norm, self.k_norm = (qk_norm(K), qk_norm(K)) if qk_norm else (identity, identity)
        self.score = score(heads)
        self.norm = norm(H * V) if norm else identity
        self.proj = output(H * V, dim) if output else identity
        self.cross, self.relative, self.dropout = cross, relative, dropout
        self.recorder: list[Tensor] | None = None  # set by attention_maps

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        mask: Tensor | Packing | None = None,
        causal: bool = False,
        rotary: Rotation | None = None,
        cache: KeyValues | None = None,
        first: int | None = None,
    ) -> Tensor:
        """x (B,N,D), memory (B,S,D) -> (B,N,D); S is N in self-attention.

        Args:
            mask: bool, True = may be attended, of shape (B,S), (B,N,S) or (B,H,N,S); in the last two shapes also
                floats that are added to the scores, -inf where masked; a packing of sequences (1,N,D), each of which
                attends to itself.
            causal: a token attends to itself and the tokens before it; the last query is aligned with the last key.
            rotary: rotates queries and keys by position; from `vit.nn.Rotary`.
            cache: keys and values of the memory, or of the tokens before x, to which those of x are appended.
            first: number of first tokens to compute, (B,first,D); all by default. Not for causal attention.

        Raises:
            ValueError: cross-attention without a memory, or a mask of another number of dimensions.
            TypeError: a mask of another dtype.
        """
        if self.cross:
            q = self.queries(x)
            k, v = self.memory_keys_values(memory) if cache is None else cache.all()
        else:
            q, k, v = self.project(x, rotary)  # (B,H,N,K), (B,H,N,K), (B,H,N,V)
            if cache is not None:
                k, v = cache.append(k, v)  # (B,H,S,K), (B,H,S,V)
            if self.relative is not None:
                mask = self.relative(mask, q.shape[2], k.shape[2]).to(q.dtype)  # (1 or B,H,N,S)
        if self.recorder is not None:
            pairs = mask.mask(q.device) if isinstance(mask, Packing) else mask
            self.recorder.append(self.score.weights(q.detach(), k.detach(), pairs, causal))
        if first is not None:
            q = q[:, :, :first]
            mask = mask if mask is None or mask.ndim == 2 else mask[..., :first, :]
        dropout = self.dropout if self.training else 0.0
        if isinstance(mask, Packing):
            heads = mask.attend(self.score, q, k, v, dropout)
        else:
            heads = self.score.attend(q, k, v, mask, causal, dropout)  # (B,H,N,V)
        return apply_linear(self.proj, self.norm(heads.transpose(1, 2).flatten(2)))  # (B,N,H*V) -> (B,N,D)

    def project(self, x: Tensor, rotary: Rotation | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """(B,N,D) -> queries and keys (B,H,N,K) and values (B,H,N,V) of self-attention, with QK-norm and rotary
        positions applied
        """
        K, V = self.heads.head_dim, self.heads.value_dim
        q, k, v = self.split(apply_linear(self.qkv, x), [K, K, V])
        q, k = self.q_norm(q), self.k_norm(k)
        return (q, k, v) if rotary is None else (rotary(q), rotary(k), v)

    def queries(self, x: Tensor) -> Tensor:
        """(B,N,D) -> queries (B,H,N,K) of cross-attention"""
        return self.q_norm(self.split(apply_linear(self.q, x), [self.heads.head_dim])[0])

    def memory_keys_values(self, memory: Tensor | None) -> tuple[Tensor, Tensor]:
        """(B,S,D) -> keys (B,H,S,K) and values (B,H,S,V) of cross-attention

        Raises:
            ValueError: there is no memory.
        """
        if memory is None:
            raise ValueError("cross-attention needs a memory (B,S,D), but got None")
        k, v = self.split(apply_linear(self.kv, memory), [self.heads.head_dim, self.heads.value_dim])
        return self.k_norm(k), v

    def split(self, x: Tensor, widths: Sequence[int]) -> Sequence[Tensor]:
        """(B,N,sum of H*width) -> for each width (B,H,N,width)"""
        H = self.heads.num_heads
        if len(set(widths)) == 1:
            x = x.unflatten(-1, (len(widths), H, -1))
            if torch.is_grad_enabled() or torch.jit.is_tracing():  # torch.jit.trace checks a program without gradients
                # the gradients of the parts are then copied once instead of twice
                return [part.transpose(1, 2) for part in x.unbind(2)]
            return x.permute(2, 0, 3, 1, 4).unbind(0)  # fewer views, faster for short steps
        parts = x.split([H * width for width in widths], dim=-1)
        return [part.unflatten(-1, (H, -1)).transpose(1, 2) for part in parts]

    def new_cache(self, like: Tensor, capacity: int) -> KeyValues:
        """An empty cache of self-attention with room for `capacity` tokens; batch size and dtype are those of `like`.
        """
        shape = (like.shape[0], self.heads.num_heads, capacity)
        return KeyValues(like.new_zeros(*shape, self.heads.head_dim), like.new_zeros(*shape, self.heads.value_dim))


@contextmanager
def attention_maps(model: nn.Module) -> Iterator[dict[str, list[Tensor]]]:
    """Record attention weights in this context: `{"encoder.blocks.0.attn": [(B,H,N,S), ...]}`, one entry per forward.

    The model's outputs are bitwise unchanged.
    """
    layers = {name: module for name, module in model.named_modules() if isinstance(module, Attention)}
    for module in layers.values():
        module.recorder = []
    try:
        yield {name: module.recorder for name, module in layers.items()}
    finally:
        for module in layers.values():
            module.recorder = None


class KeylessBias(nn.Linear):
    """The qkv projection without a bias on the keys (BEiT, arXiv 2106.08254; EVA-02, arXiv 2303.11331).

    A key bias adds a constant to all scores of a query, to which softmax is invariant without rotary positions.
    """

    def __init__(self, dim: int, num_heads: int, widths: Sequence[int]) -> None:
        self.parts = [num_heads * width for width in widths]
        super().__init__(dim, sum(self.parts), bias=False)
        self.q_bias = nn.Parameter(torch.zeros(self.parts[0]))
        self.v_bias = nn.Parameter(torch.zeros(self.parts[2]))

    def forward(self, x: Tensor) -> Tensor:
        """(B,N,D) -> (B,N,sum of parts)"""
        bias = torch.cat([self.q_bias, self.q_bias.new_zeros(self.parts[1]), self.v_bias])
        return linear(x, self.weight, bias)


class Sliced(nn.Module):
    """Each head projects only its own slice of the input, D / H channels, by its own matrices.

    This is the projection of `stacked` with block-diagonal matrices: 1/H of its parameters and cost.

    Raises:
        ValueError: `dim` is not divisible by `num_heads`.
    """

    def __init__(self, dim: int, num_heads: int, widths: Sequence[int], bias: bool = True) -> None:
        super().__init__()
        width = Heads.split(dim, num_heads).head_dim
        self.widths = list(widths)
        self.weight = nn.Parameter(torch.empty(num_heads, sum(widths), width))
        self.bias = nn.Parameter(torch.zeros(num_heads, sum(widths))) if bias else None
        for matrix in (part for head in self.weight.detach() for part in head.split(self.widths)):
            nn.init.xavier_uniform_(matrix)

    def forward(self, x: Tensor) -> Tensor:
        """(B,N,D) -> (B,N,sum of H*width)"""
        heads = torch.einsum("bnhk,hwk->bnhw", x.unflatten(-1, (len(self.weight), -1)), self.weight.to(x.dtype))
        heads = heads if self.bias is None else heads + self.bias
        return torch.cat([part.flatten(2) for part in heads.split(self.widths, dim=-1)], dim=-1)


class Unprojected(nn.Module):
    """No projection: queries, keys and values are the tokens themselves, so that the scores are x_i . x_j.

    Raises:
        ValueError: the heads do not share the width of the tokens.
    """

    def __init__(self, dim: int, num_heads: int, widths: Sequence[int]) -> None:
        super().__init__()
        if any(width * num_heads != dim for width in widths):
            raise ValueError(f"without a projection heads are slices of the {dim} channels, so {num_heads} heads are "
                             f"{dim / num_heads:g} wide, not {' and '.join(map(str, sorted(set(widths))))}")
        self.copies = len(widths)

    def forward(self, x: Tensor) -> Tensor:
        """(B,N,D) -> (B,N,copies*D)"""
        return x.repeat(1, 1, self.copies)
