"""timm's ParallelScalingBlock: attention and MLP side by side, their first projections in one matrix."""

import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from vit.weights.renaming import Renamed

LEAVES = {  # ours -> timm's
    "norm1.": "in_norm.",
    "attn.proj.": "attn_out_proj.",
    "attn.q_norm.": "q_norm.",
    "attn.k_norm.": "k_norm.",
    "mlp.fc2.": "mlp_out_proj.",
    "ls1.": "ls.",
}
FC1, QKV = "mlp.fc1.", "attn.qkv."  # together `in_proj`, in this order
BLOCK = re.compile(r"(blocks\.\d+\.)(.*)")
PARALLEL_RULES = [
    *((r"blocks\.(\d+)\." + re.escape(theirs), r"encoder.blocks.\1." + own) for own, theirs in LEAVES.items()),
    (r"blocks\.(\d+)\.mlp_bias$", r"encoder.blocks.\1.mlp.fc1.bias"),
]
# by whether there is LayerScale, which words in a config file cannot undo
ARCHITECTURES = {False: "vit_base_patch16_xp_224", True: "vit_pwee_patch16_reg1_gap_256"}


def split_in_proj(ours: Renamed) -> None:
    """The first projections of attention and MLP, each its own again."""
    for name in [name for name in ours if re.fullmatch(r"encoder\.blocks\.\d+\.in_proj\.(weight|bias)", name)]:
        block, leaf = name.split("in_proj.")
        attention = ours.get(block + "attn.proj.weight")
        if attention is None or ours[name].shape[0] <= 3 * attention.shape[1]:
            raise ValueError(f"{ours.origins[name][0]} is there, but no attn_out_proj that fits it; the file is cut")
        heads = 3 * attention.shape[1]
        ours.split(name, {block + FC1 + leaf: ours[name].shape[0] - heads, block + QKV + leaf: heads})


def join_in_proj(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Blocks with timm's names for serial ones, as its parallel ones have them."""
    theirs = {}
    for name, tensor in state.items():
        block, leaf = BLOCK.fullmatch(name).groups() if BLOCK.fullmatch(name) else ("", name)
        own = next((own for own in LEAVES if block and leaf.startswith(own)), None)
        if own is not None:
            theirs[block + LEAVES[own] + leaf.removeprefix(own)] = tensor
        elif leaf.startswith(QKV):  # stands before the MLP's
            theirs[block + "in_proj." + leaf.removeprefix(QKV)] = tensor
        elif leaf.startswith(FC1):
            joint = block + "in_proj." + leaf.removeprefix(FC1)
            if joint in theirs:
                theirs[joint] = torch.cat([tensor, theirs[joint]])
            else:
                theirs[block + "mlp_bias"] = tensor
        else:
            theirs[name] = tensor
    return theirs


def as_serial(block: Any) -> Any:
    """A parallel block of timm with the attributes of its other blocks; any other block as it is."""
    if type(block).__name__ != "ParallelScalingBlock":
        return block
    attn = SimpleNamespace(num_heads=block.num_heads, proj=block.attn_out_proj)
    mlp = SimpleNamespace(act=block.mlp_act, fc2=block.mlp_out_proj)
    return SimpleNamespace(attn=attn, mlp=mlp, norm1=block.in_norm, ls1=block.ls)
