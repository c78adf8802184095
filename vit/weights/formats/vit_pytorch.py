"""vit-pytorch's `ViT` and `SimpleViT`: names and the order of pixels in a patch to ours.

Its attention has no bias beside queries, keys and values; where a projection lacks one too, zeros stand for it.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vit.weights.renaming import Renamed
from vit.weights.weight_format import Format, State

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
COLOURS, HEAD_DIM = 3, 64


def from_vit_pytorch(state: State) -> dict[str, Tensor]:
    """Its names -> ours; pixels of a patch, there (ph,pw,C), become (C,ph,pw)."""
    ours = Renamed(state, RULES)
    patch = patch_size(state)
    for leaf in ("weight", "bias"):
        ours.make(f"embed.proj.before.{leaf}", [f"embed.proj.before.{leaf}"],
                  lambda norm: norm.unflatten(0, patch).permute(2, 0, 1).flatten())
    ours.make("embed.proj.weight", ["embed.proj.weight"],
              lambda matrix: matrix.unflatten(1, patch).permute(0, 3, 1, 2))  # (D,ph*pw*C) -> (D,C,ph,pw)
    for name in ("embed.cls_token", "embed.pos_embed"):
        if name in ours:
            ours.make(name, [name], lambda tokens: tokens.reshape(1, -1, tokens.shape[-1]))  # (1,N,D)
    if "embed.cls_token" in ours and ours["embed.cls_token"].shape[1] == 0:  # how pool="mean" writes that there is none
        del ours["embed.cls_token"], ours.origins["embed.cls_token"]
    for name in [name for name in ours if name.endswith("attn.qkv.weight")]:
        proj = name.replace("qkv", "proj")
        if proj not in ours:  # a single head as wide as the tokens is not projected
            ours.imply(proj, torch.eye(ours[name].shape[1]))
        ours.zeros(proj.replace("weight", "bias"), like=proj)
    return ours


def patch_size(state: State) -> tuple[int, int, int]:
    """(ph,pw,C) of the square colour patches that the projection takes.

    Raises:
        ValueError: there are none of so many numbers.
    """
    numbers = state["to_patch_embedding.2.weight"].shape[1]
    for colours in (COLOURS, 1):
        edge = math.isqrt(numbers // colours)
        if edge * edge * colours == numbers:
            return edge, edge, colours
    raise ValueError(f"to_patch_embedding.2.weight takes {numbers} numbers, which are no square patch of 3 colours or "
                     "1")


def is_vit_pytorch(state: State) -> bool:
    return "to_patch_embedding.2.weight" in state and "transformer.layers.0.0.to_qkv.weight" in state


def facts(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    """Its heads are 64 wide unless somebody said otherwise; `SimpleViT` has fixed positions, which it does not save."""
    inner = state["transformer.layers.0.0.to_qkv.weight"].shape[0] // 3
    if (module := source_config.get("module")) is not None:
        heads = {"num_heads": module.transformer.layers[0][0].heads}
    else:
        heads = {} if inner % HEAD_DIM else {"num_heads": inner // HEAD_DIM}
    positions = {} if "pos_embedding" in state else {"positions": "sincos_simple"}
    pool = "class" if state.get("cls_token") is not None and len(state["cls_token"]) else "mean"
    return {"norm_eps": 1e-5, "activation": "gelu", "pool": pool, **heads, **positions}


VIT_PYTORCH = Format("vit-pytorch", is_vit_pytorch, from_vit_pytorch, facts)
