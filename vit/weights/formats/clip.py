"""transformers' CLIP and SigLIP: the tower that reads images, alone or beside the one for texts, to ours, and back."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vit.weights.exporting import Written, fixed, parted, require, require_square, with_table
from vit.weights.formats.transformers import architecture, declared_classes, image_words, read_config, shared_words
from vit.weights.renaming import Names, Renamed
from vit.weights.weight_format import Format, State

LAYER, BLOCK = "encoder.layers.{}.", "encoder.blocks.{}."
NAMES = Names(
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
    before=["vision_model."],
)
TOWER = r"(?:vision_model\.)?"
UNPOOLED = "takes the mean of the tokens and not what this pools"
APART = {
    r"text_model\.": "the tower that reads text",
    r"text_projection\.|logit_scale$|logit_bias$": "how images and texts are compared",
    TOWER + r"embeddings\.position_ids$": "the numbers of the positions",
    TOWER + r"head\.": f"the classifier {UNPOOLED}",
    TOWER + r"post_layernorm\.": f"the classifier {UNPOOLED}",
}


def from_clip(state: State) -> dict[str, Tensor]:
    """CLIP: the projection into the space shared with texts becomes the head, whose bias is zero."""
    classifies = "classifier.weight" in state
    ours = convert({name: tensor for name, tensor in state.items() if not (classifies and "post_layernorm." in name)})
    ours.make("embed.cls_token", ["embed.cls_token"], lambda token: token[None, None])  # (1,1,D)
    if not classifies:
        ours.zeros("head.bias", like="head.weight")
    return keep(ours, state)


def from_siglip(state: State) -> dict[str, Tensor]:
    """SigLIP: an attention pool, but for the classifier, which averages the tokens."""
    classifies, pools = "classifier.weight" in state, ("vision_model.head.", "head.")
    ours = convert({name: tensor for name, tensor in state.items() if not (classifies and name.startswith(pools))})
    for leaf in ("weight", "bias"):
        if f"pool.attn.qkv.{leaf}" in ours:
            ours.split(f"pool.attn.qkv.{leaf}", {f"pool.attn.q.{leaf}": 1, f"pool.attn.kv.{leaf}": 2})
    return keep(ours, state)


def convert(state: State) -> Renamed:
    ours = Renamed(state, NAMES.ours)
    ours.fuse(("q", "k", "v"), "qkv")
    ours.make("embed.pos_embed", ["embed.pos_embed"], lambda table: table[None])  # (1,N,D)
    return ours


def keep(ours: Renamed, state: State) -> Renamed:
    """What the classifier does not use keeps its own name."""
    used = {theirs for origins in ours.origins.values() for theirs in origins}
    for name, tensor in state.items():
        if name not in used:
            ours[name], ours.origins[name] = tensor, (name,)
    return ours


def to_clip(state: State, config: Any) -> Written:
    """The tower, with the projection of its class token where there is a head; or the classifier, which averages the
    patches and passes the last norm by.

    Raises:
        ValueError: no class of transformers' CLIP is this network.
    """
    whose, averages = "transformers' CLIP", config.pool == "mean"
    pooled = {"pool": ("mean",), "pool_prefix": (False,), "final_norm": ("none",)} if averages else {}
    require(config, whose, {"embed_norm": (True,), "patch_bias": (False,), "qkv_bias": (True,), **pooled})
    said, theirs, head = written_tower(state, config, whose)
    theirs["embeddings.class_embedding"] = theirs["embeddings.class_embedding"][0, 0]  # (D,)
    if averages and not head:
        raise ValueError(f"{whose} without a head has pool=class only, but this one has pool={config.pool} and "
                         "num_classes=0")
    if averages:
        theirs |= {"post_layernorm.weight": torch.ones(config.dim), "post_layernorm.bias": torch.zeros(config.dim)}
        return classifying("CLIPForImageClassification", "clip", said, theirs, head)
    said["model_type"] = "clip_vision_model"
    if not head:
        return {"architectures": ["CLIPVisionModel"], **said}, inside(theirs)
    if head["bias"].any():
        raise ValueError(f"{whose} projects the class token without a bias, but the head of this one has one")
    said |= {"architectures": ["CLIPVisionModelWithProjection"], "projection_dim": config.num_classes}
    return said, {**inside(theirs), "visual_projection.weight": head["weight"]}


def to_siglip(state: State, config: Any) -> Written:
    """The tower, which pools by attention; or the classifier, which averages the patches instead.

    Raises:
        ValueError: no class of transformers' SigLIP is this network.
    """
    whose, pools = "transformers' SigLIP", config.pool == "attention"
    pooled = {"num_classes": (0,), "pool_heads": (None, config.num_heads), "pool_hidden": (config.hidden,)}
    alike = {"class_token": (False,), "qkv_bias": (True,), "pool": ("mean", "attention")}
    require(config, whose, alike | (pooled if pools else {}))
    said, theirs, head = written_tower(state, config, whose)
    said["vision_use_head"] = pools
    if head:
        return classifying("SiglipForImageClassification", "siglip", said, theirs, head)
    said["model_type"] = "siglip_vision_model"
    return {"architectures": ["SiglipVisionModel"], **said}, inside(theirs)


def written_tower(state: State, config: Any, whose: str) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]]:
    """What config.json says of a tower, its tensors, and those of the head by their last names."""
    require_square(config, whose)
    ours = parted(with_table(state, config, config.prefix))
    ours["embed.pos_embed"] = ours["embed.pos_embed"][0]  # (N,D)
    for leaf in ("weight", "bias"):
        if f"pool.attn.q.{leaf}" in ours:
            parts = [ours.pop(f"pool.attn.{part}.{leaf}") for part in ("q", "kv")]
            ours[f"pool.attn.qkv.{leaf}"] = torch.cat(parts)
    head = {leaf: ours.pop(f"head.{leaf}") for leaf in ("weight", "bias") if f"head.{leaf}" in ours}
    said = {**shared_words(config), **image_words(config), "attention_dropout": config.attention_dropout}
    return said, {NAMES.theirs(name): tensor for name, tensor in ours.items()}, head


def classifying(
    name: str, kind: str, said: dict[str, Any], theirs: State, head: Mapping[str, Tensor]
) -> Written:
    """A classifier's config holds that of its tower."""
    said = {"architectures": [name], "model_type": kind, "dtype": said.pop("dtype"), "vision_config": said}
    return said, {**inside(theirs), **{f"classifier.{leaf}": tensor for leaf, tensor in head.items()}}


def inside(theirs: State) -> dict[str, Tensor]:
    return {f"vision_model.{name}": tensor for name, tensor in theirs.items()}


def is_tower(state: State) -> bool:
    return any(f"{tower}embeddings.patch_embedding.weight" in state for tower in ("", "vision_model."))


def is_clip(state: State) -> bool:
    return is_tower(state) and any(name.endswith("embeddings.class_embedding") for name in state)


def is_siglip(state: State) -> bool:
    return is_tower(state) and not is_clip(state)


def clip_facts(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    """Who trained it decides the activation: OpenAI's quick GELU or the exact one of LAION's; config.json knows."""
    stated = read_config(source_config.get("vision_config", source_config))
    pool = "mean" if "classifier.weight" in state else "class"
    return {"norm_eps": 1e-5, "activation": None, "pool": pool, **stated}


def siglip_facts(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    stated = read_config(source_config.get("vision_config", source_config))
    pool = {"pool": "mean"} if "classifier.weight" in state or not any("head.probe" in name for name in state) else {}
    return {"norm_eps": 1e-6, "activation": "gelu_tanh", **pool, **stated}


def clip_declared(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    """Every part of the tower for images; the classifier passes its last norm by."""
    if source_config.get("model_type") is None:
        return {}
    name = architecture(source_config)
    projects = name in ("CLIPModel", "CLIPVisionModelWithProjection")
    classes = declared_classes(source_config, source_config.get("projection_dim", 512) if projects else 0)
    last = {"final_norm": "none" if "Classification" in name else "tokens"} if name else {}
    parts = fixed(embed_norm=True, patch_bias=False, qkv_bias=True, **classes)
    return parts | last | declared_sizes(source_config, patch_size=32)


def siglip_declared(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    """Every part of the tower for images; the classifier has the mean of the patches in the place of its pooling."""
    if source_config.get("model_type") is None:
        return {}
    vision = source_config.get("vision_config", source_config)
    classifies = "Classification" in architecture(source_config)
    pool = "attention" if vision.get("vision_use_head", True) and not classifies else "mean"
    parts = fixed(class_token=False, qkv_bias=True, pool=pool, **declared_classes(source_config))
    return parts | declared_sizes(source_config, patch_size=16)


def declared_sizes(source_config: Mapping[str, Any], patch_size: int) -> dict[str, Any]:
    """Sizes of the tower for images; what a config.json leaves out is as in the first of its family."""
    usual = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
             "num_channels": 3, "image_size": 224, "patch_size": patch_size}
    vision = usual | dict(source_config.get("vision_config", source_config))
    sizes = {key: value for key, value in read_config(vision).items() if key not in ("norm_eps", "activation")}
    return sizes | {"mlp_ratio": vision["intermediate_size"] / vision["hidden_size"]}


CLIP = Format("transformers CLIP", is_clip, from_clip, clip_facts, APART, clip_declared)
SIGLIP = Format("transformers SigLIP", is_siglip, from_siglip, siglip_facts, APART, siglip_declared)
