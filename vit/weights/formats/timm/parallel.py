"""timm's ParallelScalingBlock (ViT-22B, arXiv 2302.05442): attention and MLP in parallel, their first layers fused."""

import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from vit.weights.renaming import RenamedState

LEAVES = {  # vit -> timm
    "norm1.": "in_norm.",
    "attn.proj.": "attn_out_proj.",
    "attn.q_norm.": "q_norm.",
    "attn.k_norm.": "k_norm.",
    "mlp.fc2.": "mlp_out_proj.",
    "ls1.": "ls.",
}
FC1, QKV = "mlp.fc1.", "attn.qkv."  # concatenated in this order they are timm's `in_proj`
BLOCK = re.compile(r"(blocks\.\d+\.)(.*)")
PARALLEL_RULES = [
    *((r"blocks\.(\d+)\." + re.escape(leaf), r"encoder.blocks.\1." + own) for own, leaf in LEAVES.items()),
    (r"blocks\.(\d+)\.mlp_bias$", r"encoder.blocks.\1.mlp.fc1.bias"),
]
# by whether the blocks have LayerScale, which model_args cannot remove
ARCHITECTURES = {False: "vit_base_patch16_xp_224", True: "vit_pwee_patch16_reg1_gap_256"}


def split_in_proj(converted: RenamedState) -> None:
    """Split `in_proj` (F+3*H*K,D) into the MLP's first layer (F,D) and queries, keys and values (3*H*K,D).

    Raises:
        ValueError: the output projection of the attention is missing, or its shape does not match.
    """
    for name in [name for name in converted if re.fullmatch(r"encoder\.blocks\.\d+\.in_proj\.(weight|bias)", name)]:
        block, leaf = name.split("in_proj.")
        proj = converted.get(block + "attn.proj.weight")
        if proj is None or converted[name].shape[0] <= 3 * proj.shape[1]:
            raise ValueError(f"the file has {converted.sources[name][0]}, but no attn_out_proj of a matching shape; it "
                             "is truncated")
        qkv = 3 * proj.shape[1]
        converted.split(name, {block + FC1 + leaf: converted[name].shape[0] - qkv, block + QKV + leaf: qkv})


def join_in_proj(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert the state of parallel blocks from the names of timm's serial blocks to its ParallelScalingBlock."""
    foreign = {}
    for name, tensor in state.items():
        block, leaf = BLOCK.fullmatch(name).groups() if BLOCK.fullmatch(name) else ("", name)
        own = next((own for own in LEAVES if block and leaf.startswith(own)), None)
        if own is not None:
            foreign[block + LEAVES[own] + leaf.removeprefix(own)] = tensor
        elif leaf.startswith(QKV):  # comes before the MLP's in a state dict
            foreign[block + "in_proj." + leaf.removeprefix(QKV)] = tensor
        elif leaf.startswith(FC1):
            joint = block + "in_proj." + leaf.removeprefix(FC1)
            if joint in foreign:
                foreign[joint] = torch.cat([tensor, foreign[joint]])
            else:
                foreign[block + "mlp_bias"] = tensor
        else:
            foreign[name] = tensor
    return foreign


def as_serial(block: Any) -> Any:
    """A ParallelScalingBlock with the attributes of timm's other blocks; any other block unchanged."""
    if type(block).__name__ != "ParallelScalingBlock":
        return block
    attn = SimpleNamespace(num_heads=block.num_heads, proj=block.attn_out_proj)
    mlp = SimpleNamespace(act=block.mlp_act, fc2=block.mlp_out_proj)
    return SimpleNamespace(attn=attn, mlp=mlp, norm1=block.in_norm, ls1=block.ls)
