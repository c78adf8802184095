"""transformers' ViT, DeiT, DINOv2 and ViTMAE: names of its files, and those in memory since version 5, to ours."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vit.weights.format import Format, State
from vit.weights.renaming import Renamed

BODY = r"(?:vit\.|deit\.|dinov2\.|dinov2_with_registers\.)?"
EMBED, LAYER = BODY + r"embeddings\.", BODY + r"(?:encoder\.layer|layers)\.(\d+)\."
RULES = [
    (EMBED + r"patch_embeddings\.projection\.", "embed.proj."),
    (EMBED + r"cls_token$", "embed.cls_token"),
    (EMBED + r"distillation_token$", "embed.dist_token"),
    (EMBED + r"register_tokens$", "embed.reg_token"),
    (EMBED + r"position_embeddings$", "embed.pos_embed"),
    (BODY + r"layernorm\.", "encoder.norm."),
    (r"(?:cls_)?classifier\.", "head."),
    (r"distillation_classifier\.", "head_dist."),
    (LAYER + r"(?:layernorm_before|norm1)\.", r"encoder.blocks.\1.norm1."),
    (LAYER + r"(?:layernorm_after|norm2)\.", r"encoder.blocks.\1.norm2."),
    (LAYER + r"attention\.(?:attention\.query|q_proj)\.", r"encoder.blocks.\1.attn.q."),
    (LAYER + r"attention\.(?:attention\.key|k_proj)\.", r"encoder.blocks.\1.attn.k."),
    (LAYER + r"attention\.(?:attention\.value|v_proj)\.", r"encoder.blocks.\1.attn.v."),
    (LAYER + r"attention\.(?:output\.dense|o_proj)\.", r"encoder.blocks.\1.attn.proj."),
    (LAYER + r"layer_scale([12])\.lambda1$", r"encoder.blocks.\1.ls\2.gamma"),
    (LAYER + r"(?:intermediate\.dense|mlp\.fc1|mlp\.weights_in)\.", r"encoder.blocks.\1.mlp.fc1."),
    (LAYER + r"mlp\.gate_proj\.", r"encoder.blocks.\1.mlp.gate."),
    (LAYER + r"mlp\.up_proj\.", r"encoder.blocks.\1.mlp.value."),
    (LAYER + r"(?:output\.dense|mlp\.fc2|mlp\.weights_out|mlp\.down_proj)\.", r"encoder.blocks.\1.mlp.fc2."),
]
APART = {
    EMBED + r"mask_token$": "what hid patches in pre-training",
    r"decoder\.": "the decoder of pre-training",
    BODY + r"pooler\.": "a layer after the class token that no classifier there has",
}
# hidden_act there -> activation here
ACTIVATIONS = {
    "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh",
    "quick_gelu": "quick_gelu", "relu": "relu", "silu": "silu", "swish": "silu",
}
SELF_TAUGHT = ("dinov2", "dinov2_with_registers")


def from_transformers(state: State) -> dict[str, Tensor]:
    """transformers' names -> ours; queries, keys and values become one matrix, and so do gate and value of a SwiGLU.

    Where registers came later, only the class token has a position besides the patches: it becomes a part of the token.
    A distillation token that no head reads is a register.
    """
    ours = Renamed(state, RULES)
    ours.fuse(("q", "k", "v"), "qkv")
    ours.fuse(("gate", "value"), "fc1")
    if "embed.reg_token" in ours:
        fold_class_position(ours)
    if "embed.dist_token" in ours and "head_dist.weight" not in ours:
        ours.make("embed.reg_token", ["embed.dist_token"], lambda token: token)
    return ours


def fold_class_position(ours: Renamed) -> None:
    """Add the first row of the table (1,1+N,D) to the class token (1,1,D), which leaves a row per patch (1,N,D)."""
    origins = ours.origins["embed.cls_token"] + ours.origins["embed.pos_embed"]
    table = ours["embed.pos_embed"]
    ours.make("embed.cls_token", ["embed.cls_token"], lambda token: token + table[:, :1])
    ours.make("embed.pos_embed", ["embed.pos_embed"], lambda table: table[:, 1:])
    ours.origins["embed.cls_token"] = origins


def is_transformers(state: State) -> bool:
    return any(f"{body}embeddings.patch_embeddings.projection.weight" in state
               for body in ("", "vit.", "deit.", "dinov2.", "dinov2_with_registers."))


def facts(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    """What config.json says; without one the usual ones: 1e-12 beside norms, but 1e-6 where LayerScale tells DINOv2."""
    if not source_config:
        taught = any(".layer_scale1." in name for name in state)
        gated = any(".mlp.weights_in." in name or ".mlp.gate_proj." in name for name in state)
        return {"norm_eps": 1e-6 if taught else 1e-12, "activation": "silu" if gated else "gelu"}
    stated = read_config(source_config)
    if source_config.get("model_type") in SELF_TAUGHT:
        gated = source_config.get("use_swiglu_ffn", False)
        return {"norm_eps": 1e-6, **stated, **({"activation": "silu"} if gated else {})}
    ratio = {"mlp_ratio": source_config["intermediate_size"] / source_config["hidden_size"]} if (
        {"intermediate_size", "hidden_size"} <= set(source_config)) else {}
    return {"norm_eps": 1e-12, **stated, **ratio}


def read_config(source_config: Mapping[str, Any]) -> dict[str, Any]:
    """The words that all vision models of transformers share, as ours.

    Raises:
        ValueError: an activation that ours do not have.
    """
    words = {"hidden_size": "dim", "num_hidden_layers": "depth", "num_attention_heads": "num_heads",
             "layer_norm_eps": "norm_eps", "image_size": "image_size", "patch_size": "patch_size",
             "num_channels": "in_chans"}
    stated = {ours: source_config[theirs] for theirs, ours in words.items() if source_config.get(theirs) is not None}
    if (act := source_config.get("hidden_act")) is not None:
        if act not in ACTIVATIONS:
            raise ValueError(f"hidden_act={act} of the source's config.json has no counterpart here; known: "
                             f"{', '.join(ACTIVATIONS)}")
        stated["activation"] = ACTIVATIONS[act]
    return stated


def shared_words(config: Any) -> dict[str, Any]:
    """What config.json of every family calls the same."""
    named = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())} | {"gelu_tanh": "gelu_pytorch_tanh"}
    return {
        "hidden_size": config.dim, "num_hidden_layers": config.depth, "num_attention_heads": config.num_heads,
        "intermediate_size": config.hidden, "hidden_act": named[config.activation], "layer_norm_eps": config.norm_eps,
        "dtype": "float32",
    }


def image_words(config: Any) -> dict[str, Any]:
    """What every family that reads images calls the same, besides `shared_words`."""
    sizes = {key: getattr(config, key) for key in ("image_size", "patch_size")}
    return {**{key: size[0] if size[0] == size[1] else list(size) for key, size in sizes.items()},
            "num_channels": config.in_chans}


def dropout_words(config: Any) -> dict[str, Any]:
    return {"hidden_dropout_prob": config.dropout, "attention_probs_dropout_prob": config.attention_dropout}


TRANSFORMERS = Format("transformers ViT, DeiT, DINOv2 or ViTMAE", is_transformers, from_transformers, facts, APART)
