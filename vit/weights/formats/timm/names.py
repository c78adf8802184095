"""timm's VisionTransformer and Eva: their names to ours and back, and the words that make timm build our networks."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from vit.nn.position import sincos_2d, sincos_2d_simple
from vit.weights.config_inference import detect
from vit.weights.formats.timm.eva import EVA_RULES, eva_arguments, is_eva, join_leaves, ratio, their_leaves
from vit.weights.formats.timm.module_config import module_facts, skeleton, timm_facts, usual_doubts
from vit.weights.formats.timm.parallel import ARCHITECTURES as PARALLEL_ARCHITECTURES
from vit.weights.formats.timm.parallel import PARALLEL_RULES, join_in_proj, split_in_proj
from vit.weights.formats.timm.relative import (
    RELATIVE,
    RELATIVE_RULES,
    THEIR_RELATIVE,
    beyond_timms_relative,
    relative_arguments,
    spread_shared,
)
from vit.weights.renaming import Renamed
from vit.weights.weight_format import Format, State

# ours -> timm's; the first that fits counts
PREFIXES = {
    "embed.proj.norm.": "patch_embed.norm.",
    "embed.proj.": "patch_embed.proj.",
    "embed.cls_token": "cls_token",
    "embed.dist_token": "dist_token",
    "embed.reg_token": "reg_token",
    "embed.pos_embed": "pos_embed",
    "embed.norm.": "norm_pre.",
    "encoder.blocks.": "blocks.",
    "encoder.norm.": "norm.",
    "encoder.rotary.freqs": "rope.freqs",
    "pool.norm.": "fc_norm.",
    "pool.latent": "attn_pool.latent",
    "pool.mlp_norm.": "attn_pool.norm.",
    "pool.mlp.": "attn_pool.mlp.",
    "pool.attn.": "attn_pool.",
    "head.": "head.",
    "head_dist.": "head_dist.",
}
TIMM_RULES = [
    *EVA_RULES,
    *PARALLEL_RULES,
    *RELATIVE_RULES,
    *((re.escape(foreign) + ("" if foreign.endswith(".") else "$"), ours) for ours, foreign in PREFIXES.items()),
]
# each has the parts that no word in a config file can choose; everything else of it is overridden
MLP_ARCHITECTURE, SWIGLU_ARCHITECTURE = "vit_base_patch16_224", "vit_giant_patch14_dinov2"
DISTILLED_ARCHITECTURE, BRANCH_NORM_ARCHITECTURE = "deit_base_distilled_patch16_224", "vit_base_patch16_rpn_224"
EPS5_ARCHITECTURE, NORMED_PATCHES_ARCHITECTURE = "vit_base_patch16_clip_224", "aimv2_large_patch14_224"
TABLES = {"sincos": sincos_2d, "sincos_simple": sincos_2d_simple}
POOLS = {"class": "token", "mean": "avg", "attention": "map"}
NORMS = {"layer": "layernorm", "rms": "rmsnorm"}


def to_timm(state: State, config: Any = None) -> dict[str, Tensor]:
    """Our names -> timm's. With the config, a fixed sin-cos table is written out: timm knows learned ones only."""
    renamed = {rename(name, PREFIXES.items()): tensor for name, tensor in state.items()}
    renamed = {name.replace(RELATIVE, THEIR_RELATIVE): tensor for name, tensor in renamed.items()}
    if config is not None and config.positions in TABLES:
        renamed["pos_embed"] = TABLES[config.positions](config.grid, config.dim)
    if config is not None and config.block == "parallel":
        return join_in_proj(renamed)
    return renamed if config is None else their_leaves(renamed, config)


def from_timm(state: State, config: Any = None) -> Renamed:
    """timm's names -> ours. With the config, a sin-cos table that `to_timm` wrote is left out again."""
    renamed = Renamed(state, TIMM_RULES)
    if config is not None and config.positions in TABLES:
        renamed.pop("embed.pos_embed", None)
    join_leaves(renamed)
    split_in_proj(renamed)
    spread_shared(renamed)
    return renamed


def rename(name: str, prefixes: Iterable[tuple[str, str]]) -> str:
    """The name with its prefix exchanged; one without a known prefix stays."""
    for old, new in prefixes:
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name


def is_timm(state: State) -> bool:
    return all(any(re.match(part, name) for name in state) for part in (r"patch_embed\.", r"blocks\.\d+\."))


def timm_declared(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    """Every part of the model that the `config.json` of a timm folder describes."""
    if "architecture" not in source_config:
        return {}
    model = skeleton(source_config)
    parts = detect(from_timm(model.state_dict()), module_facts(model))
    if "num_classes" not in {**(source_config.get("pretrained_cfg") or {}), **source_config}:
        del parts["num_classes"]
    return parts


TIMM = Format("timm", is_timm, from_timm, timm_facts, declared=timm_declared, doubts=usual_doubts)


def timm_arguments(config: Any) -> dict[str, Any] | str:
    """`{"architecture", "model_args"}` for `timm.create_model` that build the same network, or why there are none.

    JSON-able, without `num_classes`, which stands beside `model_args` in a timm folder.
    """
    if config.kind == "timm":
        return {"architecture": config.name.split(".")[0], "model_args": config.input_arguments()}
    if config.kind != "vit":
        return f"timm's models classify images, and this is one of kind {config.kind}"
    if reason := beyond_timm(config):
        return f"timm's VisionTransformer has {reason}"
    if config.positions == "relative":
        return relative_arguments(config, shared_arguments(config))
    if is_eva(config) and not config.dist_token:
        return eva_arguments(config, shared_arguments(config))
    gated = config.mlp == "swiglu"
    unscaled = config.block == "parallel" and config.layer_scale is None
    if config.dist_token and (reason := beyond_distilled(config, gated)):
        return f"timm's distilled VisionTransformer has {reason}"
    return {
        "architecture": architecture(config),
        "model_args": {
            **shared_arguments(config),
            "mlp_ratio": ratio(config.hidden * (2 if gated and not config.patch_norm else 1), config.dim),
            "proj_bias": config.proj_bias,
            "reg_tokens": config.registers,
            "pre_norm": config.embed_norm,
            "pos_embed": "none" if config.positions == "none" else "learn",
            "pool_include_prefix": config.pool_prefix,
            "final_norm": config.final_norm != "none",
            "fc_norm": config.final_norm == "pooled",
            **({} if config.norm_eps == 1e-5 else {"norm_layer": NORMS[config.norm]}),  # a word would bring its own eps
            "act_layer": config.activation,
            "scale_attn_norm": config.attn_norm,
            "scale_mlp_norm": config.mlp_norm,
            **({} if unscaled else {"init_values": config.layer_scale or 0.0}),  # timm drops None; 0 for none
        },
    }


def architecture(config: Any) -> str:
    """A VisionTransformer of timm with the parts of this config that no word in a file can choose."""
    if config.block == "parallel":
        return PARALLEL_ARCHITECTURES[config.layer_scale is not None]
    if config.block == "res_post_norm":
        return BRANCH_NORM_ARCHITECTURE
    if config.mlp == "swiglu":
        return NORMED_PATCHES_ARCHITECTURE if config.patch_norm else SWIGLU_ARCHITECTURE
    if config.norm_eps == 1e-5:
        return EPS5_ARCHITECTURE
    return DISTILLED_ARCHITECTURE if config.dist_token else MLP_ARCHITECTURE


def beyond_distilled(config: Any, gated: bool) -> str | None:
    """What timm's VisionTransformerDistilled lacks for a config with a distillation token."""
    rows = config.positions == "learned" and config.prefix_positions
    lacks = {
        "no registers": config.registers > 0,
        "a learned table of positions only, with rows for both class tokens": not rows,
        "no SwiGLU blocks": gated,
        "no rotary positions and other parts of Eva": is_eva(config),
        f"a norm_eps of 1e-06 only, not {config.norm_eps}": config.norm_eps != 1e-6,
    }
    return next((words for words, true in lacks.items() if true), None)


def shared_arguments(config: Any) -> dict[str, Any]:
    """The words that timm's VisionTransformer and Eva have in common."""
    return {
        "img_size": list(config.image_size),
        "patch_size": list(config.patch_size),
        "in_chans": config.in_chans,
        "embed_dim": config.dim,
        "depth": config.depth,
        "num_heads": config.num_heads,
        "class_token": config.class_token,
        "no_embed_class": config.positions in TABLES or not config.prefix_positions,
        "global_pool": POOLS[config.pool],
        "qkv_bias": config.qkv_bias,
        "qk_norm": config.qk_norm,
    }


def beyond_timm(config: Any) -> str | None:
    """What timm's VisionTransformer and Eva lack for this config."""
    if config.positions == "relative" and (reason := beyond_timms_relative(config)):
        return reason
    eva, gated = is_eva(config), config.mlp == "swiglu"
    eps = (1e-6,) if config.norm == "rms" or (gated and not eva) else (1e-6, 1e-5)
    eps = (1e-5,) if config.patch_norm else eps
    lacks = {
        f"patches of stem=linear only, not stem={config.stem}": config.stem != "linear",
        "a norm of the patches beside RMSNorm and SwiGLU without a norm only": config.patch_norm
        and (eva or config.dist_token or not gated or config.norm != "rms"),
        "biases in the blocks of its rotary models": eva and not config.proj_bias,
        "no post-norm blocks that a config file can ask for": not config.pre_norm,
        f"block={config.block} with plain MLPs and norm_eps 1e-06 only": config.block != "serial"
        and (gated or config.mlp_norm or config.attn_norm or config.dist_token or config.norm_eps != 1e-6),
        "a bias of the MLP's first projection in every parallel block": config.block == "parallel"
        and not config.proj_bias,
        "parallel blocks with absolute positions and biases of all keys only": eva and config.block == "parallel",
        "no pooling of class token and mean side by side": config.pool == "class_mean",
        f"heads of dim / num_heads only, not head_dim {config.head_dim}": config.head_width * config.num_heads
        != config.dim,
        f"a norm_eps of {' or '.join(map(str, eps))} only, not {config.norm_eps}": config.norm_eps not in eps,
        "a bias of the patches exactly where no norm follows them": config.patch_bias == config.embed_norm,
        "attention pooling with the width of its blocks' first projection only": not eva and config.pool == "attention"
        and config.pool_hidden != config.hidden * (2 if gated and not config.patch_norm else 1),
        "as many heads in its attention pooling as in its blocks": not eva
        and config.pool_heads not in (None, config.num_heads),
        "rotary positions with LayerNorm only": eva and config.norm == "rms",
        f"rotary positions with activation={'silu' if gated else 'gelu'} only, not {config.activation}": eva
        and config.activation != ("silu" if gated else "gelu"),
        "attention pooling of rotary models over all tokens only": eva
        and config.pool == "attention" and bool(config.prefix) and not config.pool_prefix,
        "no attention pooling beside rotary SwiGLU blocks": eva and gated and config.pool == "attention",
        "mixed rotary positions of neighbouring channels and plain steps only": config.rotary_mixed
        and (config.rotary_pairs != "interleaved" or config.rotary_coordinates != "steps"
             or config.rotary_span is not None or config.rotary_offset != 0),
        "a mean of rotary models over the patches only": eva and config.pool == "mean" and config.pool_prefix,
    }
    return next((words for words, true in lacks.items() if true), None)
