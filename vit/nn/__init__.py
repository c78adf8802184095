"""Layers and stacks in plain torch: tensors in, tensors out.

Letters in shapes: B batch, N tokens, S memory tokens, T target tokens, D width, H heads, K head width, V vocabulary,
C channels.
"""

from vit.nn.attention import Attention, attention_maps
from vit.nn.block import Block, ParallelBlock, ResPostNormBlock
from vit.nn.cache import Cache
from vit.nn.cpu import apply_linear
from vit.nn.drop import Dropout, DropPath, LayerScale, PatchDropout
from vit.nn.embed import PatchEmbed, TokenEmbed
from vit.nn.init import init_weights
from vit.nn.local import LocalAttention
from vit.nn.mlp import Mlp, SwiGLU, quick_gelu
from vit.nn.norm import LayerNorm, RMSNorm
from vit.nn.pool import AttentionPool, ClassMean, ClassToken, Mean, Pooler, ScorePool, Sum
from vit.nn.position import (
    Interleaved,
    MixedRotary,
    Rotary,
    RotateHalf,
    Rotation,
    centred,
    learned,
    resample,
    sincos_1d,
    sincos_2d,
    sincos_2d_simple,
    steps,
    stretched,
)
from vit.nn.relative import RelativePositions
from vit.nn.scores import Additive, Bilinear, Cosine, DotProduct
from vit.nn.stem import ConvStem, LinearPatches, MaskedConvStem, NormedPatches, PooledConvStem
from vit.nn.transformer import Decoder, Encoder

BranchNormBlock, Halves, Neighbours = ResPostNormBlock, RotateHalf, Interleaved  # former names, kept as aliases

__all__ = [
    "Additive", "Attention", "AttentionPool", "Bilinear", "Block", "BranchNormBlock", "Cache", "ClassMean",
    "ClassToken", "ConvStem", "Cosine", "Decoder", "DotProduct", "DropPath", "Dropout", "Encoder", "Halves",
    "Interleaved", "LayerNorm", "LayerScale", "LinearPatches", "LocalAttention", "MaskedConvStem", "Mean",
    "MixedRotary", "Mlp", "Neighbours", "NormedPatches", "ParallelBlock", "PatchDropout", "PatchEmbed",
    "PooledConvStem", "Pooler", "RMSNorm", "RelativePositions", "ResPostNormBlock", "Rotary", "RotateHalf", "Rotation",
    "ScorePool", "Sum", "SwiGLU", "TokenEmbed",
    "apply_linear", "attention_maps", "centred", "init_weights", "learned", "quick_gelu", "resample", "sincos_1d",
    "sincos_2d", "sincos_2d_simple", "steps", "stretched",
]
