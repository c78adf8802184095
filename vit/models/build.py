"""Builders of the layers in `vit.nn` from a config, shared by all models.

They read the fields of `StackConfig` and `TextConfig`.
"""

from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from vit import nn as parts
from vit.models.config import StackConfig, TextConfig
from vit.nn import Attention, Block, Encoder, RelativePositions, Rotary, TokenEmbed
from vit.nn.drop import drop_path_rates
from vit.nn.norm import Norm

# the classes and functions that the names in a config stand for
NORMS = {"layer": parts.LayerNorm, "rms": parts.RMSNorm}
BLOCKS = {"serial": Block, "res_post_norm": parts.ResPostNormBlock, "parallel": parts.ParallelBlock}
MLPS = {"mlp": parts.Mlp, "swiglu": parts.SwiGLU}
ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "quick_gelu": parts.quick_gelu,
    "relu": F.relu,
    "silu": F.silu,
}
PAIRS = {"rotate_half": parts.RotateHalf, "interleaved": parts.Interleaved}
TEXT_THETA = 10_000.0  # of rotary positions in texts (arXiv 2104.09864)


def build_blocks(config: StackConfig, depth: int | None = None, cross: bool = False) -> list[Block]:
    """The blocks of an encoder, or with `cross` of a decoder; `config.depth` by default."""
    return [
        BLOCKS[config.block](
            config.dim,
            build_attention(config),
            build_mlp(config),
            build_attention(config, cross=True) if cross else None,
            norm=build_norm(config),
            pre_norm=config.pre_norm,
            layer_scale=config.layer_scale,
            dropout=config.dropout,
            drop_path=rate,
        )
        for rate in drop_path_rates(config.drop_path, depth or config.depth)
    ]


def build_attention(config: StackConfig, cross: bool = False) -> Attention:
    return Attention(
        config.dim,
        config.num_heads,
        head_dim=config.head_dim,
        cross=cross,
        qkv_bias=config.qkv_bias,
        key_bias=config.key_bias,
        qk_norm=build_norm(config) if config.qk_norm else None,
        norm=build_norm(config) if config.attn_norm else None,
        proj_bias=config.proj_bias,
        relative=None if cross else build_relative(config),
        dropout=config.attention_dropout,
    )


def build_relative(config: StackConfig) -> RelativePositions | None:
    """The relative position bias for positions="relative", else None."""
    if getattr(config, "positions", None) != "relative":  # a plain StackConfig has no positions
        return None
    return RelativePositions(config.grid, config.num_heads, config.prefix, config.relative_hidden)


def build_mlp(config: StackConfig) -> nn.Module:
    norm = build_norm(config)(config.hidden) if config.mlp_norm else None
    activation = ACTIVATIONS[config.activation]
    return MLPS[config.mlp](config.dim, config.hidden, activation, config.dropout, norm, config.proj_bias)


def build_norm(config: StackConfig) -> Norm:
    return partial(NORMS[config.norm], eps=config.norm_eps)


def build_last_norm(config: StackConfig) -> nn.Module:
    """The norm after the last block; the identity for post-norm blocks, whose output is normalized already."""
    return build_norm(config)(config.dim) if config.pre_norm else nn.Identity()


def build_head(config: StackConfig) -> nn.Module:
    return nn.Linear(config.pooled_dim, config.num_classes) if config.num_classes else nn.Identity()


def build_text_embed(config: TextConfig) -> TokenEmbed:
    return TokenEmbed(
        config.vocab_size,
        config.dim,
        pos_embed=build_text_table(config.positions, config.max_len, config.dim),
        segments=config.segments,
        norm=build_norm(config)(config.dim) if config.embed_norm else None,
        dropout=config.dropout,
    )


def build_text_table(positions: str, max_len: int, dim: int) -> Tensor | None:
    """The position table of a text, (1,max_len,D), or None."""
    if positions == "learned":
        return parts.learned(max_len, dim)
    return parts.sincos_1d(max_len, dim) if positions == "sincos" else None


def build_text_encoder(config: TextConfig) -> Encoder:
    return Encoder(build_blocks(config), build_last_norm(config), rotary=build_text_rotary(config, config.max_len))


def build_text_rotary(config: StackConfig, max_len: int) -> Rotary | None:
    if config.positions != "rotary":
        return None
    return Rotary((max_len,), config.head_width, theta=TEXT_THETA, pairs=PAIRS[config.rotary_pairs])
