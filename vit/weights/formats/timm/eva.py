"""timm's Eva (EVA-02, DINOv3, rotary ViTs): what its blocks call differently, and the words that build ours there."""

import re
from typing import Any

from torch import Tensor

from vit.weights.renaming import Renamed
from vit.weights.weight_format import State

BLOCK = re.compile(r"(blocks\.\d+\.)(.*)")
LEAVES = {  # ours -> timm's
    "ls1.gamma": "gamma_1",
    "ls2.gamma": "gamma_2",
    "attn.qkv.q_bias": "attn.q_bias",
    "attn.qkv.v_bias": "attn.v_bias",
}
EVA_RULES = [
    *((r"blocks\.(\d+)\." + theirs + "$", r"encoder.blocks.\1." + own) for own, theirs in LEAVES.items()),
    (r"blocks\.(\d+)\.attn\.([qkv])_proj\.", r"encoder.blocks.\1.attn.\2."),
]
# by eps and whether there is LayerScale, which words in a config file cannot undo; everything else is overridden
ARCHITECTURES = {
    (1e-6, False): "eva_giant_patch14_224",
    (1e-6, True): "eva_giant_patch14_224",
    (1e-5, False): "vit_pe_spatial_base_patch16_512",
    (1e-5, True): "vit_small_patch16_dinov3",
}


def join_leaves(ours: Renamed) -> None:
    """What some of its files keep apart: queries, keys and values, or the gate and the value of a SwiGLU."""
    for name in [name for name in ours if name.endswith(".attn.q.bias") and name.startswith("encoder.")]:
        if name.replace(".q.", ".k.") not in ours:  # keys without a bias
            for part in "qv":
                ours.make(name.replace(".q.bias", f".qkv.{part}_bias"), [name.replace(".q.", f".{part}.")], keep)
    ours.fuse(("q", "k", "v"), "qkv", within="encoder.blocks.")
    ours.fuse(("fc1_g", "fc1_x"), "fc1", within="encoder.blocks.")


def keep(tensor: Tensor) -> Tensor:
    return tensor


def their_leaves(state: State, config: Any) -> dict[str, Tensor]:
    """The blocks' parameters as the architecture of `timm_arguments` has them.

    timm keeps gate and value apart in an Eva whose MLPs have a norm, and where patches have one (AIMv2).
    """
    theirs: dict[str, Tensor] = {}
    eva = is_eva(config)
    split = config.mlp == "swiglu" and (config.patch_norm or (eva and config.mlp_norm))
    for name, tensor in state.items():
        found = BLOCK.fullmatch(name)
        block, leaf = found.groups() if found else ("", name)
        if split and leaf in ("mlp.fc1.weight", "mlp.fc1.bias"):
            gate, value = tensor.chunk(2)
            theirs[block + leaf.replace("fc1", "fc1_g")] = gate
            theirs[block + leaf.replace("fc1", "fc1_x")] = value
        else:
            theirs[block + (LEAVES.get(leaf, leaf) if eva else leaf)] = tensor
    return theirs


def is_eva(config: Any) -> bool:
    """Whether a config has parts that timm's VisionTransformer lacks and its Eva has."""
    return config.positions in ("rotary", "learned_rotary") or (config.qkv_bias and not config.key_bias)


def eva_arguments(config: Any, shared: dict[str, Any]) -> dict[str, Any]:
    """The architecture and the words besides those `shared` with a VisionTransformer."""
    scaled = config.layer_scale is not None
    return {
        "architecture": ARCHITECTURES[config.norm_eps, scaled],
        "model_args": {
            **shared,
            "mlp_ratio": ratio(config.hidden, config.dim),
            "swiglu_mlp": config.mlp == "swiglu",
            "swiglu_align_to": 0,
            "scale_mlp": config.mlp_norm,
            "scale_attn_inner": config.attn_norm,
            "attn_type": "rope" if config.key_bias else "eva",
            "qkv_fused": True,
            "num_reg_tokens": config.registers,
            "use_post_norm": config.block == "res_post_norm",
            "use_pre_transformer_norm": config.embed_norm,
            "use_post_transformer_norm": config.final_norm == "tokens",
            "use_fc_norm": config.final_norm == "pooled",
            "use_abs_pos_emb": config.positions not in ("rotary", "none"),
            "dynamic_img_size": False,
            **({"init_values": config.layer_scale} if scaled else {}),
            **(pool_arguments(config) if config.pool == "attention" else {}),
            **rope_arguments(config, scaled),
        },
    }


def pool_arguments(config: Any) -> dict[str, Any]:
    return {
        "attn_pool_num_heads": config.pool_heads or config.num_heads,
        "attn_pool_mlp_ratio": ratio(config.pool_hidden, config.dim),
    }


def ratio(hidden: int, dim: int) -> float:
    """One whose product timm truncates to exactly `hidden`."""
    exact = hidden / dim
    return exact if int(dim * exact) == hidden else (hidden + 0.5) / dim


def rope_arguments(config: Any, scaled: bool) -> dict[str, Any]:
    used = {
        "use_rot_pos_emb": config.positions in ("rotary", "learned_rotary"),
        "rope_temperature": config.rotary_theta,
        "rope_grid_indexing": "xy" if config.rotary_columns_first else "ij",
    }
    if config.rotary_mixed:
        return {**used, "rope_type": "mixed"}
    span = config.rotary_span
    if span is None and config.norm_eps == 1e-5 and not scaled:
        span = config.grid  # its architecture stretches the steps; to their own grid, they stay
    return {
        **used,
        "rope_type": "dinov3" if config.rotary_coordinates == "centred" else "cat",
        "rope_rotate_half": config.rotary_pairs == "rotate_half",
        "rope_grid_offset": config.rotary_offset,
        **({} if span is None else {"ref_feat_shape": list(span)}),
    }
