"""Google's `.npz` files: AugReg and the first ViTs as Flax named them, and big_vision (SigLIP too), to ours.

Their matrices are (in,out) with heads as axes of their own, ours (out,in). All blocks may be stacked along one axis.
"""

import math
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor

from vit.weights.renaming import Renamed, Rules
from vit.weights.weight_format import Format, State

ROOTS = ("", "opt/target/", "params/", "params/img/", "img/")
KERNEL = "embedding/kernel"
STACK = "Transformer/encoderblock/"
BLOCK = r"Transformer/encoderblock_(\d+)/"
NUMBER = re.compile(r"/encoderblock_\d+/")
COLOURS = 3
RULES: Rules = [
    (r"embedding/", "embed.proj."),
    (r"cls$", "embed.cls_token"),
    (r"(?:Transformer/posembed_input/)?pos_embedding$", "embed.pos_embed"),
    (r"Transformer/encoder_norm/", "encoder.norm."),
    (r"head/", "head."),
    (BLOCK + r"LayerNorm_0/", r"encoder.blocks.\1.norm1."),
    (BLOCK + r"LayerNorm_[12]/", r"encoder.blocks.\1.norm2."),
    (BLOCK + r"MultiHeadDotProductAttention_[01]/(q|k|v)(?:uery|ey|alue)/", r"encoder.blocks.\1.attn.\2."),
    (BLOCK + r"MultiHeadDotProductAttention_[01]/out/", r"encoder.blocks.\1.attn.proj."),
    (BLOCK + r"MlpBlock_[03]/Dense_0/", r"encoder.blocks.\1.mlp.fc1."),
    (BLOCK + r"MlpBlock_[03]/Dense_1/", r"encoder.blocks.\1.mlp.fc2."),
    (r"MAPHead_0/probe$", "pool.latent"),
    (r"MAPHead_0/MultiHeadDotProductAttention_0/(q|k|v)(?:uery|ey|alue)/", r"pool.attn.\1."),
    (r"MAPHead_0/MultiHeadDotProductAttention_0/out/", "pool.attn.proj."),
    (r"MAPHead_0/LayerNorm_0/", "pool.mlp_norm."),
    (r"MAPHead_0/MlpBlock_0/Dense_0/", "pool.mlp.fc1."),
    (r"MAPHead_0/MlpBlock_0/Dense_1/", "pool.mlp.fc2."),
]
LEAVES = {"scale": "weight", "kernel": "weight"}
APART = {
    r"(?:params/)?txt/": "the tower that reads text",
    r"(?:params/)?[tb]$": "how images and texts are compared",
    r"opt/state/": "the optimizer's memory",
}


def from_google(state: State) -> dict[str, Tensor]:
    """Their names and axes -> ours."""
    root = find_root(state)
    ours = Renamed(unstacked(state, root), [(re.escape(root) + pattern, name) for pattern, name in RULES])
    for name in list(ours):
        stem, _, leaf = name.rpartition(".")
        if name.startswith(("embed.", "encoder.blocks.", "encoder.norm.", "pool.", "head.")):
            target = f"{stem}.{LEAVES.get(leaf, leaf)}"
            ours.make(target, [name], partial(turned, target))
    if root + STACK + "LayerNorm_0/scale" in state:
        ours.origins = {name: tuple(NUMBER.sub("/encoderblock/", theirs) for theirs in origins)
                        for name, origins in ours.origins.items()}
    ours.fuse(("q", "k", "v"), "qkv", within="encoder.")
    ours.fuse(("k", "v"), "kv", within="pool.")
    return ours


def unstacked(state: State, root: str) -> dict[str, Tensor]:
    """A name per block, where all blocks are one tensor (depth,...)."""
    apart: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if name.startswith(root + STACK):
            rest = name.removeprefix(root + STACK)
            apart |= {f"{root}{STACK[:-1]}_{i}/{rest}": block for i, block in enumerate(tensor)}
        else:
            apart[name] = tensor
    return apart


def turned(name: str, tensor: Tensor) -> Tensor:
    """A tensor with their axes with ours."""
    leaf = name.rpartition(".")[2]
    if name == "embed.pos_embed":  # (1,N,D), or by rows and columns
        return tensor if tensor.ndim == 3 and tensor.shape[0] == 1 else tensor.flatten(0, -2)[None]
    if name == "embed.proj.weight":
        return as_patches(tensor).permute(3, 2, 0, 1)  # (ph,pw,C,D) -> (D,C,ph,pw)
    if leaf == "bias":
        return tensor.flatten()  # of heads (H,K)
    if leaf != "weight" or tensor.ndim == 1:
        return tensor
    if name.endswith(("attn.proj.weight", "head.weight")):
        return tensor.flatten(0, -2).T  # (H,K,D) -> (D,H*K)
    return tensor.flatten(1).T  # (D,H,K) -> (H*K,D), (in,out) -> (out,in)


def as_patches(kernel: Tensor) -> Tensor:
    """The projection of patches (ph,pw,C,D); of flattened ones, (ph*pw*C,D), those of square colour patches are known.
    """
    if kernel.ndim == 4:
        return kernel
    edge = math.isqrt(kernel.shape[0] // COLOURS)
    if edge * edge * COLOURS != kernel.shape[0]:
        raise ValueError(f"{KERNEL} is {tuple(kernel.shape)}: {kernel.shape[0]} numbers are no square patch of "
                         f"{COLOURS} colours")
    return kernel.unflatten(0, (edge, edge, COLOURS))


def find_root(state: State) -> str | None:
    """Where the image model's parameters stand in the file."""
    return next((root for root in ROOTS if root + KERNEL in state), None)


def is_google(state: State) -> bool:
    return find_root(state) is not None


def facts(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    """Heads are an axis of their own. Flax's `gelu` is the tanh form, which timm reads as the exact one."""
    root = find_root(state)
    name = next((name for name in state if name.startswith(f"{root}Transformer/encoderblock")
                 and name.endswith("/query/kernel")), None)
    heads = {} if name is None else {"num_heads": state[name].shape[-2]}
    tokens = root + "cls" in state
    pool = {} if f"{root}MAPHead_0/probe" in state else {"pool": "class" if tokens else "mean"}
    table = any(key.startswith(root) and key.endswith("pos_embedding") for key in state)
    positions = {} if table else {"positions": "sincos_simple"}
    return {"norm_eps": 1e-6, "activation": "gelu_tanh", **heads, **pool, **positions}


GOOGLE = Format("Google's npz", is_google, from_google, facts, APART)
