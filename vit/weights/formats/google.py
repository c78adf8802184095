"""Google's `.npz` files of Flax: the first ViTs (arXiv 2010.11929), AugReg (2106.10270), and big_vision with SigLIP.

Flax stores matrices as (in,out), with an axis for the heads. The tensors of all blocks may be stacked along a first
axis.
"""

import math
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor

from vit.weights.renaming import RenamedState, RenameRules
from vit.weights.weight_format import State, WeightFormat

ROOTS = ("", "opt/target/", "params/", "params/img/", "img/")
KERNEL = "embedding/kernel"
STACK = "Transformer/encoderblock/"  # prefix of tensors of all blocks
BLOCK = r"Transformer/encoderblock_(\d+)/"
NUMBER = re.compile(r"/encoderblock_\d+/")
COLOUR_CHANNELS = 3
RULES: RenameRules = [
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
PARTS = ("embed.", "encoder.blocks.", "encoder.norm.", "pool.", "head.")
EXCLUDED = {
    r"(?:params/)?txt/": "the text tower",
    r"(?:params/)?[tb]$": "the comparison of images and texts",
    r"opt/state/": "the state of the optimizer",
}


def from_google(state: State) -> RenamedState:
    """The state under vit's names and with PyTorch's axes; queries, keys and values are fused."""
    root = find_root(state)
    rules = [(re.escape(root) + pattern, name) for pattern, name in RULES]
    converted = RenamedState(unstack_blocks(state, root), rules)
    for name in list(converted):
        stem, _, leaf = name.rpartition(".")
        if name.startswith(PARTS):
            target = f"{stem}.{LEAVES.get(leaf, leaf)}"
            converted.make(target, [name], partial(to_torch_axes, target))
    if root + STACK + "LayerNorm_0/scale" in state:
        converted.sources = {name: tuple(NUMBER.sub("/encoderblock/", source) for source in sources)
                             for name, sources in converted.sources.items()}
    converted.fuse(("q", "k", "v"), "qkv", prefix="encoder.")
    converted.fuse(("k", "v"), "kv", prefix="pool.")
    return converted


def unstack_blocks(state: State, root: str) -> dict[str, Tensor]:
    """The state with a tensor per block instead of one tensor (depth,...) of all blocks."""
    unstacked: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if name.startswith(root + STACK):
            rest = name.removeprefix(root + STACK)
            unstacked |= {f"{root}{STACK[:-1]}_{i}/{rest}": block for i, block in enumerate(tensor)}
        else:
            unstacked[name] = tensor
    return unstacked


def to_torch_axes(name: str, tensor: Tensor) -> Tensor:
    """A tensor of Flax with the axes of PyTorch."""
    leaf = name.rpartition(".")[2]
    if name == "embed.pos_embed":  # (1,N,D) or (rows,columns,D) -> (1,N,D)
        return tensor if tensor.ndim == 3 and tensor.shape[0] == 1 else tensor.flatten(0, -2)[None]
    if name == "embed.proj.weight":
        return as_patch_kernel(tensor).permute(3, 2, 0, 1)  # (ph,pw,C,D) -> (D,C,ph,pw)
    if leaf == "bias":
        return tensor.flatten()  # (H,K) -> (H*K,)
    if leaf != "weight" or tensor.ndim == 1:
        return tensor
    if name.endswith(("attn.proj.weight", "head.weight")):
        return tensor.flatten(0, -2).T  # (H,K,D) -> (D,H*K)
    return tensor.flatten(1).T  # (D,H,K) -> (H*K,D), (in,out) -> (out,in)


def as_patch_kernel(kernel: Tensor) -> Tensor:
    """The patch projection (ph,pw,C,D), also of flattened square RGB patches (ph*pw*C,D).

    Raises:
        ValueError: a flattened kernel is not of square RGB patches.
    """
    if kernel.ndim == 4:
        return kernel
    edge = math.isqrt(kernel.shape[0] // COLOUR_CHANNELS)
    if edge * edge * COLOUR_CHANNELS != kernel.shape[0]:
        raise ValueError(f"{KERNEL} is {tuple(kernel.shape)}, but {kernel.shape[0]} inputs are not a square patch of "
                         f"{COLOUR_CHANNELS} channels")
    return kernel.unflatten(0, (edge, edge, COLOUR_CHANNELS))


def find_root(state: State) -> str | None:
    """The prefix of the image model's parameters; None if there is no image model."""
    return next((root for root in ROOTS if root + KERNEL in state), None)


def is_google(state: State) -> bool:
    return find_root(state) is not None


def config_values(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    """The number of heads is an axis. Flax's `gelu` is the tanh approximation, although timm loads it as the exact one.
    """
    root = find_root(state)
    name = next((name for name in state if name.startswith(f"{root}Transformer/encoderblock")
                 and name.endswith("/query/kernel")), None)
    heads = {} if name is None else {"num_heads": state[name].shape[-2]}
    pool = {} if f"{root}MAPHead_0/probe" in state else {"pool": "class" if root + "cls" in state else "mean"}
    table = any(key.startswith(root) and key.endswith("pos_embedding") for key in state)
    positions = {} if table else {"positions": "sincos_simple"}
    return {"norm_eps": 1e-6, "activation": "gelu_tanh", **heads, **pool, **positions}


GOOGLE = WeightFormat("Google's npz", is_google, from_google, config_values, EXCLUDED)
