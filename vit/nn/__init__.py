"""Layers and stacks in plain torch: tensors in, tensors out.

Letters in shapes: B batch, N tokens, S memory tokens, T target tokens, D width, H heads, K head width, V vocabulary (in
attention layers the width of a head's values, which is K by default), C channels.
"""

from vit.nn.activations import gelu_tanh, quick_gelu
from vit.nn.attention import Attention, KeylessBias, Sliced, Unprojected, attention_maps, stacked
from vit.nn.block import Block, NoResidualBlock, ParallelBlock, ResPostNormBlock
from vit.nn.cache import Cache, TokenStates
from vit.nn.cpu.linear import apply_linear
from vit.nn.drop import Dropout, DropPath, LayerScale, PatchDropout
from vit.nn.embed import PatchEmbed, Prefix, TokenEmbed
from vit.nn.init import init_weights
from vit.nn.local import Local
from vit.nn.mixers import Convolution, Fourier, Mixer, Recurrent
from vit.nn.mlp import Mlp, SwiGLU
from vit.nn.norm import BatchNorm, LayerNorm, RMSNorm
from vit.nn.pool import AttentionPool, ClassMean, ClassToken, Mean, Pooler, ScorePool, Sum
from vit.nn.position import (
    RelativePositions,
    TextRelativePositions,
    learned,
    resample,
    sincos_1d,
    sincos_2d,
    sincos_2d_simple,
)
from vit.nn.rotary import Interleaved, MixedRotary, Rotary, RotateHalf, Rotation, centred, steps, stretched
from vit.nn.scores import Additive, Bilinear, Cosine, DotProduct, Heads, ScaledDotProduct
from vit.nn.stem import CompactStem, ConvStem, LinearPatches, MaskedConvStem, NormedPatches, PooledConvStem
from vit.nn.transformer import Decoder, Encoder

BranchNormBlock, Halves, Neighbours = ResPostNormBlock, RotateHalf, Interleaved  # aliases: former names

__all__ = [
    "Additive", "Attention", "AttentionPool", "BatchNorm", "Bilinear", "Block", "BranchNormBlock", "Cache",
    "ClassMean", "ClassToken", "CompactStem", "ConvStem", "Convolution", "Cosine", "Decoder", "DotProduct", "DropPath",
    "Dropout",
    "Encoder", "Fourier", "Halves", "Heads", "Interleaved", "KeylessBias", "LayerNorm", "LayerScale", "LinearPatches",
    "Local", "MaskedConvStem", "Mean", "MixedRotary", "Mixer", "Mlp", "Neighbours", "NoResidualBlock",
    "NormedPatches", "ParallelBlock", "PatchDropout", "PatchEmbed", "PooledConvStem", "Pooler", "Prefix", "RMSNorm",
    "Recurrent", "RelativePositions", "ResPostNormBlock", "Rotary", "RotateHalf", "Rotation", "ScaledDotProduct",
    "ScorePool", "Sliced", "Sum", "SwiGLU", "TextRelativePositions", "TokenEmbed", "TokenStates", "Unprojected",
    "apply_linear", "attention_maps", "centred", "gelu_tanh", "init_weights", "learned", "quick_gelu", "resample",
    "sincos_1d", "sincos_2d", "sincos_2d_simple", "stacked", "steps", "stretched",
]
