"""Import of state dicts of the original repositories of DINO (arXiv 2104.14294), DINOv2 (2304.07193) and DeiT III
(2204.07118) whose names differ from timm's.
"""

from collections.abc import Mapping
from typing import Any

from vit.weights.formats.timm import from_timm, is_timm, timm_config_values, timm_declared_config
from vit.weights.formats.transformers import fold_class_position
from vit.weights.renaming import RenamedState, rename
from vit.weights.weight_format import State, WeightFormat

# original name -> timm's; files of FSDP training group blocks in chunks: blocks.CHUNK.NUMBER.
RULES = [
    (r"blocks\.\d+\.(\d+)\.", r"blocks.\1."),
    (r"register_tokens$", "reg_token"),
]
BLOCK_RULES = [
    (r"(blocks\.\d+\.)mlp\.w12\.", r"\1mlp.fc1."),
    (r"(blocks\.\d+\.)mlp\.w3\.", r"\1mlp.fc2."),
    (r"(blocks\.\d+\.)gamma_([12])$", r"\1ls\2.gamma"),
]
REGISTERS = "register_tokens"  # name in DINOv2 with registers
MARKERS = ("mask_token", REGISTERS, "decoder_pos_embed", "blocks.0.mlp.w12.weight")  # names that timm's own files lack
WRAPPERS = r"(?:[a-z_]+\.)*"  # prefixes such as "teacher." in files with student and teacher
DISTILLATION_HEADS = (WRAPPERS + r"(?:dino_head|ibot_head)\.", WRAPPERS + r"head\.(?:mlp\.\d+|mlp|last_layer)\.")
EXCLUDED = {
    r"mask_token$": "the mask token of pre-training",
    r"decoder_": "the decoder of pre-training",
    **dict.fromkeys(DISTILLATION_HEADS, "the head of self-distillation"),
}


def from_dino(state: State) -> RenamedState:
    """The state under vit's names. A DINOv2 with registers has a position for the class token but none for the
    registers; the position is added to the class token.
    """
    originals = {timm_name(name): name for name in state}
    converted = from_timm({name: state[original] for name, original in originals.items()})
    converted.sources = {name: tuple(originals[each] for each in sources)
                         for name, sources in converted.sources.items()}
    if REGISTERS in state:  # timm's own register tokens have positions, or the class token has none
        fold_class_position(converted)
    return converted


def timm_name(name: str) -> str:
    return rename(rename(name, RULES), BLOCK_RULES)


def is_dino(state: State) -> bool:
    """Whether the names are timm's, with at least one that timm's own files do not have."""
    heads = any(rename(name, [(pattern, "")]) != name for name in state for pattern in DISTILLATION_HEADS)
    return is_timm(state) and (is_deit3(state) or heads or any(name in state for name in MARKERS))


def is_deit3(state: State) -> bool:
    return {"blocks.0.gamma_1", "pos_embed"} <= set(state) and not {"norm_pre.weight", "rope.freqs"} & set(state)


def config_values(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    if {"module", "architecture"} & set(source_config):  # timm's RoPE-ViT has the names of DeiT III
        return timm_config_values(state, source_config)
    gated = any(".mlp.w12." in name for name in state)
    return {"norm_eps": 1e-6, "activation": "silu" if gated else "gelu"}


def assumptions(state: State) -> list[str]:
    if is_deit3(state) and not any(name in state for name in MARKERS):
        return ["positions are assumed to be a table only, as in DeiT III; a RoPE-ViT with a table (*_rope_ape_*) has "
                "the same tensors, so load it with its config.json"]
    return []


DINO = WeightFormat("original DINO, DINOv2 or DeiT III", is_dino, from_dino, config_values, EXCLUDED,
                    timm_declared_config, assumptions)
