"""State dicts as the papers' own repositories save them, where those differ from timm's: DINO, DINOv2, DeiT III."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vit.weights.formats.timm import from_timm, is_timm, timm_declared, timm_facts
from vit.weights.formats.transformers import fold_class_position
from vit.weights.renaming import rename
from vit.weights.weight_format import Format, State

# theirs -> timm's; DINOv2's files for many GPUs hold blocks in chunks, with the block's own number inside
RULES = [
    (r"blocks\.\d+\.(\d+)\.", r"blocks.\1."),
    (r"register_tokens$", "reg_token"),
]
LEAVES = [
    (r"(blocks\.\d+\.)mlp\.w12\.", r"\1mlp.fc1."),
    (r"(blocks\.\d+\.)mlp\.w3\.", r"\1mlp.fc2."),
    (r"(blocks\.\d+\.)gamma_([12])$", r"\1ls\2.gamma"),
]
MARKS = ("mask_token", "register_tokens", "decoder_pos_embed", "blocks.0.mlp.w12.weight")
TEACHING = r"(?:[a-z_]+\.)*"
APART = {
    r"mask_token$": "what hid patches in pre-training",
    r"decoder_": "the decoder of pre-training",
    TEACHING + r"(?:dino_head|ibot_head)\.": "the head of self-distillation",
    TEACHING + r"head\.(?:mlp\.\d+|mlp|last_layer)\.": "the head of self-distillation",
}


def from_original(state: State) -> dict[str, Tensor]:
    """Their names -> ours. The class token keeps a position where registers have none: it becomes a part of it."""
    theirs = {timm_name(name): name for name in state}
    ours = from_timm({name: state[own] for name, own in theirs.items()})
    ours.origins = {name: tuple(theirs[each] for each in origins) for name, origins in ours.origins.items()}
    if "embed.reg_token" in ours:
        fold_class_position(ours)
    return ours


def timm_name(name: str) -> str:
    return rename(rename(name, RULES), LEAVES)


def is_original(state: State) -> bool:
    """timm's names for most, and something that timm's own files do not have."""
    heads = any(rename(name, [(pattern, "")]) != name for name in state for pattern in list(APART)[2:])
    return is_timm(state) and (is_deit3(state) or heads or any(mark in state for mark in MARKS))


def is_deit3(state: State) -> bool:
    return {"blocks.0.gamma_1", "pos_embed"} <= set(state) and not {"norm_pre.weight", "rope.freqs"} & set(state)


def facts(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    if {"module", "architecture"} & set(source_config):  # timm's RoPE-ViT has the names of DeiT III
        return timm_facts(state, source_config)
    gated = any(".mlp.w12." in name for name in state)
    return {"norm_eps": 1e-6, "activation": "silu" if gated else "gelu"}


def doubts(state: State) -> list[str]:
    if is_deit3(state) and not any(mark in state for mark in MARKS):
        return ["positions are a table alone, as in DeiT III; a RoPE-ViT with a table (*_rope_ape_*) has the same "
                "tensors, so load it with its config.json"]
    return []


ORIGINAL = Format("original DINO, DINOv2 or DeiT III", is_original, from_original, facts, APART, timm_declared,
                  doubts)
