"""timm's VisionTransformer: its names to ours and back, and the words that make timm build the same network."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vit.nn.position import sincos_2d
from vit.weights.format import Format, State

# ours -> timm's; the first that fits counts
PREFIXES = {
    "embed.proj.": "patch_embed.proj.",
    "embed.cls_token": "cls_token",
    "embed.reg_token": "reg_token",
    "embed.pos_embed": "pos_embed",
    "encoder.blocks.": "blocks.",
    "encoder.norm.": "norm.",
    "pool.norm.": "fc_norm.",
    "pool.latent": "attn_pool.latent",
    "pool.mlp_norm.": "attn_pool.norm.",
    "pool.mlp.": "attn_pool.mlp.",
    "pool.attn.": "attn_pool.",
    "head.": "head.",
}
# each has the parts that no word in a config file can choose; everything else of it is overridden
MLP_ARCHITECTURE, SWIGLU_ARCHITECTURE = "vit_base_patch16_224", "vit_giant_patch14_dinov2"
POOLS = {"class": "token", "mean": "avg", "attention": "map"}
NORMS = {"layer": "layernorm", "rms": "rmsnorm"}


def to_timm(state: State, config: Any = None) -> dict[str, Tensor]:
    """Our names -> timm's. With the config, a fixed sin-cos table is written out: timm knows learned ones only."""
    renamed = {rename(name, PREFIXES.items()): tensor for name, tensor in state.items()}
    if config is not None and config.positions == "sincos":
        renamed["pos_embed"] = sincos_2d(config.grid, config.dim)
    return renamed


def from_timm(state: State, config: Any = None) -> dict[str, Tensor]:
    """timm's names -> ours. With the config, a sin-cos table that `to_timm` wrote is left out again."""
    pairs = [(foreign, ours) for ours, foreign in PREFIXES.items()]
    renamed = {rename(name, pairs): tensor for name, tensor in state.items()}
    if config is not None and config.positions == "sincos":
        renamed.pop("embed.pos_embed", None)
    return renamed


def rename(name: str, prefixes: Any) -> str:
    """The name with its prefix exchanged; one without a known prefix stays."""
    for old, new in prefixes:
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name


def is_timm(state: State) -> bool:
    return "patch_embed.proj.weight" in state and any(name.startswith("blocks.") for name in state)


def facts(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    return {"norm_eps": 1e-6}


TIMM = Format("timm", is_timm, from_timm, facts)


def timm_arguments(config: Any) -> dict[str, Any] | str:
    """`{"architecture", "model_args"}` for `timm.create_model` that build the same network, or why there are none.

    JSON-able, without `num_classes`, which stands beside `model_args` in a timm folder.
    """
    if config.kind == "timm":
        return {"architecture": config.name.split(".")[0], "model_args": config.input_arguments()}
    if reason := beyond_timm(config):
        return f"timm's VisionTransformer has {reason}"
    gated = config.mlp == "swiglu"
    return {
        "architecture": SWIGLU_ARCHITECTURE if gated else MLP_ARCHITECTURE,
        "model_args": {
            "img_size": list(config.image_size),
            "patch_size": list(config.patch_size),
            "in_chans": config.in_chans,
            "embed_dim": config.dim,
            "depth": config.depth,
            "num_heads": config.num_heads,
            "mlp_ratio": timm_ratio(config.hidden * (2 if gated else 1), config.dim),
            "class_token": config.class_token,
            "reg_tokens": config.registers,
            "pos_embed": "none" if config.positions == "none" else "learn",
            "no_embed_class": config.positions == "sincos" or not config.prefix_positions,
            "global_pool": POOLS[config.pool],
            "final_norm": config.final_norm != "none",
            "fc_norm": config.final_norm == "pooled",
            "norm_layer": NORMS[config.norm],
            "act_layer": config.activation,
            "qkv_bias": config.qkv_bias,
            "qk_norm": config.qk_norm,
            "init_values": config.layer_scale or 0.0,  # timm drops arguments that are None; 0 means no LayerScale
        },
    }


def beyond_timm(config: Any) -> str | None:
    """What timm's VisionTransformer lacks for this config."""
    widths = config.head_width * config.num_heads != config.dim
    lacks = {
        "no rotary positions": config.positions == "rotary",
        "no convolutional stem": config.stem == "conv",
        "no post-norm blocks that a config file can ask for": not config.pre_norm,
        f"heads of dim / num_heads only, not head_dim {config.head_dim}": widths,
        f"a norm_eps of 1e-06 only, not {config.norm_eps}": config.norm_eps != 1e-6,
        "no attention pooling with an MLP beside SwiGLU blocks": config.mlp == "swiglu" and config.pool == "attention",
    }
    return next((words for words, true in lacks.items() if true), None)


def timm_ratio(hidden: int, dim: int) -> float:
    """A ratio whose product timm truncates to exactly `hidden`."""
    ratio = hidden / dim
    return ratio if int(dim * ratio) == hidden else (hidden + 0.5) / dim
