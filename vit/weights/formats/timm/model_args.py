"""From vit's config to the arguments of `timm.create_model` that build the same model."""

from typing import Any

from vit.nn.position import SINCOS_TABLES
from vit.weights.export_checks import SCALED_ATTENTION
from vit.weights.formats.timm.eva import eva_arguments, exact_ratio, is_eva
from vit.weights.formats.timm.parallel import ARCHITECTURES as PARALLEL_ARCHITECTURES
from vit.weights.formats.timm.relative import missing_in_relative, relative_arguments

# each has the parts that model_args cannot change; they override everything else
MLP_ARCHITECTURE, SWIGLU_ARCHITECTURE = "vit_base_patch16_224", "vit_giant_patch14_dinov2"
DISTILLED_ARCHITECTURE, RES_POST_NORM_ARCHITECTURE = "deit_base_distilled_patch16_224", "vit_base_patch16_rpn_224"
EPS5_ARCHITECTURE, PATCH_NORM_ARCHITECTURE = "vit_base_patch16_clip_224", "aimv2_large_patch14_224"
POOLS = {"class": "token", "mean": "avg", "attention": "map"}
NORMS = {"layer": "layernorm", "rms": "rmsnorm"}


def timm_arguments(config: Any) -> dict[str, Any] | str:
    """`{"architecture", "model_args"}` for `timm.create_model`, or the reason why timm cannot build the model.

    JSON-able, without `num_classes`, which is beside `model_args` in a timm folder.
    """
    if config.kind == "timm":
        return {"architecture": config.name.split(".")[0], "model_args": config.input_arguments()}
    if config.kind != "vit":
        return f"timm's models classify images, and this is one of kind {config.kind}"
    if reason := missing_in_timm(config):
        return f"timm's VisionTransformer has {reason}"
    if config.positions == "relative":
        return relative_arguments(config, shared_arguments(config))
    if is_eva(config) and not config.dist_token:
        return eva_arguments(config, shared_arguments(config))
    if config.dist_token and (reason := missing_in_distilled(config)):
        return f"timm's distilled VisionTransformer has {reason}"
    return {"architecture": architecture(config), "model_args": vision_transformer_arguments(config)}


def vision_transformer_arguments(config: Any) -> dict[str, Any]:
    """The arguments of timm's VisionTransformer for a config."""
    fused_gate = config.mlp == "swiglu" and not config.patch_norm  # timm's mlp_ratio counts both halves
    unscaled = config.block == "parallel" and config.layer_scale is None
    return {
        **shared_arguments(config),
        "mlp_ratio": exact_ratio(config.hidden * (2 if fused_gate else 1), config.dim),
        "proj_bias": config.proj_bias,
        "reg_tokens": config.registers,
        "pre_norm": config.embed_norm,
        "pos_embed": "none" if config.positions == "none" else "learn",
        "pool_include_prefix": config.pool_prefix,
        "final_norm": config.final_norm != "none",
        "fc_norm": config.final_norm == "pooled",
        **({} if config.norm_eps == 1e-5 else {"norm_layer": NORMS[config.norm]}),  # a norm by name has its own eps
        "act_layer": config.activation,
        "scale_attn_norm": config.attn_norm,
        "scale_mlp_norm": config.mlp_norm,
        **({} if unscaled else {"init_values": config.layer_scale or 0.0}),  # timm ignores None; 0 means no LayerScale
    }


def architecture(config: Any) -> str:
    """A VisionTransformer of timm with the parts of this config that model_args cannot change."""
    if config.block == "parallel":
        return PARALLEL_ARCHITECTURES[config.layer_scale is not None]
    if config.block == "res_post_norm":
        return RES_POST_NORM_ARCHITECTURE
    if config.mlp == "swiglu":
        return PATCH_NORM_ARCHITECTURE if config.patch_norm else SWIGLU_ARCHITECTURE
    if config.norm_eps == 1e-5:
        return EPS5_ARCHITECTURE
    return DISTILLED_ARCHITECTURE if config.dist_token else MLP_ARCHITECTURE


def shared_arguments(config: Any) -> dict[str, Any]:
    """The arguments that timm's VisionTransformer and Eva have in common."""
    return {
        "img_size": list(config.image_size),
        "patch_size": list(config.patch_size),
        "in_chans": config.in_chans,
        "embed_dim": config.dim,
        "depth": config.depth,
        "num_heads": config.num_heads,
        "class_token": config.class_token,
        "no_embed_class": config.positions in SINCOS_TABLES or not config.prefix_positions,
        "global_pool": POOLS[config.pool],
        "qkv_bias": config.qkv_bias,
        "qk_norm": config.qk_norm,
    }


def missing_in_distilled(config: Any) -> str | None:
    """What timm's VisionTransformerDistilled lacks for a config with a distillation token, as the object of a sentence.
    """
    class_positions = config.positions == "learned" and config.prefix_positions
    return first_true({
        "no registers": config.registers > 0,
        "a learned position table only, with rows for both class tokens": not class_positions,
        "no SwiGLU blocks": config.mlp == "swiglu",
        "no rotary positions and other parts of Eva": is_eva(config),
        f"a norm_eps of 1e-06 only, not {config.norm_eps}": config.norm_eps != 1e-6,
    })


def missing_in_timm(config: Any) -> str | None:
    """What timm's VisionTransformer and Eva lack for this config, as the object of a sentence."""
    if config.positions == "relative" and (reason := missing_in_relative(config)):
        return reason
    return first_true({**missing_in_both(config), **(missing_in_eva(config) if is_eva(config) else {})})


def missing_in_both(config: Any) -> dict[str, bool]:
    """Part -> whether the config has something else than timm's models."""
    eva, gated = is_eva(config), config.mlp == "swiglu"
    eps = (1e-6,) if config.norm == "rms" or (gated and not eva) else (1e-6, 1e-5)
    eps = (1e-5,) if config.patch_norm else eps
    hidden = config.hidden * (2 if gated and not config.patch_norm else 1)
    return {
        **{f"{key}={values[0]} only, not {key}={getattr(config, key)}": getattr(config, key) not in values
           for key, values in SCALED_ATTENTION.items() if hasattr(config, key)},
        "no norm=batch": config.norm == "batch",
        f"patches of stem=linear only, not stem={config.stem}": config.stem != "linear",
        "a norm of the patches only with RMSNorm and SwiGLU without a norm": config.patch_norm
        and (eva or config.dist_token or not gated or config.norm != "rms"),
        "biases in the blocks of its rotary models": eva and not config.proj_bias,
        "no post-norm blocks that a config file can select": not config.pre_norm,
        f"block={config.block} with plain MLPs and norm_eps 1e-06 only": config.block != "serial"
        and (gated or config.mlp_norm or config.attn_norm or config.dist_token or config.norm_eps != 1e-6),
        "a bias of the MLP's first layer in every parallel block": config.block == "parallel"
        and not config.proj_bias,
        "parallel blocks with absolute positions and biases of all keys only": eva and config.block == "parallel",
        "no pooling that concatenates class token and mean": config.pool == "class_mean",
        "no pooling by the sum of the tokens (pool=sum)": config.pool == "sum",
        f"heads of width dim / num_heads only, not {config.head_width}": config.head_width * config.num_heads
        != config.dim,
        f"a norm_eps of {' or '.join(map(str, eps))} only, not {config.norm_eps}": config.norm_eps not in eps,
        "a bias of the patches exactly if no norm follows them": config.patch_bias == config.embed_norm,
        "attention pooling with the width of the first MLP layer of its blocks only": not eva
        and config.pool == "attention" and config.pool_hidden != hidden,
        "as many heads in its attention pooling as in its blocks": not eva
        and config.pool_heads not in (None, config.num_heads),
    }


def missing_in_eva(config: Any) -> dict[str, bool]:
    """Part -> whether the config has something else than timm's rotary models."""
    gated, attention = config.mlp == "swiglu", config.pool == "attention"
    act = "silu" if gated else "gelu"
    return {
        "rotary positions with LayerNorm only": config.norm == "rms",
        f"rotary positions with activation={act} only, not {config.activation}": config.activation != act,
        "attention pooling of rotary models over all tokens only": attention and bool(config.prefix)
        and not config.pool_prefix,
        "no attention pooling with rotary SwiGLU blocks": gated and attention,
        "mixed rotary positions with interleaved channels and unscaled coordinates only": config.rotary_mixed
        and (config.rotary_pairs != "interleaved" or config.rotary_coordinates != "steps"
             or config.rotary_span is not None or config.rotary_offset != 0),
        "a mean over the patches only in rotary models": config.pool == "mean" and config.pool_prefix,
    }


def first_true(parts: dict[str, bool]) -> str | None:
    return next((part for part, is_missing in parts.items() if is_missing), None)
