"""transformers' CLIP and SigLIP: the tower that reads images, alone or beside the one that reads text, to ours."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vit.weights.format import Format, State
from vit.weights.renaming import Renamed
from vit.weights.transformers import read_config

TOWER = r"(?:vision_model\.)?"
LAYER = TOWER + r"encoder\.layers\.(\d+)\."
RULES = [
    (TOWER + r"embeddings\.class_embedding$", "embed.cls_token"),
    (TOWER + r"embeddings\.patch_embedding\.", "embed.proj."),
    (TOWER + r"embeddings\.position_embedding\.weight$", "embed.pos_embed"),
    (TOWER + r"pre_layrnorm\.", "embed.norm."),
    (TOWER + r"post_layernorm\.", "encoder.norm."),
    (TOWER + r"head\.probe$", "pool.latent"),
    (TOWER + r"head\.attention\.in_proj_", "pool.attn.qkv."),
    (TOWER + r"head\.attention\.out_proj\.", "pool.attn.proj."),
    (TOWER + r"head\.layernorm\.", "pool.mlp_norm."),
    (TOWER + r"head\.mlp\.", "pool.mlp."),
    (r"visual_projection\.", "head."),
    (r"classifier\.", "head."),
    (LAYER + r"self_attn\.([qkv])_proj\.", r"encoder.blocks.\1.attn.\2."),
    (LAYER + r"self_attn\.out_proj\.", r"encoder.blocks.\1.attn.proj."),
    (LAYER + r"layer_norm([12])\.", r"encoder.blocks.\1.norm\2."),
    (LAYER + r"mlp\.", r"encoder.blocks.\1.mlp."),
]
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
    ours = Renamed(state, RULES)
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


CLIP = Format("transformers CLIP", is_clip, from_clip, clip_facts, APART)
SIGLIP = Format("transformers SigLIP", is_siglip, from_siglip, siglip_facts, APART)
