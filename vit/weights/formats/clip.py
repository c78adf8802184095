"""transformers' CLIP (arXiv 2103.00020) and SigLIP (arXiv 2303.15343): the vision tower, import and export.

The tower is imported from its own file or from one of the whole model with its text tower.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vit.weights.export_checks import (
    ForeignWeights,
    check_exportable,
    check_square,
    original_vit_config,
    split_qkv,
    with_position_table,
)
from vit.weights.formats.transformers_config import (
    common_config,
    declared_num_classes,
    image_config,
    parse_config,
    saved_class,
)
from vit.weights.renaming import NameMap, RenamedState
from vit.weights.weight_format import State, WeightFormat

LAYER, BLOCK = "encoder.layers.{}.", "encoder.blocks.{}."
NAME_MAP = NameMap(
    [
        ("embeddings.class_embedding", "embed.cls_token"),
        ("embeddings.patch_embedding.", "embed.proj."),
        ("embeddings.position_embedding.weight", "embed.pos_embed"),
        ("pre_layrnorm.", "embed.norm."),
        ("post_layernorm.", "encoder.norm."),
        ("head.probe", "pool.latent"),
        ("head.attention.in_proj_", "pool.attn.qkv."),
        ("head.attention.out_proj.", "pool.attn.proj."),
        ("head.layernorm.", "pool.mlp_norm."),
        ("head.mlp.", "pool.mlp."),
        *((LAYER + f"self_attn.{part}_proj.", BLOCK + f"attn.{part}.") for part in "qkv"),
        (LAYER + "self_attn.out_proj.", BLOCK + "attn.proj."),
        (LAYER + "layer_norm{}.", BLOCK + "norm{}."),
        (LAYER + "mlp.", BLOCK + "mlp."),
        (("classifier.", "visual_projection."), "head."),
    ],
    optional_prefixes=["vision_model."],
)
TOWER = r"(?:vision_model\.)?"
UNUSED_BY_MEAN = "unused by the classifier, which averages the tokens"
EXCLUDED = {
    r"text_model\.": "the text tower",
    r"text_projection\.|logit_scale$|logit_bias$": "the comparison of images and texts",
    TOWER + r"embeddings\.position_ids$": "indices of the positions",
    TOWER + r"head\.": UNUSED_BY_MEAN,
    TOWER + r"post_layernorm\.": UNUSED_BY_MEAN,
}


def from_clip(state: State) -> RenamedState:
    """CLIP's tower. The projection into the space shared with texts becomes the head, with a bias of zero."""
    classifies = "classifier.weight" in state
    used = {name: tensor for name, tensor in state.items() if not (classifies and "post_layernorm." in name)}
    converted = convert_tower(used)
    converted.make("embed.cls_token", ["embed.cls_token"], lambda token: token[None, None])  # (1,1,D)
    if not classifies:
        converted.add_zero_bias("head.bias", weight="head.weight")
    return with_unused(converted, state)


def from_siglip(state: State) -> RenamedState:
    """SigLIP's tower with attention pooling, or the classifier, which averages the tokens."""
    classifies, pool = "classifier.weight" in state, ("vision_model.head.", "head.")
    converted = convert_tower({name: tensor for name, tensor in state.items()
                               if not (classifies and name.startswith(pool))})
    for leaf in ("weight", "bias"):
        if f"pool.attn.qkv.{leaf}" in converted:
            converted.split(f"pool.attn.qkv.{leaf}", {f"pool.attn.q.{leaf}": 1, f"pool.attn.kv.{leaf}": 2})
    return with_unused(converted, state)


def convert_tower(state: State) -> RenamedState:
    """The tensors of the tower under vit's names; queries, keys and values are fused."""
    converted = RenamedState(state, NAME_MAP.to_vit)
    converted.fuse(("q", "k", "v"), "qkv")
    converted.make("embed.pos_embed", ["embed.pos_embed"], lambda table: table[None])  # (1,N,D)
    return converted


def with_unused(converted: RenamedState, state: State) -> RenamedState:
    """Adds the tensors that the classifier does not use under their own names, for the key report."""
    used = {foreign for sources in converted.sources.values() for foreign in sources}
    for name, tensor in state.items():
        if name not in used:
            converted[name], converted.sources[name] = tensor, (name,)
    return converted


def to_clip(state: State, config: Any) -> ForeignWeights:
    """The tower, with the projection of its class token if there is a head; or, for mean pooling, the classifier, which
    averages the patches without a last norm.

    Raises:
        ValueError: the config has a part that no class of transformers' CLIP has.
    """
    target, averages = "transformers' CLIP", config.pool == "mean"
    pool = {"pool": ("mean",), "pool_prefix": (False,), "final_norm": ("none",)} if averages else {}
    check_exportable(config, target, {"embed_norm": (True,), "patch_bias": (False,), "qkv_bias": (True,), **pool})
    foreign_config, foreign, head = export_tower(state, config, target)
    foreign["embeddings.class_embedding"] = foreign["embeddings.class_embedding"][0, 0]  # (D,)
    if averages and not head:
        raise ValueError(f"{target} without a head has pool=class only, but this model has pool={config.pool} and "
                         "num_classes=0")
    if averages:
        foreign |= {"post_layernorm.weight": torch.ones(config.dim), "post_layernorm.bias": torch.zeros(config.dim)}
        return export_classifier("CLIPForImageClassification", "clip", foreign_config, foreign, head)
    foreign_config["model_type"] = "clip_vision_model"
    if not head:
        return {"architectures": ["CLIPVisionModel"], **foreign_config}, in_vision_model(foreign)
    if head["bias"].any():
        raise ValueError(f"{target} projects the class token without a bias, but the head of this model has one")
    foreign_config |= {"architectures": ["CLIPVisionModelWithProjection"], "projection_dim": config.num_classes}
    return foreign_config, {**in_vision_model(foreign), "visual_projection.weight": head["weight"]}


def to_siglip(state: State, config: Any) -> ForeignWeights:
    """The tower with attention pooling; or, for mean pooling, the tower without it or the classifier.

    Raises:
        ValueError: the config has a part that no class of transformers' SigLIP has.
    """
    target, attention = "transformers' SigLIP", config.pool == "attention"
    allowed = {"class_token": (False,), "qkv_bias": (True,), "pool": ("mean", "attention")}
    if attention:
        allowed |= {"num_classes": (0,), "pool_heads": (None, config.num_heads), "pool_hidden": (config.hidden,)}
    check_exportable(config, target, allowed)
    foreign_config, foreign, head = export_tower(state, config, target)
    foreign_config["vision_use_head"] = attention
    if head:
        return export_classifier("SiglipForImageClassification", "siglip", foreign_config, foreign, head)
    foreign_config["model_type"] = "siglip_vision_model"
    return {"architectures": ["SiglipVisionModel"], **foreign_config}, in_vision_model(foreign)


def export_tower(state: State, config: Any, target: str) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]]:
    """The tower's config, its tensors, and weight and bias of the head.

    Raises:
        ValueError: images or patches are not square.
    """
    check_square(config, target)
    converted = split_qkv(with_position_table(state, config, config.prefix))
    converted["embed.pos_embed"] = converted["embed.pos_embed"][0]  # (N,D)
    for leaf in ("weight", "bias"):
        if f"pool.attn.q.{leaf}" in converted:
            parts = [converted.pop(f"pool.attn.{part}.{leaf}") for part in ("q", "kv")]
            converted[f"pool.attn.qkv.{leaf}"] = torch.cat(parts)
    head = {leaf: converted.pop(f"head.{leaf}") for leaf in ("weight", "bias") if f"head.{leaf}" in converted}
    foreign_config = {**common_config(config), **image_config(config), "attention_dropout": config.attention_dropout}
    return foreign_config, {NAME_MAP.to_foreign(name): tensor for name, tensor in converted.items()}, head


def export_classifier(
    name: str, kind: str, tower_config: dict[str, Any], tower: State, head: Mapping[str, Tensor]
) -> ForeignWeights:
    """A classifier; its config holds that of the tower."""
    foreign_config = {"architectures": [name], "model_type": kind, "dtype": tower_config.pop("dtype"),
                      "vision_config": tower_config}
    return foreign_config, {**in_vision_model(tower), **{f"classifier.{leaf}": head[leaf] for leaf in head}}


def in_vision_model(tower: State) -> dict[str, Tensor]:
    """The tower under the names that it has within a whole model."""
    return {f"vision_model.{name}": tensor for name, tensor in tower.items()}


def is_tower(state: State) -> bool:
    return any(f"{tower}embeddings.patch_embedding.weight" in state for tower in ("", "vision_model."))


def is_clip(state: State) -> bool:
    return is_tower(state) and any(name.endswith("embeddings.class_embedding") for name in state)


def is_siglip(state: State) -> bool:
    return is_tower(state) and not is_clip(state)


def clip_config_values(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    """Config values, from config.json, whose missing keys have transformers' defaults.

    Without config.json the activation is unknown: OpenAI's models have quick_gelu, LAION's gelu.
    """
    stated = parse_config(source_config.get("vision_config", source_config))
    pool = "mean" if "classifier.weight" in state else "class"
    activation = None if source_config.get("model_type") is None else "quick_gelu"
    return {"norm_eps": 1e-5, "activation": activation, "pool": pool, **stated}


def siglip_config_values(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    stated = parse_config(source_config.get("vision_config", source_config))
    pool = {"pool": "mean"} if "classifier.weight" in state or not any("head.probe" in name for name in state) else {}
    return {"norm_eps": 1e-6, "activation": "gelu_tanh", **pool, **stated}


def clip_declared_config(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    """The declared config of the vision tower; the classifier has no last norm."""
    if source_config.get("model_type") is None:
        return {}
    name = saved_class(source_config)
    projects = name in ("CLIPModel", "CLIPVisionModelWithProjection")
    classes = declared_num_classes(source_config, source_config.get("projection_dim", 512) if projects else 0)
    final_norm = {"final_norm": "none" if "Classification" in name else "tokens"} if name else {}
    declared = original_vit_config(embed_norm=True, patch_bias=False, qkv_bias=True, **classes)
    return declared | final_norm | declared_sizes(source_config, patch_size=32)


def siglip_declared_config(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    """The declared config of the vision tower; the classifier has mean pooling in place of attention pooling."""
    if source_config.get("model_type") is None:
        return {}
    vision = source_config.get("vision_config", source_config)
    classifies = "Classification" in saved_class(source_config)
    pool = "attention" if vision.get("vision_use_head", True) and not classifies else "mean"
    classes = declared_num_classes(source_config)
    declared = original_vit_config(class_token=False, qkv_bias=True, pool=pool, **classes)
    return declared | declared_sizes(source_config, patch_size=16)


def declared_sizes(source_config: Mapping[str, Any], patch_size: int) -> dict[str, Any]:
    """Sizes of the vision tower; a key that config.json omits has transformers' default, that of the base model."""
    defaults = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
                "num_channels": 3, "image_size": 224, "patch_size": patch_size}
    vision = defaults | dict(source_config.get("vision_config", source_config))
    sizes = {key: value for key, value in parse_config(vision).items() if key not in ("norm_eps", "activation")}
    return sizes | {"mlp_ratio": vision["intermediate_size"] / vision["hidden_size"]}


CLIP = WeightFormat("transformers CLIP", is_clip, from_clip, clip_config_values, EXCLUDED, clip_declared_config)
SIGLIP = WeightFormat("transformers SigLIP", is_siglip, from_siglip, siglip_config_values, EXCLUDED,
                      siglip_declared_config)
