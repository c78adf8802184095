"""timm's VisionTransformerRelPos: positions relative to each other, in every block or one for all."""

import re
from typing import Any

from vit.weights.formats.timm.eva import ratio
from vit.weights.renaming import Renamed

RELATIVE, THEIR_RELATIVE = ".attn.relative.", ".attn.rel_pos."
RELATIVE_RULES = [(r"blocks\.(\d+)" + re.escape(THEIR_RELATIVE), r"encoder.blocks.\1" + RELATIVE)]
SHARED = "shared_rel_pos."
# by the blocks, which no word in a config file can choose; everything else is overridden
ARCHITECTURES = {"serial": "vit_relpos_base_patch16_224", "res_post_norm": "vit_relpos_base_patch16_rpn_224"}


def spread_shared(ours: Renamed) -> None:
    """What all blocks share, given to each: they compute the same, though they no longer learn together."""
    blocks = sorted({found[0] for name in ours if (found := re.match(r"encoder\.blocks\.\d+\.", name))})
    for name in [name for name in ours if name.startswith(SHARED)]:
        tensor, theirs = ours.pop(name), ours.origins.pop(name)
        for block in blocks:
            own = f"{block}attn.relative.{name.removeprefix(SHARED)}"
            ours[own], ours.origins[own] = tensor.clone(), theirs


def relative_facts(module: Any) -> dict[str, Any]:
    return {"positions": "relative"} if type(module).__name__ == "VisionTransformerRelPos" else {}


def beyond_our_relative(module: Any) -> str | None:
    """What the relative positions of a timm model are that ours are not."""
    attention = getattr(module.blocks[0], "attn", None)
    for part in (getattr(module, "shared_rel_pos", None), getattr(attention, "rel_pos", None)):
        if part is not None and (type(part).__name__ != "RelPosMlp" or part.mode != "cr"):
            return f"relative positions of the form {type(part).__name__}, mode {getattr(part, 'mode', None)}"
    return None


def relative_arguments(config: Any, shared: dict[str, Any]) -> dict[str, Any]:
    """The architecture and the words besides those `shared` with a VisionTransformer."""
    known = ("img_size", "patch_size", "in_chans", "embed_dim", "depth", "num_heads", "class_token", "global_pool",
             "qkv_bias", "qk_norm")
    return {
        "architecture": ARCHITECTURES[config.block],
        "model_args": {
            **{key: shared[key] for key in known},
            "mlp_ratio": ratio(config.hidden, config.dim),
            "rel_pos_type": "mlp",
            "rel_pos_dim": config.relative_hidden,
            "fc_norm": config.final_norm == "pooled",
            "init_values": config.layer_scale or 0.0,
        },
    }


def beyond_timms_relative(config: Any) -> str | None:
    """What timm's VisionTransformerRelPos lacks for this config."""
    wanted = {"norm": "layer", "norm_eps": 1e-6, "activation": "gelu", "registers": 0, "dist_token": False,
              "mlp": "mlp", "mlp_norm": False, "attn_norm": False, "proj_bias": True, "embed_norm": False,
              "patch_norm": False, "patch_bias": True, "pool_prefix": False}
    if config.qkv_bias:
        wanted["key_bias"] = True
    for key, value in wanted.items():
        if (own := getattr(config, key)) != value:
            return f"{key}={value} only where positions are relative, not {own}"
    if config.block == "parallel":
        return "no parallel blocks where positions are relative"
    if config.pool not in ("class", "mean") or config.final_norm == "none":
        return "the class token's or a mean's pooling and a last norm where positions are relative"
    return None
