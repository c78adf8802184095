"""Masked autoencoders (arXiv 2111.06377): import of the original files and of transformers' ViTMAE, export as ViTMAE.

The encoder's position table is imported as a learned one, even if it was computed. The decoder's table is fixed: it is
dropped if it equals the one that vit computes, otherwise it keeps its name, so that the key report lists it as unused.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vit.nn.position import sincos_2d
from vit.weights.export_checks import (
    ForeignWeights,
    check_exportable,
    check_square,
    original_vit_config,
    split_qkv,
    with_position_table,
)
from vit.weights.formats.transformers import VIT_BLOCK, block_pairs
from vit.weights.formats.transformers_config import common_config, dropout_config, image_config, parse_config
from vit.weights.renaming import NameMap, RenamedState
from vit.weights.weight_format import State, WeightFormat

DECODER_LAYERS = ["decoder.decoder_layers.{}.", "decoder.decoder_encoder.layer.{}."]  # the second by transformers 5
TRANSFORMERS = NameMap([
    ("vit.embeddings.patch_embeddings.projection.", "embed.proj."),
    ("vit.embeddings.cls_token", "embed.cls_token"),
    ("vit.embeddings.position_embeddings", "embed.pos_embed"),
    *block_pairs(VIT_BLOCK, ["vit.encoder.layer.{}.", "vit.layers.{}."]),
    ("vit.layernorm.", "encoder.norm."),
    ("decoder.decoder_embed.", "decoder.proj."),
    ("decoder.mask_token", "decoder.mask_token"),
    ("decoder.decoder_pos_embed", "decoder_pos_embed"),
    *block_pairs(VIT_BLOCK, DECODER_LAYERS, "decoder.blocks.{}."),
    ("decoder.decoder_norm.", "decoder.norm."),
    ("decoder.decoder_pred.", "decoder.pixels."),
])
ORIGINAL = NameMap([
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
DECODER_TABLE = "decoder_pos_embed"


def from_mae(state: State) -> RenamedState:
    """The state under vit's names, from the original files or from transformers, in memory or on disk."""
    converted = RenamedState(state, (ORIGINAL if "decoder_embed.weight" in state else TRANSFORMERS).to_vit)
    converted.fuse(("q", "k", "v"), "qkv")
    if (table := converted.get(DECODER_TABLE)) is not None and is_vit_decoder_table(table):
        del converted[DECODER_TABLE]
    return converted


def to_mae(state: State, config: Any) -> ForeignWeights:
    """A `MaskedAutoencoder` as transformers' `ViTMAEForPreTraining`, with the fixed position tables.

    Raises:
        ValueError: the config has a part that ViTMAE lacks.
    """
    check_exportable(config, "transformers' ViTMAE", kind="mae")
    check_square(config, "transformers' ViTMAE")
    converted = split_qkv(with_position_table(state, config, 1))
    foreign = {TRANSFORMERS.to_foreign(name): tensor for name, tensor in converted.items()}
    table = sincos_2d(config.grid, config.decoder_dim, columns_first=True)
    foreign["decoder.decoder_pos_embed"] = with_class_position(table)
    return {
        "architectures": ["ViTMAEForPreTraining"], "model_type": "vit_mae",
        **common_config(config), **image_config(config), **dropout_config(config), "qkv_bias": config.qkv_bias,
        "decoder_hidden_size": config.decoder_dim, "decoder_num_hidden_layers": config.decoder_depth,
        "decoder_num_attention_heads": config.decoder_num_heads, "decoder_intermediate_size": config.decoder.hidden,
        "mask_ratio": config.mask_ratio, "norm_pix_loss": config.norm_pixels,
    }, foreign


def declared_config(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    """The declared config of the encoder, as a classifier without a head."""
    if source_config.get("model_type") is None:
        return {}
    return original_vit_config(qkv_bias=source_config.get("qkv_bias", True), num_classes=0)


def is_mae(state: State) -> bool:
    return "decoder_embed.weight" in state or "decoder.decoder_embed.weight" in state


def config_values(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    """Config values of a classifier with this encoder: those of config.json, and for missing ones those of the
    published models.
    """
    norm_eps = 1e-6 if "decoder_embed.weight" in state else 1e-12
    return {"activation": "gelu", "pool": "class", "norm_eps": norm_eps, **parse_config(source_config)}


EXCLUDED = {r"decoder[._]": "the decoder of pre-training"}
MAE = WeightFormat("masked autoencoder", is_mae, from_mae, config_values, EXCLUDED, declared_config)


def with_class_position(table: Tensor) -> Tensor:
    """(1,N,D) -> (1,1+N,D): zeros for the class token."""
    return torch.cat([table.new_zeros(1, 1, table.shape[2]), table], dim=1)


def is_vit_decoder_table(table: Tensor) -> bool:
    """Whether a decoder's table (1,1+N,D) is the one that vit computes for a square grid."""
    edge = math.isqrt(table.shape[1] - 1)
    if edge * edge != table.shape[1] - 1 or table.shape[2] % 4:
        return False
    expected = sincos_2d((edge, edge), table.shape[2], columns_first=True)
    return torch.allclose(table.float(), with_class_position(expected), atol=1e-4)
