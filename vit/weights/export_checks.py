"""What exports have in common: whether a model fits the foreign architecture, and tensors that vit does not store."""

import math
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from vit.nn.position import SINCOS_TABLES, fixed_table
from vit.weights.weight_format import State

ForeignWeights = tuple[dict[str, Any], dict[str, Tensor]]  # config.json, and tensors by their names in the file
SCALED_ATTENTION = {  # required by every foreign architecture: the blocks of arXiv 1706.03762, and unscaled embeddings
    "mixer": ("attention",), "decoder_mixer": (None, "attention"), "attention": ("scaled",),
    "projection": ("linear",), "value_dim": (None,), "residual": (True,), "scale_embed": (False,),
}
# config values of the original Vision Transformer (arXiv 2010.11929); the first one is that of its files
ORIGINAL_VIT = {
    "class_token": (True,), "registers": (0,), "dist_token": (False,), "stem": ("linear",), "patch_bias": (True,),
    "patch_norm": (False,), "embed_norm": (False,), "positions": ("learned", *SINCOS_TABLES, "none"),
    "norm": ("layer",), "block": ("serial",), "pre_norm": (True,), "mlp": ("mlp",), "mlp_norm": (False,),
    "attn_norm": (False,), "proj_bias": (True,), "qk_norm": (False,), "key_bias": (True,), "layer_scale": (None,),
    "pool": ("class",), "final_norm": ("tokens",), **SCALED_ATTENTION,
}


def original_vit_config(**changes: Any) -> dict[str, Any]:
    """Config values of a file of the original architecture, with the changes of another one."""
    stored = [key for key in ORIGINAL_VIT if key not in ("pre_norm", "pool", *SCALED_ATTENTION)]
    return {key: ORIGINAL_VIT[key][0] for key in stored} | changes


def check_exportable(
    config: Any, target: str, allowed: Mapping[str, Collection[Any]] = {}, ignored: Collection[str] = (),
    kind: str = "vit",
) -> None:
    """Checks that a model with this config can be exported as `target`; keys that it does not have are not checked.

    Args:
        target: its name in the error message.
        allowed: key -> values that the target supports, where they differ from the original Vision Transformer's.
        ignored: keys whose every value the target supports.

    Raises:
        ValueError: it cannot; names the first part that the target lacks.
    """
    if config.kind != kind:
        raise ValueError(f"{target} is an image classifier, but this is a model of kind {config.kind}")
    for key, values in {**ORIGINAL_VIT, **allowed}.items():
        if key in ignored or not hasattr(config, key) or (own := getattr(config, key)) in values:
            continue
        raise ValueError(f"{target} supports only {key}={' or '.join(map(str, values))}, but this model has "
                         f"{key}={own}")
    if config.head_width * config.num_heads != config.dim:
        raise ValueError(f"{target} supports only heads of width dim / num_heads, but this model has "
                         f"{config.num_heads} heads of width {config.head_width}")


def check_square(config: Any, target: str) -> None:
    """Checks that images and patches are square.

    Raises:
        ValueError: they are not.
    """
    for key in ("image_size", "patch_size"):
        if len(set(getattr(config, key))) != 1:
            raise ValueError(f"{target} supports only a square {key}, not {getattr(config, key)}")


def with_position_table(state: State, config: Any, prefix: int) -> dict[str, Tensor]:
    """The state with a position table (1,P+N,D) that has rows for `prefix` tokens: fixed tables are computed, missing
    rows are zero.
    """
    table = state.get("embed.pos_embed")
    if config.positions in SINCOS_TABLES:
        table = fixed_table(config.positions, config.grid, config.dim, config.sincos_channels)
    if table is None:
        table = torch.zeros(1, 0, config.dim)
    missing = prefix + math.prod(config.grid) - table.shape[1]
    return {**state, "embed.pos_embed": torch.cat([table.new_zeros(1, missing, config.dim), table], dim=1)}


def with_layer_scale(state: State, config: Any) -> dict[str, Tensor]:
    """The state with a LayerScale (D,) in every block: ones where the model has none."""
    if config.layer_scale is not None:
        return dict(state)
    ones = {f"encoder.blocks.{i}.ls{j}.gamma": torch.ones(config.dim) for i in range(config.depth) for j in (1, 2)}
    return {**state, **ones}


def split_qkv(state: State) -> dict[str, Tensor]:
    """The state with separate queries, keys and values in the blocks: qkv (3*H*K,D) -> q, k, v (H*K,D)."""
    split = {}
    for name, tensor in state.items():
        if ".blocks." in name and name.endswith((".attn.qkv.weight", ".attn.qkv.bias")):
            pieces = tensor.chunk(3)
            split |= {name.replace(".qkv.", f".{part}."): piece for part, piece in zip("qkv", pieces, strict=True)}
        else:
            split[name] = tensor
    return split
