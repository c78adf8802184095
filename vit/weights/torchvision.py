"""torchvision's VisionTransformer (`vit_b_16` and its sisters): its names to ours, and ours back."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vit.weights.format import Format, State
from vit.weights.outgoing import require, require_square, with_table
from vit.weights.renaming import Renamed, rename

RULES = [
    (r"conv_proj\.", "embed.proj."),
    (r"class_token$", "embed.cls_token"),
    (r"encoder\.pos_embedding$", "embed.pos_embed"),
    (r"encoder\.ln\.", "encoder.norm."),
    (r"heads\.head\.", "head."),
    (r"encoder\.layers\.encoder_layer_(\d+)\.ln_([12])\.", r"encoder.blocks.\1.norm\2."),
    (r"encoder\.layers\.encoder_layer_(\d+)\.self_attention\.in_proj_", r"encoder.blocks.\1.attn.qkv."),
    (r"encoder\.layers\.encoder_layer_(\d+)\.self_attention\.out_proj\.", r"encoder.blocks.\1.attn.proj."),
    (r"encoder\.layers\.encoder_layer_(\d+)\.mlp\.(?:0|linear_1)\.", r"encoder.blocks.\1.mlp.fc1."),
    (r"encoder\.layers\.encoder_layer_(\d+)\.mlp\.(?:3|linear_2)\.", r"encoder.blocks.\1.mlp.fc2."),
]
BLOCK, LAYER = r"encoder\.blocks\.(\d+)\.", r"encoder.layers.encoder_layer_\1."
BACK = [
    (r"embed\.proj\.", "conv_proj."),
    (r"embed\.cls_token$", "class_token"),
    (r"embed\.pos_embed$", "encoder.pos_embedding"),
    (r"encoder\.norm\.", "encoder.ln."),
    (r"head\.", "heads.head."),
    (BLOCK + r"norm([12])\.", LAYER + r"ln_\2."),
    (BLOCK + r"attn\.qkv\.", LAYER + "self_attention.in_proj_"),
    (BLOCK + r"attn\.proj\.", LAYER + "self_attention.out_proj."),
    (BLOCK + r"mlp\.fc1\.", LAYER + "mlp.0."),
    (BLOCK + r"mlp\.fc2\.", LAYER + "mlp.3."),
]


def from_torchvision(state: State) -> dict[str, Tensor]:
    """torchvision's names -> ours; the old files of 2022 with `linear_1` too."""
    return Renamed(state, RULES)


def to_torchvision(state: State, config: Any) -> dict[str, Tensor]:
    """Our names -> those of torchvision's VisionTransformer.

    Raises:
        ValueError: it cannot be this network.
    """
    whose = "torchvision's VisionTransformer"
    require(config, whose, {"activation": ("gelu",), "qkv_bias": (True,), "in_chans": (3,), "norm_eps": (1e-6,)})
    require_square(config, whose)
    if not config.num_classes:
        raise ValueError(f"{whose} always has a head, but this one has num_classes=0")
    return {rename(name, BACK): tensor for name, tensor in with_table(state, config, 1).items()}


def is_torchvision(state: State) -> bool:
    return "encoder.pos_embedding" in state and "class_token" in state


def facts(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    """All its Vision Transformers are of the original form; `{"module": model}` tells heads and image size."""
    stated: dict[str, Any] = {"norm_eps": 1e-6, "activation": "gelu", "pool": "class"}
    if (module := source_config.get("module")) is not None:
        block = module.encoder.layers[0]
        stated |= {"num_heads": block.num_heads, "norm_eps": block.ln_1.eps, "image_size": module.image_size}
    return stated


TORCHVISION = Format("torchvision", is_torchvision, from_torchvision, facts)
