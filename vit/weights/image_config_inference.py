"""The values of a `VisionTransformerConfig`, inferred from its tensors outside of the blocks."""

import math
from collections.abc import Mapping
from typing import Any

from vit.weights.resizing import square_grids
from vit.weights.weight_format import State

PREFIX_TOKENS = ("embed.cls_token", "embed.dist_token", "embed.reg_token")  # come before the patch tokens


def infer_image_model(state: State, known: Mapping[str, Any]) -> dict[str, Any]:
    """The values of `VisionTransformerConfig` that the blocks do not determine.

    Args:
        known: values that are inferred or stated already.

    Raises:
        ValueError: a tensor has the wrong shape, or a value is neither visible nor stated.
    """
    if (patches := state.get("embed.proj.weight")) is None:
        raise ValueError("the strides of a convolutional stem cannot be inferred from its tensors; load the folder "
                         "with its config.json")
    if patches.ndim != 4 or patches.shape[0] != known["dim"]:
        raise ValueError(f"embed.proj.weight is {tuple(patches.shape)}, but must be ({known['dim']}, channels, "
                         "patch height, patch width)")
    for name in PREFIX_TOKENS:
        if name in state and (state[name].ndim != 3 or state[name].shape[2] != known["dim"]):
            raise ValueError(f"{name} is {tuple(state[name].shape)}, but must be (1, tokens, {known['dim']})")
    tokens = {name: state[name].shape[1] for name in PREFIX_TOKENS if name in state}
    inferred = {
        "kind": "vit",
        "in_chans": patches.shape[1],
        "patch_bias": "embed.proj.bias" in state,
        "patch_norm": "embed.proj.norm.weight" in state,
        "embed_norm": "embed.norm.weight" in state,
        "stem": "normed" if "embed.proj.before.weight" in state else "linear",
        "patch_size": list(patches.shape[2:]),
        "class_token": "embed.cls_token" in tokens,
        "dist_token": "embed.dist_token" in tokens,
        "registers": tokens.get("embed.reg_token", 0),
        "num_classes": state["head.weight"].shape[0] if "head.weight" in state else 0,
        **infer_pool(state, known),
    }
    return inferred | infer_positions(state, {**known, **inferred}, sum(tokens.values()))


def infer_positions(state: State, known: Mapping[str, Any], prefix: int) -> dict[str, Any]:
    """Image size, and whether class token and registers have positions, from the length of the table (1,P+N,D).

    Raises:
        ValueError: there is no table and they are not stated, or its length does not fit.
    """
    if (table := state.get("embed.pos_embed")) is None:
        for key in ("positions", "image_size"):
            if key not in known:
                also = "give image_size=, or " if key == "image_size" else ""
                raise ValueError(f"there is no position table, so that {key} cannot be inferred; {also}load the folder "
                                 "with its config.json")
        return {"positions": known["positions"], "image_size": as_pair(known["image_size"]), "prefix_positions": True}
    if known.get("positions", "learned") not in ("learned", "learned_rotary"):
        raise ValueError(f"positions are {known['positions']} in the source's config, but the tensors have a table")
    if table.ndim != 3 or table.shape[2] != known["dim"]:
        raise ValueError(f"embed.pos_embed is {tuple(table.shape)}, but must be (1, tokens, {known['dim']})")
    length, patch = table.shape[1], known["patch_size"]
    if "image_size" in known:
        image_size = as_pair(known["image_size"])
        grid = tuple(size // edge for size, edge in zip(image_size, patch, strict=True))
        if length - math.prod(grid) not in (0, prefix):
            raise ValueError(f"a position table of {length} rows does not fit image_size {image_size} in patches of "
                             f"{tuple(patch)}: {math.prod(grid)} patches and {prefix} tokens before them")
    else:
        grid = only_square_grid(length, prefix)
    return {
        "positions": known.get("positions", "learned"),
        "image_size": [grid[0] * patch[0], grid[1] * patch[1]],
        "prefix_positions": length > math.prod(grid) or prefix == 0,
    }


def only_square_grid(length: int, prefix: int) -> tuple[int, int]:
    """The square grid of a table of `length` rows, with or without rows for the `prefix` tokens before the patches.

    Raises:
        ValueError: there is none, or both are possible.
    """
    found = square_grids(length, prefix)
    if len(found) != 1:
        grids = "could have two square grids" if found else "has no square grid"
        raise ValueError(f"a position table of {length} rows {grids}; the image size of the source must be stated")
    return found[0]


def infer_pool(state: State, known: Mapping[str, Any]) -> dict[str, Any]:
    """The values of pooling. Attention pooling, the mean beside the class token and the position of the last norm are
    visible in the parameters; otherwise `pool` is as stated, or "class" or "mean" by the parameters that there are.

    Raises:
        ValueError: the parameters belong to no pooling of vit.
    """
    norms = [value for value, name in (("tokens", "encoder.norm.weight"), ("pooled", "pool.norm.weight"))
             if name in state]
    if len(norms) > 1:
        raise ValueError("the tensors have both encoder.norm and pool.norm, but a model has one last norm")
    final_norm = norms[0] if norms else "none"
    if "pool.latent" in state:
        if "pool.mlp.fc1.weight" not in state:
            raise ValueError("pool.latent is there, but not pool.mlp.fc1.weight: attention pooling has an MLP in vit")
        hidden, in_blocks = state["pool.mlp.fc1.weight"].shape[0], round(known["mlp_ratio"] * known["dim"])
        ratio = None if hidden == in_blocks and "pool_mlp_ratio" not in known else hidden / known["dim"]
        return {"pool": "attention", "final_norm": final_norm, "pool_mlp_ratio": ratio}
    usual = "class" if "embed.cls_token" in state and final_norm != "pooled" else "mean"
    if (head := state.get("head.weight")) is not None and head.shape[1] == 2 * known["dim"]:
        return {"pool": "class_mean", "final_norm": final_norm}
    return {"pool": known.get("pool", usual), "final_norm": final_norm}


def as_pair(size: Any) -> list[int]:
    return [size, size] if isinstance(size, int) else [int(edge) for edge in size]
