"""Our Vision Transformers as torchvision's and transformers': the words that make these build the same network, the
names, and the first reason why there are none.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vit.nn.position import sincos_2d, sincos_2d_simple
from vit.weights.renaming import Rules, rename
from vit.weights.transformers import ACTIVATIONS

State = Mapping[str, Tensor]

# what the original Vision Transformer is made of, by our config's words
PLAIN = {
    "kind": "vit", "class_token": True, "registers": 0, "dist_token": False, "stem": "linear", "patch_bias": True,
    "patch_norm": False, "embed_norm": False, "norm": "layer", "block": "serial", "pre_norm": True, "mlp": "mlp",
    "mlp_norm": False, "attn_norm": False, "proj_bias": True, "qk_norm": False, "key_bias": True, "layer_scale": None,
    "pool": "class", "final_norm": "tokens",
}
TABLES = {"sincos": sincos_2d, "sincos_simple": sincos_2d_simple}
BLOCK = r"encoder\.blocks\.(\d+)\."
TORCHVISION: Rules = [
    (r"embed\.proj\.", "conv_proj."),
    (r"embed\.cls_token$", "class_token"),
    (r"embed\.pos_embed$", "encoder.pos_embedding"),
    (r"encoder\.norm\.", "encoder.ln."),
    (r"head\.", "heads.head."),
    (BLOCK + r"norm([12])\.", r"encoder.layers.encoder_layer_\1.ln_\2."),
    (BLOCK + r"attn\.qkv\.", r"encoder.layers.encoder_layer_\1.self_attention.in_proj_"),
    (BLOCK + r"attn\.proj\.", r"encoder.layers.encoder_layer_\1.self_attention.out_proj."),
    (BLOCK + r"mlp\.fc1\.", r"encoder.layers.encoder_layer_\1.mlp.0."),
    (BLOCK + r"mlp\.fc2\.", r"encoder.layers.encoder_layer_\1.mlp.3."),
]
TRANSFORMERS: Rules = [
    (r"embed\.proj\.", "embeddings.patch_embeddings.projection."),
    (r"embed\.cls_token$", "embeddings.cls_token"),
    (r"embed\.pos_embed$", "embeddings.position_embeddings"),
    (r"encoder\.norm\.", "layernorm."),
    (BLOCK + r"norm1\.", r"encoder.layer.\1.layernorm_before."),
    (BLOCK + r"norm2\.", r"encoder.layer.\1.layernorm_after."),
    (BLOCK + r"attn\.proj\.", r"encoder.layer.\1.attention.output.dense."),
    (BLOCK + r"mlp\.fc1\.", r"encoder.layer.\1.intermediate.dense."),
    (BLOCK + r"mlp\.fc2\.", r"encoder.layer.\1.output.dense."),
]
QKV = re.compile(BLOCK + r"attn\.qkv\.(\w+)$")


def torchvision_arguments(config: Any) -> dict[str, Any] | str:
    """The words of `torchvision.models.VisionTransformer(**...)`, or the first reason why there are none."""
    wanted = {"activation": "gelu", "qkv_bias": True, "in_chans": 3, "norm_eps": 1e-6}
    if reason := lacking(config, wanted, "torchvision's VisionTransformer"):
        return reason
    for key in ("image_size", "patch_size"):
        if len(set(getattr(config, key))) != 1:
            return f"torchvision's VisionTransformer has a square {key} only, not {getattr(config, key)}"
    if not config.num_classes:
        return "torchvision's VisionTransformer always has a head, but this one has num_classes=0"
    return {
        "image_size": config.image_size[0], "patch_size": config.patch_size[0], "num_layers": config.depth,
        "num_heads": config.num_heads, "hidden_dim": config.dim, "mlp_dim": config.hidden,
        "num_classes": config.num_classes,
    }


def to_torchvision(state: State, config: Any) -> dict[str, Tensor]:
    """Our names -> those of torchvision's VisionTransformer."""
    return {rename(name, TORCHVISION): tensor for name, tensor in with_table(state, config).items()}


def transformers_arguments(config: Any) -> dict[str, Any] | str:
    """What config.json of transformers says of a ViT of this config, or the first reason why it cannot."""
    if reason := lacking(config, {}, "transformers' ViT"):
        return reason
    named = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    named["gelu_tanh"] = "gelu_pytorch_tanh"
    return {
        "architectures": ["ViTForImageClassification" if config.num_classes else "ViTModel"],
        "model_type": "vit",
        "hidden_size": config.dim,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.hidden,
        "hidden_act": named[config.activation],
        "layer_norm_eps": config.norm_eps,
        "image_size": edge(config.image_size),
        "patch_size": edge(config.patch_size),
        "num_channels": config.in_chans,
        "qkv_bias": config.qkv_bias,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "dtype": "float32",
    }


def to_transformers(state: State, config: Any) -> dict[str, Tensor]:
    """Our names -> those of the files of transformers' ViT, which its versions 4 and 5 read."""
    theirs, body = {}, "vit." if config.num_classes else ""
    for name, tensor in with_table(state, config).items():
        if found := QKV.fullmatch(name):
            for part, piece in zip(("query", "key", "value"), tensor.chunk(3), strict=True):
                theirs[f"{body}encoder.layer.{found[1]}.attention.attention.{part}.{found[2]}"] = piece
        elif name.startswith("head."):
            theirs[name.replace("head.", "classifier.")] = tensor
        else:
            theirs[body + rename(name, TRANSFORMERS)] = tensor
    return theirs


def lacking(config: Any, wanted: Mapping[str, Any], whose: str) -> str | None:
    """The first part of a network that theirs cannot have."""
    if config.kind != PLAIN["kind"]:
        return f"{whose} is an image classifier, but this is a model of kind {config.kind}"
    for key, value in {**PLAIN, **wanted}.items():
        if (own := getattr(config, key)) != value:
            return f"{whose} has {key}={value} only, but this one has {key}={own}"
    if config.head_width * config.num_heads != config.dim:
        return f"{whose} has heads that split the width, but this one has head_dim={config.head_dim}"
    if config.positions not in ("learned", "none", *TABLES):
        return f"{whose} has a table of positions only, but this one has positions={config.positions}"
    return None


def with_table(state: State, config: Any) -> dict[str, Tensor]:
    """The state with a table of positions (1,1+N,D), as both write it: zeros where ours adds nothing."""
    table = state.get("embed.pos_embed")
    if config.positions in TABLES:
        table = TABLES[config.positions](config.grid, config.dim)
    rows = 1 + math.prod(config.grid)
    if table is None:
        table = torch.zeros(1, 0, config.dim)
    if table.shape[1] != rows:
        missing = table.new_zeros(1, rows - table.shape[1], config.dim)
        table = torch.cat([missing, table], dim=1)
    return {**state, "embed.pos_embed": table}


def edge(size: tuple[int, int]) -> int | list[int]:
    """One number for a square."""
    return size[0] if size[0] == size[1] else list(size)
