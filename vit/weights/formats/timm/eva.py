"""timm's Eva (EVA-02, DINOv3, rotary ViTs): parameters that its blocks name differently, and arguments to build it."""

import re
from typing import Any

from torch import Tensor

from vit.weights.renaming import RenamedState
from vit.weights.weight_format import State

BLOCK = re.compile(r"(blocks\.\d+\.)(.*)")
LEAVES = {  # vit -> timm
    "ls1.gamma": "gamma_1",
    "ls2.gamma": "gamma_2",
    "attn.qkv.q_bias": "attn.q_bias",
    "attn.qkv.v_bias": "attn.v_bias",
}
EVA_RULES = [
    *((r"blocks\.(\d+)\." + leaf + "$", r"encoder.blocks.\1." + own) for own, leaf in LEAVES.items()),
    (r"blocks\.(\d+)\.attn\.([qkv])_proj\.", r"encoder.blocks.\1.attn.\2."),
]
# by norm_eps and whether there is LayerScale, which model_args cannot change; they override everything else
ARCHITECTURES = {
    (1e-6, False): "eva_giant_patch14_224",
    (1e-6, True): "eva_giant_patch14_224",
    (1e-5, False): "vit_pe_spatial_base_patch16_512",
    (1e-5, True): "vit_small_patch16_dinov3",
}


def fuse_eva_matrices(converted: RenamedState) -> None:
    """Fuse queries, keys and values, and gate and value of a SwiGLU, in the models that store them separately."""
    for name in [name for name in converted if name.endswith(".attn.q.bias") and name.startswith("encoder.")]:
        if name.replace(".q.", ".k.") not in converted:  # keys without a bias
            for part in "qv":
                converted.rename(name.replace(".q.", f".{part}."), name.replace(".q.bias", f".qkv.{part}_bias"))
    converted.fuse(("q", "k", "v"), "qkv", prefix="encoder.blocks.")
    converted.fuse(("fc1_g", "fc1_x"), "fc1", prefix="encoder.blocks.")


def to_timm_leaves(state: State, config: Any) -> dict[str, Tensor]:
    """The parameters of the blocks as in the architecture that `timm_arguments` names.

    timm stores gate and value separately in an Eva whose MLPs have a norm, and in models with a norm of the patches
    (AIMv2).
    """
    foreign: dict[str, Tensor] = {}
    eva = is_eva(config)
    split = config.mlp == "swiglu" and (config.patch_norm or (eva and config.mlp_norm))
    for name, tensor in state.items():
        match = BLOCK.fullmatch(name)
        block, leaf = match.groups() if match else ("", name)
        if split and leaf in ("mlp.fc1.weight", "mlp.fc1.bias"):
            gate, value = tensor.chunk(2)
            foreign[block + leaf.replace("fc1", "fc1_g")] = gate
            foreign[block + leaf.replace("fc1", "fc1_x")] = value
        else:
            foreign[block + (LEAVES.get(leaf, leaf) if eva else leaf)] = tensor
    return foreign


def is_eva(config: Any) -> bool:
    """Whether a config has parts that timm's VisionTransformer lacks and its Eva has."""
    return config.positions in ("rotary", "learned_rotary") or (config.qkv_bias and not config.key_bias)


def eva_arguments(config: Any, shared: dict[str, Any]) -> dict[str, Any]:
    """`architecture` and `model_args`; `shared` are the arguments that VisionTransformer has as well."""
    has_layer_scale = config.layer_scale is not None
    return {
        "architecture": ARCHITECTURES[config.norm_eps, has_layer_scale],
        "model_args": {
            **shared,
            "mlp_ratio": exact_ratio(config.hidden, config.dim),
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
            **({"init_values": config.layer_scale} if has_layer_scale else {}),
            **(pool_arguments(config) if config.pool == "attention" else {}),
            **rope_arguments(config, has_layer_scale),
        },
    }


def pool_arguments(config: Any) -> dict[str, Any]:
    return {
        "attn_pool_num_heads": config.pool_heads or config.num_heads,
        "attn_pool_mlp_ratio": exact_ratio(config.pool_hidden, config.dim),
    }


def exact_ratio(hidden: int, dim: int) -> float:
    """A ratio such that timm's `int(dim * ratio)` is exactly `hidden`."""
    ratio = hidden / dim
    return ratio if int(dim * ratio) == hidden else (hidden + 0.5) / dim


def rope_arguments(config: Any, has_layer_scale: bool) -> dict[str, Any]:
    """The arguments of timm's Eva for the rotary positions of a config."""
    arguments = {
        "use_rot_pos_emb": config.positions in ("rotary", "learned_rotary"),
        "rope_temperature": config.rotary_theta,
        "rope_grid_indexing": "xy" if config.rotary_columns_first else "ij",
    }
    if config.rotary_mixed:
        return {**arguments, "rope_type": "mixed"}
    span = config.rotary_span
    if span is None and config.norm_eps == 1e-5 and not has_layer_scale:
        span = config.grid  # this architecture rescales positions to a reference grid; its own grid changes nothing
    return {
        **arguments,
        "rope_type": "dinov3" if config.rotary_coordinates == "centred" else "cat",
        "rope_rotate_half": config.rotary_pairs == "rotate_half",
        "rope_grid_offset": config.rotary_offset,
        **({} if span is None else {"ref_feat_shape": list(span)}),
    }
