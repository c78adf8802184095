"""timm's VisionTransformerRelPos: relative positions, in every block or shared by all blocks."""

import re
from typing import Any

from vit.weights.formats.timm.eva import exact_ratio
from vit.weights.renaming import RenamedState

RELATIVE, TIMM_RELATIVE = ".attn.relative.", ".attn.rel_pos."
RELATIVE_RULES = [(r"blocks\.(\d+)" + re.escape(TIMM_RELATIVE), r"encoder.blocks.\1" + RELATIVE)]
SHARED = "shared_rel_pos."
# by the kind of block, which model_args cannot change; they override everything else
ARCHITECTURES = {"serial": "vit_relpos_base_patch16_224", "res_post_norm": "vit_relpos_base_patch16_rpn_224"}
SHARED_ARGUMENTS = ("img_size", "patch_size", "in_chans", "embed_dim", "depth", "num_heads", "class_token",
                    "global_pool", "qkv_bias", "qk_norm")
REQUIRED = {
    "norm": "layer", "norm_eps": 1e-6, "activation": "gelu", "registers": 0, "dist_token": False, "mlp": "mlp",
    "mlp_norm": False, "attn_norm": False, "proj_bias": True, "embed_norm": False, "patch_norm": False,
    "patch_bias": True, "pool_prefix": False,
}


def copy_shared_positions(converted: RenamedState) -> None:
    """Copy positions that all blocks share into each block: the function is the same, but training no longer ties them.
    """
    blocks = sorted({match[0] for name in converted if (match := re.match(r"encoder\.blocks\.\d+\.", name))})
    for name in [name for name in converted if name.startswith(SHARED)]:
        tensor, source = converted.pop(name), converted.sources.pop(name)
        for block in blocks:
            own = f"{block}attn.relative.{name.removeprefix(SHARED)}"
            converted[own], converted.sources[own] = tensor.clone(), source


def relative_values(module: Any) -> dict[str, Any]:
    return {"positions": "relative"} if type(module).__name__ == "VisionTransformerRelPos" else {}


def unsupported_relative_positions(module: Any) -> str | None:
    """What a timm model has for relative positions, unless it is what vit has."""
    attention = getattr(module.blocks[0], "attn", None)
    for part in (getattr(module, "shared_rel_pos", None), getattr(attention, "rel_pos", None)):
        if part is not None and (type(part).__name__ != "RelPosMlp" or part.mode != "cr"):
            return f"relative positions of the class {type(part).__name__}, mode {getattr(part, 'mode', None)}"
    return None


def relative_arguments(config: Any, shared: dict[str, Any]) -> dict[str, Any]:
    """`architecture` and `model_args`; `shared` are VisionTransformer's arguments."""
    return {
        "architecture": ARCHITECTURES[config.block],
        "model_args": {
            **{key: shared[key] for key in SHARED_ARGUMENTS},
            "mlp_ratio": exact_ratio(config.hidden, config.dim),
            "rel_pos_type": "mlp",
            "rel_pos_dim": config.relative_hidden,
            "fc_norm": config.final_norm == "pooled",
            "init_values": config.layer_scale or 0.0,
        },
    }


def missing_in_relative(config: Any) -> str | None:
    """What timm's VisionTransformerRelPos lacks for this config, as the object of a sentence."""
    required = REQUIRED | ({"key_bias": True} if config.qkv_bias else {})
    for key, value in required.items():
        if (own := getattr(config, key)) != value:
            return f"{key}={value} only with relative positions, not {own}"
    if config.block == "parallel":
        return "no parallel blocks with relative positions"
    if config.pool not in ("class", "mean") or config.final_norm == "none":
        return "class token or mean pooling with a last norm only with relative positions"
    return None
