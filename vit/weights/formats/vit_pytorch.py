"""vit-pytorch's `ViT` and `SimpleViT` (arXiv 2205.01580), of all its releases from 0.0.5 on: import.

Names and parts changed over the years, and much code copies an old release:

- attention and MLP in wrappers, `layers.0.0.fn.fn.to_qkv` until 0.9, `layers.0.0.fn.to_qkv` until 1.5, then bare;
- the patch embedding `patch_to_embedding` until 0.6, `to_patch_embedding.1` until 0.40, between two norms since 1.0;
- the last norm in `mlp_head.0` or `linear_head.0` until 1.5, in `transformer.norm` since 1.6;
- scores divided by sqrt(dim) until 0.6.7, as those with `patch_to_embedding` are here, by sqrt(head width) since;
- a head of two layers until 0.2, which vit does not support.

Attention has no bias for queries, keys and values; projections without a bias get zeros.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vit.weights.renaming import RenamedState, RenameRules
from vit.weights.weight_format import State, WeightFormat

LAYER = r"transformer\.layers\.(\d+)\."
RULES = [
    (r"cls_token$", "embed.cls_token"),
    (r"pos_embedding$", "embed.pos_embed"),
    (LAYER + r"0\.(?:fn\.)?norm\.", r"encoder.blocks.\1.norm1."),
    (LAYER + r"0\.(?:fn\.)*to_qkv\.", r"encoder.blocks.\1.attn.qkv."),
    (LAYER + r"0\.(?:fn\.)*to_out\.(?:0\.)?", r"encoder.blocks.\1.attn.proj."),
    (LAYER + r"1\.(?:fn\.)?norm\.", r"encoder.blocks.\1.norm2."),
    (LAYER + r"1\.(?:fn\.)+net\.0\.", r"encoder.blocks.\1.mlp.fc1."),
    (LAYER + r"1\.(?:fn\.)+net\.[23]\.", r"encoder.blocks.\1.mlp.fc2."),
    (LAYER + r"1\.net\.0\.", r"encoder.blocks.\1.norm2."),
    (LAYER + r"1\.net\.1\.", r"encoder.blocks.\1.mlp.fc1."),
    (LAYER + r"1\.net\.[34]\.", r"encoder.blocks.\1.mlp.fc2."),
    (r"transformer\.norm\.", "encoder.norm."),
    (r"(?:mlp|linear)_head\.(?=weight|bias)", "head."),
]
NORMED_PATCHES = [
    (r"to_patch_embedding\.1\.", "embed.proj.before."),
    (r"to_patch_embedding\.2\.", "embed.proj."),
    (r"to_patch_embedding\.3\.", "embed.proj.after."),
]
NORM_IN_HEAD, HEAD_AFTER_NORM = r"(?:mlp|linear)_head\.0\.", (r"(?:mlp|linear)_head\.1\.", "head.")
FIRST = "transformer.layers.0.0."
ATTENTION = (f"{FIRST}to_qkv.weight", f"{FIRST}fn.to_qkv.weight", f"{FIRST}fn.fn.to_qkv.weight")
OLDEST_PATCHES = "patch_to_embedding.weight"
COLOUR_CHANNELS = 3
HEAD_DIM = 64  # the library's default


def from_vit_pytorch(state: State) -> RenamedState:
    """The state under vit's names; the pixels of a patch (ph,pw,C) are reordered to (C,ph,pw).

    Raises:
        ValueError: patches are not square.
    """
    converted = RenamedState(state, rename_rules(state))
    patch = patch_shape(state)
    for leaf in ("weight", "bias"):
        if (name := f"embed.proj.before.{leaf}") in converted:
            converted.make(name, [name], lambda norm: norm.unflatten(0, patch).permute(2, 0, 1).flatten())
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


def rename_rules(state: State) -> RenameRules:
    """The rename rules for blocks, patch embedding and head of the release of vit-pytorch that saved the state."""
    normed = "to_patch_embedding.2.weight" in state
    patches = NORMED_PATCHES if normed else [(r"(?:to_patch_embedding\.1|patch_to_embedding)\.", "embed.proj.")]
    norm = state.get("mlp_head.0.weight", state.get("linear_head.0.weight"))
    if norm is None or norm.ndim != 1:  # a matrix in releases whose head has two layers and no norm
        return RULES + patches
    last = "encoder.norm." if has_class_token(state) else "pool.norm."  # after pooling, which is the same for it
    head = [HEAD_AFTER_NORM] if last_layer(state) == 1 else []
    return RULES + patches + [(NORM_IN_HEAD, last), *head]


def last_layer(state: State) -> int:
    """The number of the last layer in the sequence of the head."""
    parts = [name.split(".") for name in state if name.startswith(("mlp_head.", "linear_head."))]
    return max((int(part[1]) for part in parts if part[1].isdigit()), default=0)


def has_class_token(state: State) -> bool:
    return state.get("cls_token") is not None and len(state["cls_token"]) > 0


def projection(state: State) -> Tensor:
    """The matrix of the patch embedding, (D,ph*pw*C)."""
    names = ("to_patch_embedding.2.weight", "to_patch_embedding.1.weight", OLDEST_PATCHES)
    return next(state[name] for name in names if name in state)


def patch_shape(state: State) -> tuple[int, int, int]:
    """(ph,pw,C) of a patch, which is assumed to be square, RGB if possible and else of one channel.

    Raises:
        ValueError: the number of inputs of the projection fits neither.
    """
    inputs = projection(state).shape[1]
    for channels in (COLOUR_CHANNELS, 1):
        edge = math.isqrt(inputs // channels)
        if edge * edge * channels == inputs:
            return edge, edge, channels
    raise ValueError(f"the patch embedding has {inputs} inputs, which are not a square patch of 3 channels or of 1")


def is_vit_pytorch(state: State) -> bool:
    patches = [state.get(name) for name in ("to_patch_embedding.2.weight", "to_patch_embedding.1.weight",
                                            OLDEST_PATCHES)]
    return any(name in state for name in ATTENTION) and any(each is not None and each.ndim == 2 for each in patches)


def config_values(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    """Heads are assumed to be 64 wide, the library's default since 0.3; `SimpleViT` has fixed positions, which it does
    not save.

    Raises:
        ValueError: a model in memory averages its class token with the patches.
    """
    qkv = next(state[name] for name in ATTENTION if name in state)
    inner, module = qkv.shape[0] // 3, source_config.get("module")
    two_layers = last_layer(state) > 1  # releases before 0.3, whose heads had dim / heads channels
    heads = {} if inner % HEAD_DIM or two_layers else {"num_heads": inner // HEAD_DIM}
    if module is not None:
        heads = {"num_heads": next(part.heads for part in module.modules() if hasattr(part, "heads"))}
        if getattr(module, "pool", "cls") == "mean" and has_class_token(state):
            raise ValueError("the model averages its class token with the patches (pool='mean' of vit-pytorch before "
                             "1.26), which vit does not support")
    positions = {} if "pos_embedding" in state else {"positions": "sincos_simple"}
    pool = "class" if has_class_token(state) else "mean"
    return {"norm_eps": 1e-5, "activation": "gelu", "pool": pool, **heads, **positions}


def with_heads(converted: dict[str, Tensor], state: State, num_heads: int) -> dict[str, Tensor]:
    """Releases that divide scores by sqrt(dim) instead of sqrt(K): the queries are multiplied by sqrt(K / dim)."""
    if OLDEST_PATCHES not in state:
        return converted
    for name in [name for name in converted if name.endswith("attn.qkv.weight")]:
        inner, dim = converted[name].shape[0] // 3, converted[name].shape[1]
        scaled = converted[name].clone()
        scaled[:inner] *= math.sqrt(inner / num_heads / dim)
        converted[name] = scaled
    return converted


def assumptions(state: State) -> list[str]:
    notes = []
    if has_class_token(state):
        notes.append("the class token is read, as by pool='cls'; pool='mean' of vit-pytorch is not visible in tensors")
    if OLDEST_PATCHES in state:
        notes.append("scores are divided by sqrt(dim), as in vit-pytorch up to 0.6.7")
    return notes


VIT_PYTORCH = WeightFormat("vit-pytorch", is_vit_pytorch, from_vit_pytorch, config_values, assumptions=assumptions,
                           with_heads=with_heads)
