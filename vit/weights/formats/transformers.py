"""transformers' ViT, DeiT, DINOv2 (also with registers) and the encoder of ViTMAE: import and export.

Parameter names differ between files and models in memory since transformers 5; both are imported, the files' exported.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from vit.weights.export_checks import (
    ForeignWeights,
    check_exportable,
    check_square,
    original_vit_config,
    split_qkv,
    with_layer_scale,
    with_position_table,
)
from vit.weights.formats.transformers_config import (
    check_model_type,
    common_config,
    declared_num_classes,
    dropout_config,
    image_config,
    parse_config,
    saved_class,
)
from vit.weights.renaming import NameMap, NamePairs, RenamedState, alternatives
from vit.weights.weight_format import State, WeightFormat

BODIES = ("vit.", "deit.", "dinov2.", "dinov2_with_registers.")  # attribute of the backbone in a classifier
# names within a block: in files, in memory -> in vit
ATTENTION: NamePairs = [
    (("attention.attention.query.", "attention.q_proj."), "attn.q."),
    (("attention.attention.key.", "attention.k_proj."), "attn.k."),
    (("attention.attention.value.", "attention.v_proj."), "attn.v."),
    (("attention.output.dense.", "attention.o_proj."), "attn.proj."),
]
VIT_BLOCK: NamePairs = [
    *ATTENTION,
    ("layernorm_before.", "norm1."),
    ("layernorm_after.", "norm2."),
    (("intermediate.dense.", "mlp.fc1."), "mlp.fc1."),
    (("output.dense.", "mlp.fc2."), "mlp.fc2."),
]
DINOV2_BLOCK: NamePairs = [
    *ATTENTION,
    ("norm{}.", "norm{}."),
    ("layer_scale{}.lambda1", "ls{}.gamma"),
    ("mlp.", "mlp."),
]
SWIGLU_BLOCK: NamePairs = [
    ("mlp.weights_in.", "mlp.fc1."),
    (("mlp.weights_out.", "mlp.down_proj."), "mlp.fc2."),
    ("mlp.gate_proj.", "mlp.gate."),
    ("mlp.up_proj.", "mlp.value."),
    *DINOV2_BLOCK,
]


def block_pairs(
    block: NamePairs,
    foreign_prefixes: Sequence[str] = ("encoder.layer.{}.", "layers.{}."),
    vit_prefix: str = "encoder.blocks.{}.",
) -> NamePairs:
    """The names within a block as the names within the whole model."""
    return [([prefix + name for name in alternatives(names) for prefix in foreign_prefixes], vit_prefix + vit)
            for names, vit in block]


SHARED: NamePairs = [
    ("embeddings.patch_embeddings.projection.", "embed.proj."),
    ("embeddings.cls_token", "embed.cls_token"),
    ("embeddings.distillation_token", "embed.dist_token"),
    ("embeddings.register_tokens", "embed.reg_token"),
    ("embeddings.position_embeddings", "embed.pos_embed"),
    ("layernorm.", "encoder.norm."),
]
HEADS: NamePairs = [(("classifier.", "cls_classifier."), "head."), ("distillation_classifier.", "head_dist.")]
# for exports, one per kind of block, and for imports, all together
VIT, DINOV2, SWIGLU = (NameMap([*SHARED, *block_pairs(block)]) for block in (VIT_BLOCK, DINOV2_BLOCK, SWIGLU_BLOCK))
ALL_FAMILIES = NameMap([*HEADS, *SHARED, *block_pairs([*VIT_BLOCK, *SWIGLU_BLOCK])], optional_prefixes=BODIES)
BODY = rf"(?:{'|'.join(BODIES)})?".replace(".", r"\.")
EXCLUDED = {
    BODY + r"embeddings\.mask_token$": "the mask token of pre-training",
    r"decoder\.": "the decoder of pre-training",
    BODY + r"pooler\.": "a layer after the class token that no classifier of transformers uses",
}
DINOV2_TYPES = ("dinov2", "dinov2_with_registers")
MODEL_TYPES = ("vit", "deit", *DINOV2_TYPES, "vit_mae", "vit_msn", "ijepa")
# heads of vit -> heads of transformers
CLASSIFIER_HEADS = {"head": "classifier"}
DISTILLED_HEADS = {"head": "cls_classifier", "head_dist": "distillation_classifier"}


def from_transformers(state: State) -> RenamedState:
    """The state under vit's names; queries, keys and values are fused, and so are gate and value of a SwiGLU.

    A DINOv2 with registers has a position for the class token but none for the registers: it is added to the class
    token. A distillation token without a head becomes a register.
    """
    converted = RenamedState(state, ALL_FAMILIES.to_vit)
    converted.fuse(("q", "k", "v"), "qkv")
    converted.fuse(("gate", "value"), "fc1")
    if "embed.reg_token" in converted and not converted["embed.reg_token"].numel():  # no registers are saved as (1,0,D)
        del converted["embed.reg_token"], converted.sources["embed.reg_token"]
    if "embed.reg_token" in converted:
        fold_class_position(converted)
    if "embed.dist_token" in converted and "head_dist.weight" not in converted:
        converted.rename("embed.dist_token", "embed.reg_token")
    return converted


def fold_class_position(converted: RenamedState) -> None:
    """Add the first row of the position table (1,1+N,D) to the class token (1,1,D); the patches keep theirs (1,N,D).

    Raises:
        ValueError: there is no class token or no table.
    """
    if missing := [name for name in ("embed.cls_token", "embed.pos_embed") if name not in converted]:
        raise ValueError(f"there are registers, but no tensor for {missing[0]}; the file is truncated")
    sources = converted.sources["embed.cls_token"] + converted.sources["embed.pos_embed"]
    table = converted["embed.pos_embed"]
    converted.make("embed.cls_token", ["embed.cls_token"], lambda token: token + table[:, :1])
    converted.make("embed.pos_embed", ["embed.pos_embed"], lambda table: table[:, 1:])
    converted.sources["embed.cls_token"] = sources


def is_transformers(state: State) -> bool:
    return any(f"{body}embeddings.patch_embeddings.projection.weight" in state for body in ("", *BODIES))


def config_values(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    """Config values, from config.json, whose missing keys have transformers' defaults.

    Without config.json, norm_eps is 1e-6 for a DINOv2, which is recognized by its LayerScale, and 1e-12 for others.

    Raises:
        ValueError: the config is of another model, or has an unsupported activation.
    """
    check_model_type(source_config, MODEL_TYPES)
    if not source_config:
        dinov2 = any(".layer_scale1." in name for name in state)
        gated = any(".mlp.weights_in." in name or ".mlp.gate_proj." in name for name in state)
        return {"norm_eps": 1e-6 if dinov2 else 1e-12, "activation": "silu" if gated else "gelu"}
    stated = parse_config(source_config)
    if source_config.get("model_type") in DINOV2_TYPES:
        gated = source_config.get("use_swiglu_ffn", False)
        return {"norm_eps": 1e-6, "activation": "gelu", **stated, **({"activation": "silu"} if gated else {})}
    ratio = {"mlp_ratio": source_config["intermediate_size"] / source_config["hidden_size"]} if (
        {"intermediate_size", "hidden_size"} <= set(source_config)) else {}
    norm_eps = 1e-6 if source_config.get("model_type") == "vit_msn" else 1e-12
    return {"norm_eps": norm_eps, "activation": "gelu", **stated, **ratio}


def declared_config(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    """The declared config of a ViT, DeiT, DINOv2 or ViTMAE with this config.json."""
    kind, name = source_config.get("model_type"), saved_class(source_config)
    if kind is None:
        return {}
    qkv_bias = source_config.get("qkv_bias", True)
    declared = original_vit_config(qkv_bias=qkv_bias, **declared_num_classes(source_config))
    if kind == "ijepa":
        declared["class_token"] = False
    if kind == "deit" and name:
        distilled = name.endswith("WithTeacher")
        declared |= {"dist_token": distilled, "registers": 0 if distilled else 1}
    if kind in DINOV2_TYPES:
        declared |= {"layer_scale": source_config.get("layerscale_value", 1.0), **declared_dinov2_mlp(source_config)}
        declared["registers"] = source_config.get("num_register_tokens", 4) if kind == DINOV2_TYPES[1] else 0
    return declared


def declared_dinov2_mlp(source_config: Mapping[str, Any]) -> dict[str, Any]:
    ratio, width = source_config.get("mlp_ratio", 4), source_config.get("hidden_size", 768)
    if not source_config.get("use_swiglu_ffn", False):
        return {"mlp": "mlp", "mlp_ratio": ratio}
    return {"mlp": "swiglu", "mlp_ratio": dinov2_swiglu_width(width * ratio) / width}


def dinov2_swiglu_width(inner: int) -> int:
    """Hidden width of DINOv2's SwiGLU: two thirds of the MLP's, rounded up to a multiple of 8."""
    return (int(inner * 2 / 3) + 7) // 8 * 8


TRANSFORMERS = WeightFormat("transformers ViT, DeiT, DINOv2 or ViTMAE", is_transformers, from_transformers,
                            config_values, EXCLUDED, declared_config)


def to_vit(state: State, config: Any) -> ForeignWeights:
    """A classifier or backbone as transformers' ViT.

    Raises:
        ValueError: the config has a part that it lacks.
    """
    check_exportable(config, "transformers' ViT")
    foreign_config = {"architectures": [class_to_save("ViT", config)], "model_type": "vit", **vit_config(config)}
    return foreign_config, with_heads(export_names(with_position_table(state, config, 1), VIT), "vit", config)


def to_deit(state: State, config: Any) -> ForeignWeights:
    """A classifier or backbone as transformers' DeiT, whose second token has a head ("WithTeacher") or none.

    Raises:
        ValueError: the config has a part that it lacks.
    """
    registers = (0,) if config.dist_token else (1,)
    check_exportable(config, "transformers' DeiT", {"registers": registers}, ignored=("dist_token",))
    if config.dist_token and not config.num_classes:
        raise ValueError("transformers' DeiT without a head returns the class token alone, but this model with "
                         "dist_token=True and num_classes=0 the mean of both tokens")
    converted = with_position_table(state, config, 2)
    if config.registers:
        converted["embed.dist_token"] = converted.pop("embed.reg_token")
    distilled = bool(config.dist_token and config.num_classes)
    name = class_to_save("DeiT", config) + ("WithTeacher" if distilled else "")
    foreign_config = {"architectures": [name], "model_type": "deit", **vit_config(config)}
    heads = DISTILLED_HEADS if distilled else CLASSIFIER_HEADS
    return foreign_config, with_heads(export_names(converted, VIT), "deit", config, heads)


def to_dinov2(state: State, config: Any) -> ForeignWeights:
    """A classifier or backbone as transformers' DINOv2, with or without registers.

    Its classifier reads the class token and the mean of the patches; a model that pools one of them has zeros in the
    head's columns (classes,D) for the other.

    Raises:
        ValueError: the config has a part that it lacks.
    """
    target = "transformers' DINOv2"
    gated, averages = config.mlp == "swiglu", config.pool != "class"
    allowed = {"pool": ("class", "mean", "class_mean"), "mlp": ("mlp", "swiglu")}
    allowed |= {"activation": ("silu",)} if gated else {}
    allowed |= {"pool_prefix": (False,)} if averages else {}
    allowed |= {} if config.num_classes else {"pool": ("class",)}  # a model without a head returns the class token
    check_exportable(config, target, allowed, ignored=("registers", "layer_scale"))
    check_square(config, target)
    body, name = "dinov2", "Dinov2"
    own_keys: dict[str, Any] = {"use_mask_token": False}
    prefix = 1 if not config.prefix_positions else config.prefix
    converted = with_layer_scale(with_position_table(state, config, prefix), config)
    if config.registers:
        body, name = "dinov2_with_registers", "Dinov2WithRegisters"
        own_keys = {"num_register_tokens": config.registers}
        converted = with_registers(converted, config)
    if config.num_classes and config.pool != "class_mean":
        parts = [converted["head.weight"], torch.zeros_like(converted["head.weight"])]  # (classes,D)
        converted["head.weight"] = torch.cat(parts if config.pool == "class" else parts[::-1], dim=1)
    foreign_config = {key: value for key, value in vit_config(config).items() if key != "intermediate_size"}
    foreign_config |= {"mlp_ratio": integer_mlp_ratio(config, target), "use_swiglu_ffn": gated, **own_keys}
    foreign_config = {"architectures": [class_to_save(name, config)], "model_type": body, **foreign_config}
    return foreign_config, with_heads(export_names(converted, SWIGLU if gated else DINOV2), body, config)


def with_registers(state: State, config: Any) -> dict[str, Tensor]:
    """The state with a table (1,1+N,D) for class token and patches; positions of registers are added to the registers.
    """
    table, registers = state["embed.pos_embed"], state["embed.reg_token"]
    if config.prefix_positions:
        registers = registers + table[:, 1 : config.prefix]
        table = torch.cat([table[:, :1], table[:, config.prefix :]], dim=1)
    mask = torch.zeros(1, config.dim)  # transformers' model always has one
    return {**state, "embed.pos_embed": table, "embed.reg_token": registers, "embeddings.mask_token": mask}


def integer_mlp_ratio(config: Any, target: str) -> int:
    """The `mlp_ratio` with which transformers builds an MLP of this hidden width.

    Raises:
        ValueError: no integer does.
    """
    for ratio in range(1, 65):
        inner = ratio * config.dim
        if config.hidden == (dinov2_swiglu_width(inner) if config.mlp == "swiglu" else inner):
            return ratio
    swiglu = "two thirds of " if config.mlp == "swiglu" else ""
    raise ValueError(f"the inner width of the MLP in {target} is {swiglu}a multiple of {config.dim}, but this model "
                     f"has {config.hidden}")


def vit_config(config: Any) -> dict[str, Any]:
    """The keys of config.json that ViT, DeiT and DINOv2 share."""
    return {**common_config(config), **image_config(config), **dropout_config(config), "qkv_bias": config.qkv_bias}


def class_to_save(name: str, config: Any) -> str:
    return f"{name}ForImageClassification" if config.num_classes else f"{name}Model"


def export_names(state: State, names: NameMap) -> dict[str, Tensor]:
    return {names.to_foreign(name): tensor for name, tensor in split_qkv(state).items()}


def with_heads(
    state: State, body: str, config: Any, heads: Mapping[str, str] = CLASSIFIER_HEADS
) -> dict[str, Tensor]:
    """The state of a classifier: the backbone under `body`, and the heads beside it under transformers' names."""
    if not config.num_classes:
        return dict(state)
    named = {}
    for name, tensor in state.items():
        first, _, leaf = name.partition(".")
        named[f"{heads[first]}.{leaf}" if first in heads else f"{body}.{name}"] = tensor
    return named
