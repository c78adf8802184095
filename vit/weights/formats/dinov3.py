"""DINOv3 (arXiv 2508.10104) as transformers and its own repository save it, and EVA-02 (arXiv 2303.11331) as its own
repository does: import; export as transformers' DINOv3.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vit.weights.export_checks import ForeignWeights, check_exportable, original_vit_config, split_qkv, with_layer_scale
from vit.weights.formats.timm import DINOV3_NUM_HEADS, TIMM_RULES, fuse_eva_matrices, is_timm
from vit.weights.formats.transformers_config import (
    common_config,
    declared_num_classes,
    image_config,
    parse_config,
)
from vit.weights.renaming import NameMap, RenamedState
from vit.weights.weight_format import State, WeightFormat

LAYER, BLOCK = "layer.{}.", "encoder.blocks.{}."
NAME_MAP = NameMap(
    [
        ("embeddings.patch_embeddings.", "embed.proj."),
        ("embeddings.cls_token", "embed.cls_token"),
        ("embeddings.register_tokens", "embed.reg_token"),
        ("norm.", "encoder.norm."),
        (LAYER + "norm{}.", BLOCK + "norm{}."),
        *((LAYER + f"attention.{part}_proj.", BLOCK + f"attn.{part}.") for part in "qkv"),
        *((LAYER + f"attention.{part}_proj.bias", BLOCK + f"attn.qkv.{part}_bias") for part in "qv"),
        (LAYER + "attention.o_proj.", BLOCK + "attn.proj."),
        (LAYER + "layer_scale{}.lambda1", BLOCK + "ls{}.gamma"),
        (LAYER + "mlp.gate_proj.", BLOCK + "mlp.fc1_g."),
        (LAYER + "mlp.up_proj.", BLOCK + "mlp.fc1_x."),
        (LAYER + "mlp.up_proj.", BLOCK + "mlp.fc1."),
        (LAYER + "mlp.down_proj.", BLOCK + "mlp.fc2."),
    ],
    optional_prefixes=["model."],
)
ORIGINAL_BLOCK = r"blocks\.(\d+)\."
ORIGINAL_RULES = [
    (r"storage_tokens$", "embed.reg_token"),
    (ORIGINAL_BLOCK + r"attn\.inner_attn_ln\.", r"encoder.blocks.\1.attn.norm."),
    (ORIGINAL_BLOCK + r"mlp\.ffn_ln\.", r"encoder.blocks.\1.mlp.norm."),
    (ORIGINAL_BLOCK + r"mlp\.w12\.", r"encoder.blocks.\1.mlp.fc1."),
    (ORIGINAL_BLOCK + r"mlp\.w1\.", r"encoder.blocks.\1.mlp.fc1_g."),
    (ORIGINAL_BLOCK + r"mlp\.w2\.", r"encoder.blocks.\1.mlp.fc1_x."),
    (ORIGINAL_BLOCK + r"mlp\.w3\.", r"encoder.blocks.\1.mlp.fc2."),
    *TIMM_RULES,
]
EXCLUDED = {
    r"(?:embeddings\.)?mask_token$": "the mask token of pre-training",
    r"lm_head\.": "the head of masked pre-training",
    r"(?:.*\.)?rope\w*\.(?:freqs_cos|freqs_sin|periods|inv_freq)$": "tables of rotary positions, which are computed",
    ORIGINAL_BLOCK + r"attn\.qkv\.bias_mask$": "which of the biases are zero: those of the keys",
    r"local_cls_norm\.": "a norm for small crops in pre-training",
}
ORIGINAL_MARKERS = ("storage_tokens", "rope_embed.periods", "rope.freqs_cos", "blocks.0.attn.inner_attn_ln.weight",
                    "blocks.0.mlp.ffn_ln.weight")
DEFAULT_GRID = 16  # patches along an edge if no image size is stated; positions are relative to the image, so any works


def from_dinov3(state: State) -> RenamedState:
    """transformers' DINOv3ViTModel under vit's names; queries, keys and values are fused, and so are gate and value."""
    converted = RenamedState(state, NAME_MAP.to_vit)
    if not any(".mlp.fc1_g." in name for name in converted):  # up_proj is the whole first layer
        for name in [name for name in converted if ".mlp.fc1_x." in name]:
            converted.rename(name, name.replace("fc1_x", "fc1"))
    if not converted["embed.reg_token"].numel():  # a model without registers saves (1,0,D)
        del converted["embed.reg_token"], converted.sources["embed.reg_token"]
    fuse_eva_matrices(converted)
    return converted


def from_original(state: State) -> RenamedState:
    """The original names of DINOv3 and EVA-02 under vit's; the masked key bias of DINOv3 is removed."""
    converted = RenamedState(state, ORIGINAL_RULES)
    for mask in [name for name in converted if name.endswith(".attn.qkv.bias_mask")]:
        bias = mask.removesuffix("_mask")
        stem = bias.removesuffix("bias")
        converted.split(bias, {stem + "q_bias": 1, stem + "k_bias": 1, stem + "v_bias": 1})
        del converted[stem + "k_bias"], converted.sources[stem + "k_bias"]
        converted.rename(mask, mask.removeprefix("encoder."))  # back to its own name: it has no counterpart
    fuse_eva_matrices(converted)
    return converted


def to_dinov3(state: State, config: Any) -> ForeignWeights:
    """A backbone as transformers' DINOv3ViTModel; there is no classifier.

    Raises:
        ValueError: the config has a part that it lacks.
    """
    allowed = {"positions": ("rotary",), "rotary_coordinates": ("centred",), "rotary_pairs": ("rotate_half",),
               "rotary_columns_first": (False,), "rotary_mixed": (False,), "mlp": ("mlp", "swiglu"),
               "num_classes": (0,)}
    check_exportable(config, "transformers' DINOv3", allowed, ignored=("registers", "layer_scale", "key_bias"))
    tokens = {"embed.reg_token": torch.zeros(1, 0, config.dim), "embeddings.mask_token": torch.zeros(1, 1, config.dim)}
    converted = tokens | with_layer_scale(state, config)
    if config.mlp == "swiglu":
        for name in [name for name in converted if ".mlp.fc1." in name]:
            gate, value = converted.pop(name).chunk(2)
            converted |= {name.replace(".fc1.", ".fc1_g."): gate, name.replace(".fc1.", ".fc1_x."): value}
    foreign_config = {
        "architectures": ["DINOv3ViTModel"], "model_type": "dinov3_vit",
        **common_config(config), **image_config(config),
        "query_bias": config.qkv_bias, "key_bias": config.qkv_bias and config.key_bias, "value_bias": config.qkv_bias,
        "rope_theta": config.rotary_theta, "use_gated_mlp": config.mlp == "swiglu",
        "num_register_tokens": config.registers, "attention_dropout": config.attention_dropout,
    }
    return foreign_config, {NAME_MAP.to_foreign(name): tensor for name, tensor in split_qkv(converted).items()}


def is_dinov3(state: State) -> bool:
    return "embeddings.patch_embeddings.weight" in state and "embeddings.register_tokens" in state


def is_original(state: State) -> bool:
    return is_timm(state) and any(name in state for name in ORIGINAL_MARKERS)


def dinov3_config_values(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    """Config values, from config.json; without config.json, those of all published DINOv3."""
    patch = state["embeddings.patch_embeddings.weight"]
    gated = any(".mlp.gate_proj." in name for name in state)
    stated = parse_config(source_config)
    return {
        **rotary_config(patch, float(source_config.get("rope_theta", 100.0))),
        "activation": "silu" if gated else "gelu",
        "layer_scale": source_config.get("layerscale_value"),
        **stated,
    }


def dinov3_declared_config(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    """The declared config of a DINOv3ViTModel with this config.json."""
    if source_config.get("model_type") is None:
        return {}
    biased = {part: source_config.get(f"{part}_bias", part != "key") for part in ("query", "key", "value")}
    return original_vit_config(
        positions="rotary",
        layer_scale=source_config.get("layerscale_value", 1.0),
        registers=source_config.get("num_register_tokens", 0),
        qkv_bias=any(biased.values()),
        key_bias=biased["key"] or not biased["query"],
        proj_bias=source_config.get("proj_bias", True),
        mlp="swiglu" if source_config.get("use_gated_mlp", False) else "mlp",
        mlp_ratio=source_config.get("intermediate_size", 1536) / source_config.get("hidden_size", 384),
        **declared_num_classes(source_config),
    )


def original_config_values(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    """Config values of all published files with these names; the rotary tables determine the number of heads."""
    dim = state["patch_embed.proj.weight"].shape[0]
    gated = any(leaf in state for leaf in ("blocks.0.mlp.w1.weight", "blocks.0.mlp.w12.weight"))
    values = {"activation": "silu" if gated else "gelu", "num_heads": None}
    if "pos_embed" in state:  # EVA-02
        if "rope.freqs_cos" in state:
            values["num_heads"] = dim // state["rope.freqs_cos"].shape[-1]
        return {**values, "norm_eps": 1e-6, "positions": "learned_rotary", "rotary_theta": 10_000.0,
                "rotary_pairs": "interleaved", "rotary_span": [DEFAULT_GRID, DEFAULT_GRID]}
    values["num_heads"] = DINOV3_NUM_HEADS.get(dim)
    if "rope_embed.periods" in state:
        values["num_heads"] = dim // (4 * len(state["rope_embed.periods"]))
    return {**rotary_config(state["patch_embed.proj.weight"], 100.0), **values}


def rotary_config(patch: Tensor, theta: float) -> dict[str, Any]:
    """DINOv3's rotary positions, which are centred in the image, for a patch projection (D,C,ph,pw)."""
    return {
        "norm_eps": 1e-5,
        "pool": "class",
        "positions": "rotary",
        "rotary_coordinates": "centred",
        "rotary_theta": theta,
        "image_size": [DEFAULT_GRID * edge for edge in patch.shape[2:]],
        "num_heads": DINOV3_NUM_HEADS.get(patch.shape[0]),
    }


DINOV3 = WeightFormat("transformers DINOv3", is_dinov3, from_dinov3, dinov3_config_values, EXCLUDED,
                      dinov3_declared_config)
DINOV3_ORIGINAL = WeightFormat("original DINOv3 or EVA-02", is_original, from_original, original_config_values,
                               EXCLUDED)
