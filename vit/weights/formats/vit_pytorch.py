"""vit-pytorch's `ViT` and `SimpleViT` (arXiv 2205.01580): import.

Its attention has no bias for queries, keys and values; projections without a bias get zeros.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch

from vit.weights.renaming import RenamedState
from vit.weights.weight_format import State, WeightFormat

LAYER = r"transformer\.layers\.(\d+)\."
RULES = [
    (r"cls_token$", "embed.cls_token"),
    (r"pos_embedding$", "embed.pos_embed"),
    (r"to_patch_embedding\.1\.", "embed.proj.before."),
    (r"to_patch_embedding\.2\.", "embed.proj."),
    (r"to_patch_embedding\.3\.", "embed.proj.after."),
    (LAYER + r"0\.norm\.", r"encoder.blocks.\1.norm1."),
    (LAYER + r"0\.to_qkv\.", r"encoder.blocks.\1.attn.qkv."),
    (LAYER + r"0\.to_out\.(?:0\.)?", r"encoder.blocks.\1.attn.proj."),
    (LAYER + r"1\.net\.0\.", r"encoder.blocks.\1.norm2."),
    (LAYER + r"1\.net\.1\.", r"encoder.blocks.\1.mlp.fc1."),
    (LAYER + r"1\.net\.[34]\.", r"encoder.blocks.\1.mlp.fc2."),
    (r"transformer\.norm\.", "encoder.norm."),
    (r"(?:mlp|linear)_head\.(?=weight|bias)", "head."),
]
COLOUR_CHANNELS = 3
HEAD_DIM = 64  # the library's default


def from_vit_pytorch(state: State) -> RenamedState:
    """The state under vit's names; the pixels of a patch (ph,pw,C) are reordered to (C,ph,pw).

    Raises:
        ValueError: patches are not square.
    """
    converted = RenamedState(state, RULES)
    patch = patch_shape(state)
    for leaf in ("weight", "bias"):
        converted.make(f"embed.proj.before.{leaf}", [f"embed.proj.before.{leaf}"],
                       lambda norm: norm.unflatten(0, patch).permute(2, 0, 1).flatten())
    converted.make("embed.proj.weight", ["embed.proj.weight"],
                   lambda matrix: matrix.unflatten(1, patch).permute(0, 3, 1, 2))  # (D,ph*pw*C) -> (D,C,ph,pw)
    for name in ("embed.cls_token", "embed.pos_embed"):
        if name in converted:
            converted.make(name, [name], lambda tokens: tokens.reshape(1, -1, tokens.shape[-1]))  # (1,N,D)
    if "embed.cls_token" in converted and converted["embed.cls_token"].shape[1] == 0:  # a model with pool="mean"
        del converted["embed.cls_token"], converted.sources["embed.cls_token"]
    for name in [name for name in converted if name.endswith("attn.qkv.weight")]:
        proj = name.replace("qkv", "proj")
        if proj not in converted:  # a single head as wide as the tokens has no projection
            converted.add_implied(proj, torch.eye(converted[name].shape[1]))
        converted.add_zero_bias(proj.replace("weight", "bias"), weight=proj)
    return converted


def patch_shape(state: State) -> tuple[int, int, int]:
    """(ph,pw,C) of a patch, which is assumed to be square, RGB if possible and else of one channel.

    Raises:
        ValueError: the number of inputs of the projection fits neither.
    """
    inputs = state["to_patch_embedding.2.weight"].shape[1]
    for channels in (COLOUR_CHANNELS, 1):
        edge = math.isqrt(inputs // channels)
        if edge * edge * channels == inputs:
            return edge, edge, channels
    raise ValueError(f"to_patch_embedding.2.weight has {inputs} inputs, which are not a square patch of 3 channels or "
                     "of 1")


def is_vit_pytorch(state: State) -> bool:
    return "to_patch_embedding.2.weight" in state and "transformer.layers.0.0.to_qkv.weight" in state


def config_values(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    """Heads are assumed to be 64 wide, the library's default; `SimpleViT` has fixed positions, which it does not save.
    """
    inner = state["transformer.layers.0.0.to_qkv.weight"].shape[0] // 3
    if (module := source_config.get("module")) is not None:
        heads = {"num_heads": module.transformer.layers[0][0].heads}
    else:
        heads = {} if inner % HEAD_DIM else {"num_heads": inner // HEAD_DIM}
    positions = {} if "pos_embedding" in state else {"positions": "sincos_simple"}
    pool = "class" if state.get("cls_token") is not None and len(state["cls_token"]) else "mean"
    return {"norm_eps": 1e-5, "activation": "gelu", "pool": pool, **heads, **positions}


VIT_PYTORCH = WeightFormat("vit-pytorch", is_vit_pytorch, from_vit_pytorch, config_values)
