"""torchvision's VisionTransformer (`vit_b_16` and others): import and export."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vit.weights.export_checks import check_exportable, check_square, with_position_table
from vit.weights.renaming import NameMap, RenamedState
from vit.weights.weight_format import State, WeightFormat

LAYER, BLOCK = "encoder.layers.encoder_layer_{}.", "encoder.blocks.{}."
NAME_MAP = NameMap([
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


def from_torchvision(state: State) -> RenamedState:
    """The state under vit's names, also from files of 2022, which name the MLP's layers `linear_1` and `linear_2`."""
    return RenamedState(state, NAME_MAP.to_vit)


def to_torchvision(state: State, config: Any) -> dict[str, Tensor]:
    """A classifier's weights under the names of torchvision's VisionTransformer.

    Raises:
        ValueError: the config has a part that torchvision's model lacks.
    """
    target = "torchvision's VisionTransformer"
    allowed = {"activation": ("gelu",), "qkv_bias": (True,), "in_chans": (3,), "norm_eps": (1e-6,)}
    check_exportable(config, target, allowed)
    check_square(config, target)
    if not config.num_classes:
        raise ValueError(f"{target} always has a head, but this model has num_classes=0")
    return {NAME_MAP.to_foreign(name): tensor for name, tensor in with_position_table(state, config, 1).items()}


def is_torchvision(state: State) -> bool:
    return "encoder.pos_embedding" in state and "class_token" in state


def config_values(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    """Number of heads, epsilon and image size of `source_config["module"]`, if there is one, and the values that all
    models of torchvision have in common.
    """
    values: dict[str, Any] = {"norm_eps": 1e-6, "activation": "gelu", "pool": "class"}
    if (module := source_config.get("module")) is not None:
        block = module.encoder.layers[0]
        values |= {"num_heads": block.num_heads, "norm_eps": block.ln_1.eps, "image_size": module.image_size}
    return values


TORCHVISION = WeightFormat("torchvision", is_torchvision, from_torchvision, config_values)
