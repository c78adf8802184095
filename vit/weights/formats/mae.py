"""Masked autoencoders of elsewhere: the names of the original files (arXiv 2111.06377) and of transformers' ViTMAE to
ours, and ours to transformers'.

The encoder's position table becomes a learned one, whatever made it. The decoder's is fixed in all of them: where it is
the one that ours computes, it is left out; any other keeps its name, so that a report shows it as unused.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vit.nn.position import sincos_2d
from vit.weights.exporting import Written, fixed, parted, require, require_square, with_table
from vit.weights.formats.transformers import VIT_BLOCK, dropout_words, image_words, read_config, shared_words, stacked
from vit.weights.renaming import Names, Renamed
from vit.weights.weight_format import Format, State

# the second is how version 5 happens to write files
DECODER_LAYERS = ["decoder.decoder_layers.{}.", "decoder.decoder_encoder.layer.{}."]
TRANSFORMERS = Names([
    ("vit.embeddings.patch_embeddings.projection.", "embed.proj."),
    ("vit.embeddings.cls_token", "embed.cls_token"),
    ("vit.embeddings.position_embeddings", "embed.pos_embed"),
    *stacked(VIT_BLOCK, theirs=["vit.encoder.layer.{}.", "vit.layers.{}."]),
    ("vit.layernorm.", "encoder.norm."),
    ("decoder.decoder_embed.", "decoder.proj."),
    ("decoder.mask_token", "decoder.mask_token"),
    ("decoder.decoder_pos_embed", "decoder_pos_embed"),
    *stacked(VIT_BLOCK, theirs=DECODER_LAYERS, ours="decoder.blocks.{}."),
    ("decoder.decoder_norm.", "decoder.norm."),
    ("decoder.decoder_pred.", "decoder.pixels."),
])
ORIGINAL = Names([
    ("patch_embed.proj.", "embed.proj."),
    ("cls_token", "embed.cls_token"),
    ("pos_embed", "embed.pos_embed"),
    ("blocks.", "encoder.blocks."),
    ("norm.", "encoder.norm."),
    ("decoder_embed.", "decoder.proj."),
    ("mask_token", "decoder.mask_token"),
    ("decoder_blocks.", "decoder.blocks."),
    ("decoder_norm.", "decoder.norm."),
    ("decoder_pred.", "decoder.pixels."),
])
PLACES = "decoder_pos_embed"


def from_mae(state: State) -> dict[str, Tensor]:
    """Names of the original files, or of transformers in memory or on disk -> ours."""
    renamed = Renamed(state, ORIGINAL.ours if "decoder_embed.weight" in state else TRANSFORMERS.ours)
    renamed.fuse(("q", "k", "v"), "qkv")
    if PLACES in renamed and torch.allclose(renamed[PLACES].float(), decoder_places(renamed[PLACES]), atol=1e-4):
        del renamed[PLACES]
    return renamed


def to_mae(state: State, config: Any) -> Written:
    """Our `MaskedAutoencoder` of this config as transformers' `ViTMAEForPreTraining`; fixed tables are written out.

    Raises:
        ValueError: that cannot be this network.
    """
    require(config, "transformers' ViTMAE", kind="mae")
    require_square(config, "transformers' ViTMAE")
    theirs = {TRANSFORMERS.theirs(name): tensor for name, tensor in parted(with_table(state, config, 1)).items()}
    theirs["decoder.decoder_pos_embed"] = with_first(decoder_table(config.grid, config.decoder_dim))
    return {
        "architectures": ["ViTMAEForPreTraining"], "model_type": "vit_mae",
        **shared_words(config), **image_words(config), **dropout_words(config), "qkv_bias": config.qkv_bias,
        "decoder_hidden_size": config.decoder_dim, "decoder_num_hidden_layers": config.decoder_depth,
        "decoder_num_attention_heads": config.decoder_num_heads, "decoder_intermediate_size": config.decoder.hidden,
        "mask_ratio": config.mask_ratio, "norm_pix_loss": config.norm_pixels,
    }, theirs


def declared(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    """Every part of the encoder, as a classifier without a head."""
    if source_config.get("model_type") is None:
        return {}
    return fixed(qkv_bias=source_config.get("qkv_bias", True), num_classes=0)


def is_mae(state: State) -> bool:
    return "decoder_embed.weight" in state or "decoder.decoder_embed.weight" in state


def facts(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    """The classifier that its encoder begins: what config.json says, else what the published ones have."""
    usual = 1e-6 if "decoder_embed.weight" in state else 1e-12
    return {"activation": "gelu", "pool": "class", "norm_eps": usual, **read_config(source_config)}


MAE = Format("masked autoencoder", is_mae, from_mae, facts, {r"decoder[._]": "the decoder of pre-training"},
             declared)


def decoder_table(grid: tuple[int, int], dim: int) -> Tensor:
    """(1,rows*columns,D) as the published decoders have it: the column first."""
    row, column = sincos_2d(grid, dim).chunk(2, dim=-1)
    return torch.cat([column, row], dim=-1)


def with_first(table: Tensor) -> Tensor:
    """(1,N,D) -> (1,1+N,D): the class token stands nowhere."""
    return torch.cat([table.new_zeros(1, 1, table.shape[2]), table], dim=1)


def decoder_places(table: Tensor) -> Tensor:
    """What a decoder's table (1,1+N,D) would be here; itself, turned into nothing, where it is of no square grid."""
    edge = math.isqrt(table.shape[1] - 1)
    if edge * edge != table.shape[1] - 1 or table.shape[2] % 4:
        return torch.full_like(table, math.nan)
    return with_first(decoder_table((edge, edge), table.shape[2]))
