"""transformers' ViT, DeiT, DINOv2 and ViTMAE: names of its files, and those in memory since version 5, to ours."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from vit.weights.exporting import fixed
from vit.weights.renaming import Names, Pairs, Renamed, several
from vit.weights.weight_format import Format, State

BODIES = ("vit.", "deit.", "dinov2.", "dinov2_with_registers.")
# within a block: theirs, in files and in memory since version 5, and ours
ATTENTION: Pairs = [
    (("attention.attention.query.", "attention.q_proj."), "attn.q."),
    (("attention.attention.key.", "attention.k_proj."), "attn.k."),
    (("attention.attention.value.", "attention.v_proj."), "attn.v."),
    (("attention.output.dense.", "attention.o_proj."), "attn.proj."),
]
VIT_BLOCK: Pairs = [
    *ATTENTION,
    ("layernorm_before.", "norm1."),
    ("layernorm_after.", "norm2."),
    (("intermediate.dense.", "mlp.fc1."), "mlp.fc1."),
    (("output.dense.", "mlp.fc2."), "mlp.fc2."),
]
DINOV2_BLOCK: Pairs = [
    *ATTENTION,
    ("norm{}.", "norm{}."),
    ("layer_scale{}.lambda1", "ls{}.gamma"),
    ("mlp.", "mlp."),
]
SWIGLU_BLOCK: Pairs = [
    ("mlp.weights_in.", "mlp.fc1."),
    (("mlp.weights_out.", "mlp.down_proj."), "mlp.fc2."),
    ("mlp.gate_proj.", "mlp.gate."),
    ("mlp.up_proj.", "mlp.value."),
    *DINOV2_BLOCK,
]


def stacked(
    block: Pairs, theirs: Sequence[str] = ("encoder.layer.{}.", "layers.{}."), ours: str = "encoder.blocks.{}."
) -> Pairs:
    """The names of a block within all blocks, as theirs and ours number them."""
    return [([stack + name for name in several(names) for stack in theirs], ours + own) for names, own in block]


SHARED: Pairs = [
    ("embeddings.patch_embeddings.projection.", "embed.proj."),
    ("embeddings.cls_token", "embed.cls_token"),
    ("embeddings.distillation_token", "embed.dist_token"),
    ("embeddings.register_tokens", "embed.reg_token"),
    ("embeddings.position_embeddings", "embed.pos_embed"),
    ("layernorm.", "encoder.norm."),
]
HEADS: Pairs = [(("classifier.", "cls_classifier."), "head."), ("distillation_classifier.", "head_dist.")]
# to write each by, and to read all by
VIT, DINOV2, SWIGLU = (Names([*SHARED, *stacked(block)]) for block in (VIT_BLOCK, DINOV2_BLOCK, SWIGLU_BLOCK))
ANY = Names([*HEADS, *SHARED, *stacked([*VIT_BLOCK, *SWIGLU_BLOCK])], before=BODIES)
BODY = rf"(?:{'|'.join(BODIES)})?".replace(".", r"\.")
APART = {
    BODY + r"embeddings\.mask_token$": "what hid patches in pre-training",
    r"decoder\.": "the decoder of pre-training",
    BODY + r"pooler\.": "a layer after the class token that no classifier there has",
}
# hidden_act there -> activation here
ACTIVATIONS = {
    "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh",
    "quick_gelu": "quick_gelu", "relu": "relu", "silu": "silu", "swish": "silu",
}
SELF_TAUGHT = ("dinov2", "dinov2_with_registers")
MODEL_TYPES = ("vit", "deit", *SELF_TAUGHT, "vit_mae", "vit_msn", "ijepa")


def from_transformers(state: State) -> dict[str, Tensor]:
    """transformers' names -> ours; queries, keys and values become one matrix, and so do gate and value of a SwiGLU.

    Where registers came later, only the class token has a position besides the patches: it becomes a part of the token.
    A distillation token that no head reads is a register.
    """
    ours = Renamed(state, ANY.ours)
    ours.fuse(("q", "k", "v"), "qkv")
    ours.fuse(("gate", "value"), "fc1")
    if "embed.reg_token" in ours:
        fold_class_position(ours)
    if "embed.dist_token" in ours and "head_dist.weight" not in ours:
        ours.make("embed.reg_token", ["embed.dist_token"], lambda token: token)
    return ours


def fold_class_position(ours: Renamed) -> None:
    """Add the first row of the table (1,1+N,D) to the class token (1,1,D), which leaves a row per patch (1,N,D).

    Raises:
        ValueError: one of both is missing.
    """
    if missing := [name for name in ("embed.cls_token", "embed.pos_embed") if name not in ours]:
        raise ValueError(f"there are registers, but no tensor for {missing[0]}; the file is cut")
    origins = ours.origins["embed.cls_token"] + ours.origins["embed.pos_embed"]
    table = ours["embed.pos_embed"]
    ours.make("embed.cls_token", ["embed.cls_token"], lambda token: token + table[:, :1])
    ours.make("embed.pos_embed", ["embed.pos_embed"], lambda table: table[:, 1:])
    ours.origins["embed.cls_token"] = origins


def is_transformers(state: State) -> bool:
    return any(f"{body}embeddings.patch_embeddings.projection.weight" in state
               for body in ("", *BODIES))


def facts(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    """What config.json says; without one the usual ones: 1e-12 beside norms, but 1e-6 where LayerScale tells DINOv2."""
    check_model_type(source_config, MODEL_TYPES)
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


def declared(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    """Every part of a ViT, DeiT, DINOv2 or ViTMAE of this config.json."""
    kind, name = source_config.get("model_type"), architecture(source_config)
    if kind is None:
        return {}
    parts = fixed(qkv_bias=source_config.get("qkv_bias", True), **declared_classes(source_config))
    if kind == "ijepa":
        parts["class_token"] = False
    if kind == "deit" and name:
        taught = name.endswith("WithTeacher")
        parts |= {"dist_token": taught, "registers": 0 if taught else 1}
    if kind in SELF_TAUGHT:
        parts |= {"layer_scale": source_config.get("layerscale_value", 1.0), **declared_mlp(source_config)}
        parts["registers"] = source_config.get("num_register_tokens", 4) if kind == SELF_TAUGHT[1] else 0
    return parts


def declared_mlp(source_config: Mapping[str, Any]) -> dict[str, Any]:
    """DINOv2's MLP; of a SwiGLU's width two thirds are taken, rounded up to eights."""
    ratio, width = source_config.get("mlp_ratio", 4), source_config.get("hidden_size", 768)
    if not source_config.get("use_swiglu_ffn", False):
        return {"mlp": "mlp", "mlp_ratio": ratio}
    return {"mlp": "swiglu", "mlp_ratio": (int(width * ratio * 2 / 3) + 7) // 8 * 8 / width}


def architecture(source_config: Mapping[str, Any]) -> str:
    """The class of transformers that was saved; empty where nobody says it."""
    return str((source_config.get("architectures") or [""])[0])


def declared_classes(source_config: Mapping[str, Any], otherwise: int = 0) -> dict[str, int]:
    """How many classes the head has; nothing where config.json does not say whether there is one.

    Args:
        otherwise: the width of what other classes of transformers have in the head's place.
    """
    if not (name := architecture(source_config)):
        return {}
    labels = len(source_config.get("id2label") or ()) or source_config.get("num_labels", 2)
    return {"num_classes": labels if "Classification" in name else otherwise}


def check_model_type(source_config: Mapping[str, Any], known: Sequence[str]) -> None:
    """Several models of transformers share names and are different networks.

    Raises:
        ValueError: the config says that this is another one.
    """
    kind = source_config.get("model_type", known[0])
    if kind not in known:
        raise ValueError(f"the source's config says model_type={kind}, whose tensors are called like those of "
                         f"{known[0]}, but whose network is another; known: {', '.join(known)}")


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


TRANSFORMERS = Format("transformers ViT, DeiT, DINOv2 or ViTMAE", is_transformers, from_transformers, facts, APART,
                      declared)
