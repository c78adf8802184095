"""DINOv3 as transformers and its own repository save it, and EVA-02 as its own does, to ours; ours as transformers'."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vit.weights.exporting import Written, fixed, parted, require, scaled
from vit.weights.formats.timm import DINOV3_HEADS, TIMM_RULES, is_timm
from vit.weights.formats.timm.eva import join_leaves, keep
from vit.weights.formats.transformers import declared_classes, image_words, read_config, shared_words
from vit.weights.renaming import Names, Renamed
from vit.weights.weight_format import Format, State

LAYER, BLOCK = "layer.{}.", "encoder.blocks.{}."
NAMES = Names(
    [
        ("embeddings.patch_embeddings.", "embed.proj."),
        ("embeddings.cls_token", "embed.cls_token"),
        ("embeddings.register_tokens", "embed.reg_token"),
        ("norm.", "encoder.norm."),
        (LAYER + "norm{}.", BLOCK + "norm{}."),
        *((LAYER + f"attention.{part}_proj.", BLOCK + f"attn.{part}.") for part in "qkv"),
        *((LAYER + f"attention.{part}_proj.bias", BLOCK + f"attn.qkv.{part}_bias") for part in "qv"),  # no key's
        (LAYER + "attention.o_proj.", BLOCK + "attn.proj."),
        (LAYER + "layer_scale{}.lambda1", BLOCK + "ls{}.gamma"),
        (LAYER + "mlp.gate_proj.", BLOCK + "mlp.fc1_g."),
        (LAYER + "mlp.up_proj.", BLOCK + "mlp.fc1_x."),
        (LAYER + "mlp.up_proj.", BLOCK + "mlp.fc1."),
        (LAYER + "mlp.down_proj.", BLOCK + "mlp.fc2."),
    ],
    before=["model."],
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
HIDING = "what hid patches in pre-training"
COMPUTED = "its rotary positions, which are computed here"
APART = {
    r"(?:embeddings\.)?mask_token$": HIDING,
    r"lm_head\.": HIDING,
    r"(?:.*\.)?rope\w*\.(?:freqs_cos|freqs_sin|periods|inv_freq)$": COMPUTED,
    ORIGINAL_BLOCK + r"attn\.qkv\.bias_mask$": "which of the biases are zero: those of the keys",
    r"local_cls_norm\.": "a norm for small crops in pre-training",
}
PATCHES = 16  # along an edge, where nobody says it: any number will do, for the positions are relative to the image


def from_dinov3(state: State) -> dict[str, Tensor]:
    """transformers' DINOv3ViTModel -> ours; queries, keys and values become one matrix, gate and value too."""
    ours = Renamed(state, NAMES.ours)
    if not any(".mlp.fc1_g." in name for name in ours):
        for name in [name for name in ours if ".mlp.fc1_x." in name]:
            ours.make(name.replace("fc1_x", "fc1"), [name], keep)
    if not ours["embed.reg_token"].numel():  # the file of a model without registers
        del ours["embed.reg_token"], ours.origins["embed.reg_token"]
    join_leaves(ours)
    return ours


def from_original(state: State) -> dict[str, Tensor]:
    """DINOv3's and EVA-02's own names -> ours; a bias that is masked for the keys becomes one without them."""
    ours = Renamed(state, ORIGINAL_RULES)
    for mask in [name for name in ours if name.endswith(".attn.qkv.bias_mask")]:
        bias = mask.removesuffix("_mask")
        stem = bias.removesuffix("bias")
        ours.split(bias, {stem + "q_bias": 1, stem + "k_bias": 1, stem + "v_bias": 1})
        del ours[stem + "k_bias"], ours.origins[stem + "k_bias"]
        ours[mask.removeprefix("encoder.")] = ours.pop(mask)  # its own name: it has no home here
        ours.origins[mask.removeprefix("encoder.")] = ours.origins.pop(mask)
    join_leaves(ours)
    return ours


def to_dinov3(state: State, config: Any) -> Written:
    """Ours as transformers' DINOv3ViTModel, which has no classes.

    Raises:
        ValueError: that cannot be this network.
    """
    also = {"positions": ("rotary",), "rotary_coordinates": ("centred",), "rotary_pairs": ("rotate_half",),
            "rotary_columns_first": (False,), "rotary_mixed": (False,), "mlp": ("mlp", "swiglu"), "num_classes": (0,)}
    require(config, "transformers' DINOv3", also, free=("registers", "layer_scale", "key_bias"))
    none = torch.zeros(1, 0, config.dim)
    ours = {"embed.reg_token": none, "embeddings.mask_token": none.new_zeros(1, 1, config.dim)} | scaled(state, config)
    if config.mlp == "swiglu":
        for name in [name for name in ours if ".mlp.fc1." in name]:
            gate, value = ours.pop(name).chunk(2)
            ours |= {name.replace(".fc1.", ".fc1_g."): gate, name.replace(".fc1.", ".fc1_x."): value}
    said = {
        "architectures": ["DINOv3ViTModel"], "model_type": "dinov3_vit", **shared_words(config), **image_words(config),
        "query_bias": config.qkv_bias, "key_bias": config.qkv_bias and config.key_bias, "value_bias": config.qkv_bias,
        "rope_theta": config.rotary_theta, "use_gated_mlp": config.mlp == "swiglu",
        "num_register_tokens": config.registers, "attention_dropout": config.attention_dropout,
    }
    return said, {NAMES.theirs(name): tensor for name, tensor in parted(ours).items()}


def is_dinov3(state: State) -> bool:
    return "embeddings.patch_embeddings.weight" in state and "embeddings.register_tokens" in state


def is_original(state: State) -> bool:
    marks = ("storage_tokens", "rope_embed.periods", "rope.freqs_cos", "blocks.0.attn.inner_attn_ln.weight",
             "blocks.0.mlp.ffn_ln.weight")
    return is_timm(state) and any(mark in state for mark in marks)


def dinov3_facts(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    """From config.json; without one, what all published DINOv3 have."""
    patch = state["embeddings.patch_embeddings.weight"]
    gated = any(".mlp.gate_proj." in name for name in state)
    stated = read_config(source_config)
    return {
        **centred(patch, float(source_config.get("rope_theta", 100.0))),
        "activation": "silu" if gated else "gelu",
        "layer_scale": source_config.get("layerscale_value"),
        **stated,
    }


def dinov3_declared(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    """Every part of a DINOv3ViTModel of this config.json."""
    if source_config.get("model_type") is None:
        return {}
    biased = {part: source_config.get(f"{part}_bias", part != "key") for part in ("query", "key", "value")}
    return fixed(
        positions="rotary",
        layer_scale=source_config.get("layerscale_value", 1.0),
        registers=source_config.get("num_register_tokens", 0),
        qkv_bias=any(biased.values()),
        key_bias=biased["key"] or not biased["query"],
        proj_bias=source_config.get("proj_bias", True),
        mlp="swiglu" if source_config.get("use_gated_mlp", False) else "mlp",
        mlp_ratio=source_config.get("intermediate_size", 1536) / source_config.get("hidden_size", 384),
        **declared_classes(source_config),
    )


def original_facts(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    """What all published files of these names have; the tables of the rotary positions tell the heads."""
    dim = state["patch_embed.proj.weight"].shape[0]
    gated = any(leaf in state for leaf in ("blocks.0.mlp.w1.weight", "blocks.0.mlp.w12.weight"))
    facts = {"activation": "silu" if gated else "gelu", "num_heads": None}
    if "pos_embed" in state:
        if "rope.freqs_cos" in state:
            facts["num_heads"] = dim // state["rope.freqs_cos"].shape[-1]
        return {**facts, "norm_eps": 1e-6, "positions": "learned_rotary", "rotary_theta": 10_000.0,
                "rotary_pairs": "interleaved", "rotary_span": [PATCHES, PATCHES]}
    facts["num_heads"] = DINOV3_HEADS.get(dim)
    if "rope_embed.periods" in state:
        facts["num_heads"] = dim // (4 * len(state["rope_embed.periods"]))
    return {**centred(state["patch_embed.proj.weight"], 100.0), **facts}


def centred(patch: Tensor, theta: float) -> dict[str, Any]:
    """DINOv3's rotary positions for PATCHES x PATCHES patches, of a projection (D,C,ph,pw)."""
    return {
        "norm_eps": 1e-5,
        "pool": "class",
        "positions": "rotary",
        "rotary_coordinates": "centred",
        "rotary_theta": theta,
        "image_size": [PATCHES * edge for edge in patch.shape[2:]],
        "num_heads": DINOV3_HEADS.get(patch.shape[0]),
    }


DINOV3 = Format("transformers DINOv3", is_dinov3, from_dinov3, dinov3_facts, APART, dinov3_declared)
DINOV3_ORIGINAL = Format("original DINOv3 or EVA-02", is_original, from_original, original_facts, APART)
