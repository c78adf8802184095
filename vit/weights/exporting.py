"""What the ways out share: whether a network of ours can be one of theirs, and what they write that ours leave out."""

import math
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from vit.nn.position import sincos_2d, sincos_2d_simple
from vit.weights.weight_format import State

FIXED = {"sincos": sincos_2d, "sincos_simple": sincos_2d_simple}
Written = tuple[dict[str, Any], dict[str, Tensor]]  # config.json, and tensors by the names of files
# what the original Vision Transformer is made of, by our config's words
PLAIN = {
    "class_token": (True,), "registers": (0,), "dist_token": (False,), "stem": ("linear",), "patch_bias": (True,),
    "patch_norm": (False,), "embed_norm": (False,), "positions": ("learned", *FIXED, "none"), "norm": ("layer",),
    "block": ("serial",), "pre_norm": (True,), "mlp": ("mlp",), "mlp_norm": (False,), "attn_norm": (False,),
    "proj_bias": (True,), "qk_norm": (False,), "key_bias": (True,), "layer_scale": (None,), "pool": ("class",),
    "final_norm": ("tokens",),
}


def fixed(**other: Any) -> dict[str, Any]:
    """What a network of the original form has, and what another form has in its place; tables are learned in files."""
    return {key: values[0] for key, values in PLAIN.items() if key not in ("pre_norm", "pool")} | other


def require(
    config: Any, whose: str, also: Mapping[str, Collection[Any]] = {}, free: Collection[str] = (), kind: str = "vit"
) -> None:
    """That a network of this config can be theirs; what the config has no word for is not asked.

    Args:
        whose: what theirs is called.
        also: what theirs can have where that is not what the original Vision Transformer has.
        free: what theirs can have in any way.

    Raises:
        ValueError: it cannot; names the first part that theirs lack.
    """
    if config.kind != kind:
        raise ValueError(f"{whose} is an image classifier, but this is a model of kind {config.kind}")
    for key, values in {**PLAIN, **also}.items():
        if key in free or not hasattr(config, key) or (own := getattr(config, key)) in values:
            continue
        raise ValueError(f"{whose} has {key}={' or '.join(map(str, values))} only, but this one has {key}={own}")
    if config.head_width * config.num_heads != config.dim:
        raise ValueError(f"{whose} has heads that split the width, but this one has head_dim={config.head_dim}")


def require_square(config: Any, whose: str) -> None:
    """Raises ValueError where images or patches are not square."""
    for key in ("image_size", "patch_size"):
        if len(set(getattr(config, key))) != 1:
            raise ValueError(f"{whose} has a square {key} only, not {getattr(config, key)}")


def with_table(state: State, config: Any, prefix: int) -> dict[str, Tensor]:
    """The state with positions (1,P+N,D) as others write them, `prefix` rows first: zeros where ours adds nothing."""
    table = state.get("embed.pos_embed")
    if config.positions in FIXED:
        table = FIXED[config.positions](config.grid, config.dim)
    if table is None:
        table = torch.zeros(1, 0, config.dim)
    missing = prefix + math.prod(config.grid) - table.shape[1]
    return {**state, "embed.pos_embed": torch.cat([table.new_zeros(1, missing, config.dim), table], dim=1)}


def scaled(ours: State, config: Any) -> dict[str, Tensor]:
    """The state with a LayerScale in every block, of ones where ours has none."""
    if config.layer_scale is not None:
        return dict(ours)
    ones = {f"encoder.blocks.{i}.ls{j}.gamma": torch.ones(config.dim) for i in range(config.depth) for j in (1, 2)}
    return {**ours, **ones}


def parted(state: State) -> dict[str, Tensor]:
    """The state with queries, keys and values of the blocks apart."""
    apart = {}
    for name, tensor in state.items():
        if ".blocks." in name and name.endswith((".attn.qkv.weight", ".attn.qkv.bias")):
            pieces = tensor.chunk(3)
            apart |= {name.replace(".qkv.", f".{part}."): piece for part, piece in zip("qkv", pieces, strict=True)}
        else:
            apart[name] = tensor
    return apart
