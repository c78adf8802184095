"""transformers' ViTForImageClassification: its names to ours, those of its files, and those in memory since 5."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vit.weights.format import Format, State
from vit.weights.torchvision import rename

LAYER = r"(?:vit\.)?(?:encoder\.layer|layers)\.(\d+)\."
RULES = [
    (r"(?:vit\.)?embeddings\.patch_embeddings\.projection\.", "embed.proj."),
    (r"(?:vit\.)?embeddings\.cls_token$", "embed.cls_token"),
    (r"(?:vit\.)?embeddings\.position_embeddings$", "embed.pos_embed"),
    (r"(?:vit\.)?layernorm\.", "encoder.norm."),
    (r"classifier\.", "head."),
    (LAYER + r"layernorm_before\.", r"encoder.blocks.\1.norm1."),
    (LAYER + r"layernorm_after\.", r"encoder.blocks.\1.norm2."),
    (LAYER + r"attention\.(?:attention\.query|q_proj)\.", r"encoder.blocks.\1.attn.q."),
    (LAYER + r"attention\.(?:attention\.key|k_proj)\.", r"encoder.blocks.\1.attn.k."),
    (LAYER + r"attention\.(?:attention\.value|v_proj)\.", r"encoder.blocks.\1.attn.v."),
    (LAYER + r"attention\.(?:output\.dense|o_proj)\.", r"encoder.blocks.\1.attn.proj."),
    (LAYER + r"(?:intermediate\.dense|mlp\.fc1)\.", r"encoder.blocks.\1.mlp.fc1."),
    (LAYER + r"(?:output\.dense|mlp\.fc2)\.", r"encoder.blocks.\1.mlp.fc2."),
]


def from_transformers(state: State) -> dict[str, Tensor]:
    """transformers' names -> ours; queries, keys and values become one matrix. Its models want `norm_eps=1e-12`."""
    renamed = {rename(name, RULES): tensor for name, tensor in state.items()}
    for name in [name for name in renamed if ".attn.q." in name]:
        parts = [renamed.pop(name.replace(".attn.q.", f".attn.{part}.")) for part in "qkv"]
        renamed[name.replace(".attn.q.", ".attn.qkv.")] = torch.cat(parts)
    return renamed


def is_transformers(state: State) -> bool:
    return any(name.endswith("embeddings.patch_embeddings.projection.weight") for name in state)


def facts(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    """From its config.json; without one, what `ViTConfig` has by default."""
    seen = {"norm_eps": source_config.get("layer_norm_eps", 1e-12), "pool": "class"}
    for theirs, ours in (("num_attention_heads", "num_heads"), ("image_size", "image_size")):
        if theirs in source_config:
            seen[ours] = source_config[theirs]
    return seen


TRANSFORMERS = Format("transformers ViT", is_transformers, from_transformers, facts)
