"""torchvision's VisionTransformer (`vit_b_16` and its sisters): its names to ours, and ours back."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vit.weights.exporting import require, require_square, with_table
from vit.weights.renaming import Names, Renamed
from vit.weights.weight_format import Format, State

LAYER, BLOCK = "encoder.layers.encoder_layer_{}.", "encoder.blocks.{}."
NAMES = Names([
    ("conv_proj.", "embed.proj."),
    ("class_token", "embed.cls_token"),
    ("encoder.pos_embedding", "embed.pos_embed"),
    ("encoder.ln.", "encoder.norm."),
    ("heads.head.", "head."),
    (LAYER + "ln_{}.", BLOCK + "norm{}."),
    (LAYER + "self_attention.in_proj_", BLOCK + "attn.qkv."),
    (LAYER + "self_attention.out_proj.", BLOCK + "attn.proj."),
    ((LAYER + "mlp.0.", LAYER + "mlp.linear_1."), BLOCK + "mlp.fc1."),
    ((LAYER + "mlp.3.", LAYER + "mlp.linear_2."), BLOCK + "mlp.fc2."),
])


def from_torchvision(state: State) -> dict[str, Tensor]:
    """torchvision's names -> ours; the old files of 2022 with `linear_1` too."""
    return Renamed(state, NAMES.ours)


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
    return {NAMES.theirs(name): tensor for name, tensor in with_table(state, config, 1).items()}


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
