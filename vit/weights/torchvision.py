"""torchvision's VisionTransformer (`vit_b_16` and its sisters): its names to ours."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vit.weights.format import Format, State
from vit.weights.renaming import Renamed

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


def from_torchvision(state: State) -> dict[str, Tensor]:
    """torchvision's names -> ours; the old files of 2022 with `linear_1` too."""
    return Renamed(state, RULES)


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
