"""Ground floor: layers and stacks in plain torch, tensors in, tensors out.

Letters in shapes: B batch, N tokens, S memory tokens, T target tokens, D width, H heads, K head width, V vocabulary,
C channels.
"""

from vit.nn.attention import Attention, attention_maps
from vit.nn.block import Block
from vit.nn.cache import Cache
from vit.nn.drop import Dropout, DropPath, LayerScale, PatchDropout
from vit.nn.embed import ConvStem, LinearPatches, MaskedConvStem, PatchEmbed, TokenEmbed
from vit.nn.init import init_weights
from vit.nn.local import LocalAttention
from vit.nn.mlp import Mlp, SwiGLU
from vit.nn.norm import LayerNorm, RMSNorm
from vit.nn.pool import AttentionPool, ClassToken, Mean, Pooler, ScorePool, Sum
from vit.nn.position import Rotary, learned, resample, rotate, sincos_1d, sincos_2d
from vit.nn.scores import Additive, Bilinear, Cosine, DotProduct
from vit.nn.transformer import Decoder, Encoder

__all__ = [
    "Additive", "Attention", "AttentionPool", "Bilinear", "Block", "Cache", "ClassToken", "ConvStem", "Cosine",
    "Decoder", "DotProduct", "DropPath", "Dropout", "Encoder", "LayerNorm", "LayerScale", "LinearPatches",
    "LocalAttention", "MaskedConvStem", "Mean", "Mlp", "PatchDropout", "PatchEmbed", "Pooler", "RMSNorm", "Rotary",
    "ScorePool", "Sum", "SwiGLU", "TokenEmbed", "attention_maps", "init_weights", "learned", "resample", "rotate",
    "sincos_1d", "sincos_2d",
]
