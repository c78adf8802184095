"""Construction of the layers of `vit.nn` from the fields of a `StackConfig` or `TextConfig`, shared by all models."""

from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from vit import nn as parts
from vit.models.config import ImageConfig, StackConfig, TextConfig
from vit.nn import Attention, Block, Encoder, Heads, Mixer, Rotary, TokenEmbed
from vit.nn.attention import Projection
from vit.nn.norm import Norm
from vit.nn.scores import Score

# name in a config -> class or function
NORMS = {"layer": parts.LayerNorm, "rms": parts.RMSNorm, "batch": parts.BatchNorm}
BLOCKS = {"serial": Block, "res_post_norm": parts.ResPostNormBlock, "parallel": parts.ParallelBlock}
SCORES = {
    "scaled": parts.ScaledDotProduct,
    "dot": parts.DotProduct,
    "cosine": parts.Cosine,
    "bilinear": parts.Bilinear,
    "additive": parts.Additive,
}
PROJECTIONS = {"linear": parts.stacked, "sliced": parts.Sliced}
CELLS = {"lstm": nn.LSTM, "gru": nn.GRU}
MLPS = {"mlp": parts.Mlp, "swiglu": parts.SwiGLU}
ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu_tanh": parts.gelu_tanh,
    "quick_gelu": parts.quick_gelu,
    "relu": F.relu,
    "silu": F.silu,
}
ROTARY_PAIRS = {"rotate_half": parts.RotateHalf, "interleaved": parts.Interleaved}
TEXT_THETA = 10_000.0  # theta of rotary positions in texts (arXiv 2104.09864)


def build_blocks(config: StackConfig, depth: int | None = None, decoder: bool = False) -> list[Block]:
    """The blocks of an encoder or decoder; `config.depth` by default."""
    block = BLOCKS[config.block] if config.residual else parts.NoResidualBlock
    depth, constant = depth or config.depth, config.drop_path_schedule == "constant"
    return [
        block(
            config.dim,
            build_mixer(config, decoder),
            build_mlp(config),
            build_attention(config, cross=True) if decoder else None,
            norm=build_norm(config),
            pre_norm=config.pre_norm,
            layer_scale=config.layer_scale,
            dropout=config.dropout,
            # linear: all later blocks depend on what the first ones extract (arXiv 1603.09382)
            drop_path=config.drop_path if constant else config.drop_path * i / max(depth - 1, 1),
        )
        for i in range(depth)
    ]


def build_mixer(config: StackConfig, decoder: bool = False) -> Attention | Mixer:
    """The layer between the tokens of a block, causal in a decoder."""
    mixer = (config.decoder_mixer if decoder else None) or config.mixer
    if mixer in CELLS:
        return parts.Recurrent(config.dim, CELLS[mixer], causal=decoder)
    if mixer == "conv1d":
        return parts.Convolution(config.dim, config.kernel, causal=decoder)
    if mixer == "fnet":
        return parts.Fourier()
    is_relative = getattr(config, "positions", None) == "relative"  # a plain StackConfig has no positions
    return build_attention(config, relative=build_relative(config, decoder) if is_relative else None)


def build_attention(config: StackConfig, cross: bool = False, relative: nn.Module | None = None) -> Attention:
    return Attention(
        config.dim,
        Heads(config.num_heads, config.head_width, config.value_dim or config.head_width),
        cross=cross,
        projection=build_projection(config, cross),
        score=build_score(config, cross),
        qk_norm=build_norm(config) if config.qk_norm else None,
        norm=build_norm(config) if config.attn_norm else None,
        output=None if config.projection == "none" else partial(nn.Linear, bias=config.proj_bias),
        relative=relative,
        dropout=config.attention_dropout,
    )


def build_projection(config: StackConfig, cross: bool) -> Projection:
    if config.projection == "none":
        return parts.Unprojected
    if config.qkv_bias and not config.key_bias and not cross:
        return parts.KeylessBias
    return partial(PROJECTIONS[config.projection], bias=config.qkv_bias)


def build_score(config: StackConfig, cross: bool = False) -> Score:
    """The score; windows are between tokens of one sequence, so cross-attention has none."""
    if config.attention != "local":
        return SCORES[config.attention]
    local = partial(parts.Local, window=config.window, dilation=config.dilation, global_tokens=config.global_tokens)
    return parts.ScaledDotProduct if cross else local


def build_relative(config: StackConfig, decoder: bool = False) -> nn.Module:
    """The relative position bias, for positions="relative"."""
    if isinstance(config, ImageConfig):
        return parts.RelativePositions(config.grid, config.num_heads, config.prefix, config.relative_hidden)
    return parts.TextRelativePositions(config.num_heads, causal=decoder)


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
        pos_embed=build_text_table(config),
        scale=config.dim**0.5 if config.scale_embed else 1.0,
        segments=config.segments,
        norm=build_norm(config)(config.dim) if config.embed_norm else None,
        dropout=config.dropout,
    )


def build_text_table(config: StackConfig) -> Tensor | None:
    """The position table of a text, (1,max_len,D), or None."""
    if config.positions == "learned":
        return parts.learned(config.max_len, config.dim)
    if config.positions != "sincos":
        return None
    return parts.sincos_1d(config.max_len, config.dim, interleaved=config.sincos_channels == "interleaved")


def build_text_encoder(config: TextConfig) -> Encoder:
    return Encoder(build_blocks(config), build_last_norm(config), rotary=build_text_rotary(config, config.max_len))


def build_text_rotary(config: StackConfig, max_len: int) -> Rotary | None:
    if config.positions != "rotary":
        return None
    return Rotary((max_len,), config.head_width, theta=TEXT_THETA, pairs=ROTARY_PAIRS[config.rotary_pairs])
