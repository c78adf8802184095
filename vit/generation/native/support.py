"""Which decoders the compiled step computes."""

from collections.abc import Iterator

import torch
from torch import nn

from vit.generation.native.structs import ACTIVATIONS
from vit.generation.uncached import needs_uncached
from vit.nn import Attention, Block, Decoder, Mlp, Rotary, SwiGLU
from vit.nn.cpu.linear import has_custom_call, is_plain_linear
from vit.nn.norm import identity
from vit.nn.scores import ScaledDotProduct

WIDEST_HEAD = 1024  # the size of a buffer in `decoder.cpp`


class Unsupported(ValueError):
    """A model with a part that the compiled step does not compute."""

    def __init__(self, part: str) -> None:
        super().__init__(f"the compiled decoding step does not support {part}; generate in eager mode")
        self.part = part


def check_supported(model: nn.Module) -> None:
    """Check that `decoder.cpp` computes the decoder of a model.

    Raises:
        Unsupported: it does not.
    """
    if (reason := next(unsupported_parts(model), None)) is not None:
        raise Unsupported(reason)


def unsupported_parts(model: nn.Module) -> Iterator[str]:
    """What the compiled step does not compute, part by part."""
    decoder, head = getattr(model, "decoder", None), getattr(model, "head", None)
    if type(decoder) is not Decoder or not len(decoder.blocks):
        yield f"a {type(model).__name__} without a decoder of this project"
        return
    if needs_uncached(model) or any(has_custom_call(module) for module in decoder.modules()):
        yield "hooks or another forward"
    if any(each.device.type != "cpu" or each.dtype != torch.float32 for each in model.parameters()):
        yield "weights that are not in float32 on the CPU"
    if type(decoder.rotary) not in (type(None), Rotary):
        yield f"rotary positions of type {type(decoder.rotary).__name__}"
    if head is not None and not is_plain_linear(head):
        yield f"a head of type {type(head).__name__}"
    if not (is_norm(decoder.norm) or isinstance(decoder.norm, nn.Identity)):
        yield f"a last norm of type {type(decoder.norm).__name__}"
    for block in decoder.blocks:
        yield from unsupported_in_block(block)
    if len({block_shape(block) for block in decoder.blocks if type(block) is Block}) > 1:
        yield "blocks of different shapes"


def unsupported_in_block(block: nn.Module) -> Iterator[str]:
    """As `unsupported_parts`, of one block."""
    if type(block) is not Block:
        yield f"blocks of type {type(block).__name__}"
        return
    for attn in (block.attn, block.cross_attn):
        if type(attn) is not Attention:
            yield f"a layer of type {type(attn).__name__} between the tokens"
        else:
            yield from unsupported_in_attention(attn)
    if any(scale is not identity for scale in (block.ls1, block.cross_ls, block.ls2)):
        yield "LayerScale"
    if not all(map(is_norm, (block.norm1, block.cross_norm, block.norm2))):
        yield f"norms of type {type(block.norm1).__name__}"
    mlp = block.mlp
    if type(mlp) not in (Mlp, SwiGLU) or mlp.norm is not identity or mlp.activation not in ACTIVATIONS:
        yield "an MLP with a norm or with another activation than relu, gelu, silu or quick_gelu"
    elif not (is_plain_linear(mlp.fc1) and is_plain_linear(mlp.fc2)):
        yield "an MLP with other layers than nn.Linear"


def unsupported_in_attention(attn: Attention) -> Iterator[str]:
    """As `unsupported_parts`, of one attention layer."""
    if type(attn.score) is not ScaledDotProduct:
        yield f"attention scores of type {type(attn.score).__name__}"
    if any(norm is not identity for norm in (attn.q_norm, attn.k_norm, attn.norm)):
        yield "norms within attention"
    if attn.relative is not None:
        yield "relative positions"
    layers = [attn.q, attn.kv, attn.proj] if attn.cross else [attn.qkv, attn.proj]
    if not all(map(is_plain_linear, layers)):
        yield "attention with other projections than nn.Linear"
    if attn.heads.value_dim != attn.heads.head_dim or attn.heads.head_dim > WIDEST_HEAD:
        yield f"heads of widths {attn.heads.head_dim} and {attn.heads.value_dim}"


def is_norm(norm: nn.Module) -> bool:
    """Whether it is a layer norm with weight and bias, or a root mean square norm with a weight."""
    if isinstance(norm, nn.LayerNorm):
        return norm.bias is not None
    return isinstance(norm, nn.RMSNorm) and norm.weight is not None and norm.eps is not None


def block_shape(block: Block) -> tuple[object, ...]:
    """Heads, kind of MLP, hidden width and order of norm and layer, which all blocks of a decoder must share."""
    heads = getattr(block.attn, "heads", None), getattr(block.cross_attn, "heads", None)
    mlp = block.mlp
    return (heads, type(mlp), getattr(mlp, "activation", None), getattr(getattr(mlp, "fc2", None), "in_features", None),
            block.pre_norm)
