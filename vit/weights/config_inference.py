"""The architecture, read off names and shapes: which network a state dict under our names belongs to."""

import math
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

State = Mapping[str, Tensor]

# (dim, depth) -> heads, as published; any other pair needs to be told
HEADS = {
    (128, 2): 2, (192, 12): 3, (256, 4): 4, (256, 12): 4, (384, 12): 6, (512, 4): 8, (512, 8): 8, (512, 12): 8,
    (512, 20): 8, (640, 12): 10, (768, 12): 12, (896, 18): 14, (1024, 24): 16, (1152, 27): 16, (1280, 32): 16,
    (1408, 40): 16, (1536, 40): 24, (1664, 48): 16, (1792, 64): 16, (4096, 40): 32,
}
TOKENS = ("embed.cls_token", "embed.dist_token", "embed.reg_token")  # what stands before the patches
BLOCK = re.compile(r"encoder\.blocks\.(\d+)\.")
FIRST = "encoder.blocks.0."
MATRICES = ("attn.qkv.weight", "attn.proj.weight", "mlp.fc1.weight", "mlp.fc2.weight")


class Contradiction(ValueError):
    """Tensors are not those of the network that the config beside them describes."""


def detect(ours: State, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The whole config, with its `kind`, of the network whose tensors these are.

    Args:
        ours: tensors under our names.
        facts: config values that the source or the caller states; shapes must agree with them, None says nothing.

    Raises:
        ValueError: no network of ours; shapes that contradict each other or a fact; something nobody states.
    """
    facts = {key: value for key, value in facts.items() if value is not None}
    stack = read_stack(ours, facts)
    read = read_image if is_image(ours) else read_text
    seen = stack | read(ours, {**stack, **facts})
    for key, value in facts.items():
        if key in seen and not same(key, seen[key], value):
            raise Contradiction(f"{key} is {plain(value)} by the source's config or the argument, but the tensors have "
                                f"{plain(seen[key])}; correct the one or take the other weights")
    return {**seen, **facts}


def check_declared(config: Mapping[str, Any], declared: Mapping[str, Any]) -> None:
    """That a config which was read off tensors is the declared one.

    Raises:
        Contradiction: another value was declared, or a part that the tensors lack; names both.
    """
    for key, value in declared.items():
        if key in config and not same(key, config[key], value):
            raise Contradiction(f"{key} is {plain(value)} by the source's config, but {plain(config[key])} by its "
                                "tensors; the file is cut, or belongs to another config")


def published_heads(dim: int, depth: int) -> int | None:
    """The number of heads of published models of this size; what `detect` takes where facts have no `num_heads`."""
    return HEADS.get((dim, depth))


def read_stack(ours: State, facts: Mapping[str, Any]) -> dict[str, Any]:
    """What the blocks show: `StackConfig`."""
    numbers = {int(found[1]) for name in ours if (found := BLOCK.match(name))}
    if not numbers or FIRST + "attn.qkv.weight" not in ours:
        some = ", ".join(list(ours)[:3]) or "nothing"
        raise ValueError(f"no Vision Transformer or text encoder is known by these names: {some}")
    if missing := set(range(max(numbers) + 1)) - numbers:
        raise ValueError(f"block {min(missing)} is missing, though there is a block {max(numbers)}; the file is cut")
    check_first(ours)
    inner, dim = ours[FIRST + "attn.qkv.weight"].shape[0] // 3, ours[FIRST + "attn.qkv.weight"].shape[1]
    check_blocks(ours, len(numbers))
    heads = read_heads(ours, facts, inner, dim, len(numbers))
    if facts.get("activation") is None:
        raise ValueError("the activation cannot be read off tensors; give act=gelu, gelu_tanh (SigLIP), quick_gelu "
                         "(OpenAI's CLIP), relu or silu (vit convert --act; beside init_from it is model.activation)")
    norm_bias = FIRST + "norm1.bias" in ours
    return {
        "dim": dim,
        "depth": len(numbers),
        "num_heads": heads,
        "head_dim": None if inner == dim else inner // heads,
        "norm": facts.get("norm", "layer" if norm_bias else "rms"),
        "block": facts.get("block", "serial") if FIRST + "norm2.weight" in ours else "parallel",
        "qkv_bias": any(FIRST + "attn.qkv." + leaf in ours for leaf in ("bias", "q_bias")),
        "key_bias": FIRST + "attn.qkv.q_bias" not in ours,
        "attn_norm": FIRST + "attn.norm.weight" in ours,
        "proj_bias": FIRST + "attn.proj.bias" in ours,
        "qk_norm": FIRST + "attn.q_norm.weight" in ours,
        **read_relative(ours),
        "layer_scale": facts.get("layer_scale", 1e-5) if FIRST + "ls1.gamma" in ours else None,
        **read_mlp(ours, dim),
    }


def read_relative(ours: State) -> dict[str, Any]:
    """Positions that the blocks hold themselves."""
    hidden = ours.get(FIRST + "attn.relative.mlp.fc1.weight")
    return {} if hidden is None else {"positions": "relative", "relative_hidden": hidden.shape[0]}


def check_first(ours: State) -> None:
    """The matrices of the first block are there and fit each other."""
    for leaf in MATRICES:
        if (matrix := ours.get(FIRST + leaf)) is None or matrix.ndim != 2:
            there = "is missing" if matrix is None else f"is {tuple(matrix.shape)}, which is no matrix"
            raise ValueError(f"{leaf} of block 0 {there}, but every block of ours has one")
    (stacked, dim), (out, inner) = ours[FIRST + "attn.qkv.weight"].shape, ours[FIRST + "attn.proj.weight"].shape
    if stacked != 3 * inner or out != dim:
        raise ValueError(f"attn.qkv.weight is {(stacked, dim)}, but attn.proj.weight {(out, inner)}; it would have to "
                         f"be {(dim, stacked // 3)}")


def check_blocks(ours: State, depth: int) -> None:
    """All blocks are of one form: the first block's names and shapes in every other."""
    first = {name.removeprefix(FIRST): tuple(ours[name].shape) for name in ours if name.startswith(FIRST)}
    for i in range(1, depth):
        start = f"encoder.blocks.{i}."
        block = {name.removeprefix(start): tuple(ours[name].shape) for name in ours if name.startswith(start)}
        if block != first:
            leaf = next(leaf for leaf in {**first, **block} if first.get(leaf) != block.get(leaf))
            raise ValueError(f"blocks differ: {leaf} is {first.get(leaf, 'absent')} in block 0, "
                             f"but {block.get(leaf, 'absent')} in block {i}")


def read_heads(ours: State, facts: Mapping[str, Any], inner: int, dim: int, depth: int) -> int:
    """Norms of queries tell it, a fact states it, or the size is a published one."""
    heads = facts.get("num_heads")
    if (norm := ours.get(FIRST + "attn.q_norm.weight")) is not None and inner % norm.shape[0] == 0:
        heads = inner // norm.shape[0]
    heads = heads or (published_heads(dim, depth) if inner == dim else None)
    if heads is None:
        raise ValueError(f"the number of heads cannot be read off tensors of dim {dim} and depth {depth}; "
                         "give num_heads= (vit convert --num-heads; beside init_from it is model.num_heads)")
    if inner % heads:
        raise ValueError(f"num_heads {heads} does not divide the {inner} channels of the queries")
    return heads


def read_mlp(ours: State, dim: int) -> dict[str, Any]:
    widened, hidden = ours[FIRST + "mlp.fc1.weight"].shape[0], ours[FIRST + "mlp.fc2.weight"].shape[1]
    if widened not in (hidden, 2 * hidden):
        raise ValueError(f"the MLP's fc1 gives {widened} channels, but fc2 takes {hidden}, neither all nor half of it")
    norm = FIRST + "mlp.norm.weight" in ours
    return {"mlp": "mlp" if widened == hidden else "swiglu", "mlp_ratio": hidden / dim, "mlp_norm": norm}


def is_image(ours: State) -> bool:
    return any(name.startswith("embed.proj.") for name in ours)


def read_image(ours: State, known: Mapping[str, Any]) -> dict[str, Any]:
    """What stands around the blocks of a `VisionTransformerConfig`."""
    if (patches := ours.get("embed.proj.weight")) is None:
        raise ValueError("a convolutional stem's strides cannot be read off its tensors; load the folder it came in")
    if patches.ndim != 4 or patches.shape[0] != known["dim"]:
        raise ValueError(f"embed.proj.weight is {tuple(patches.shape)}, but must be ({known['dim']}, channels, "
                         "patch height, patch width)")
    for name in TOKENS:
        if name in ours and (ours[name].ndim != 3 or ours[name].shape[2] != known["dim"]):
            raise ValueError(f"{name} is {tuple(ours[name].shape)}, but must be (1, tokens, {known['dim']})")
    tokens = {name: ours[name].shape[1] for name in TOKENS if name in ours}
    seen = {
        "kind": "vit",
        "in_chans": patches.shape[1],
        "patch_bias": "embed.proj.bias" in ours,
        "patch_norm": "embed.proj.norm.weight" in ours,
        "embed_norm": "embed.norm.weight" in ours,
        "stem": "normed" if "embed.proj.before.weight" in ours else "linear",
        "patch_size": list(patches.shape[2:]),
        "class_token": "embed.cls_token" in tokens,
        "dist_token": "embed.dist_token" in tokens,
        "registers": tokens.get("embed.reg_token", 0),
        "num_classes": ours["head.weight"].shape[0] if "head.weight" in ours else 0,
        **read_pool(ours, known),
    }
    return seen | read_positions(ours, {**known, **seen}, sum(tokens.values()))


def read_positions(ours: State, known: Mapping[str, Any], prefix: int) -> dict[str, Any]:
    """The grid and whether class token and registers have rows, from the length of the table."""
    if (table := ours.get("embed.pos_embed")) is None:
        for key in ("positions", "image_size"):
            if key not in known:
                also = "give image_size=, or " if key == "image_size" else ""
                raise ValueError(f"there is no position table, so the tensors do not tell {key}; {also}load the folder "
                                 "with the config.json they came with")
        return {"positions": known["positions"], "image_size": pair(known["image_size"]), "prefix_positions": True}
    if known.get("positions", "learned") not in ("learned", "learned_rotary"):
        raise ValueError(f"positions are {known['positions']} by the source's config, but the tensors have a table")
    if table.ndim != 3 or table.shape[2] != known["dim"]:
        raise ValueError(f"embed.pos_embed is {tuple(table.shape)}, but must be (1, tokens, {known['dim']})")
    length, patch = table.shape[1], known["patch_size"]
    if "image_size" in known:
        grid = tuple(size // edge for size, edge in zip(pair(known["image_size"]), patch, strict=True))
        if length - math.prod(grid) not in (0, prefix):
            raise ValueError(f"a position table of {length} rows does not fit image_size {pair(known['image_size'])} "
                             f"in patches of {tuple(patch)}: {math.prod(grid)} patches and {prefix} tokens before them")
    else:
        grid = square(length, prefix)
    return {
        "positions": known.get("positions", "learned"),
        "image_size": [grid[0] * patch[0], grid[1] * patch[1]],
        "prefix_positions": length > math.prod(grid) or prefix == 0,
    }


def square(length: int, prefix: int) -> tuple[int, int]:
    """The square grid of a table of `length` rows, which may have rows for the `prefix` first tokens or not."""
    edges = [math.isqrt(patches) for patches in dict.fromkeys((length - prefix, length))
             if patches > 0 and math.isqrt(patches) ** 2 == patches]
    if len(edges) != 1:
        what = "could be of two square grids" if edges else "is of no square grid"
        raise ValueError(f"a position table of {length} rows {what}; the source's image size must be stated")
    return edges[0], edges[0]


def read_pool(ours: State, known: Mapping[str, Any]) -> dict[str, Any]:
    """How tokens become a vector: parameters tell attention pooling and the last norm, else facts or what is usual."""
    norms = [place for place, name in (("tokens", "encoder.norm.weight"), ("pooled", "pool.norm.weight"))
             if name in ours]
    if len(norms) > 1:
        raise ValueError("both encoder.norm and pool.norm are there, but a model has one last norm")
    final_norm = norms[0] if norms else "none"
    if "pool.latent" in ours:
        if "pool.mlp.fc1.weight" not in ours:
            raise ValueError("pool.latent is there, but not pool.mlp.fc1.weight: attention pooling has an MLP here")
        hidden, blocks = ours["pool.mlp.fc1.weight"].shape[0], round(known["mlp_ratio"] * known["dim"])
        ratio = None if hidden == blocks else hidden / known["dim"]
        return {"pool": "attention", "final_norm": final_norm, "pool_mlp_ratio": ratio}
    usual = "class" if "embed.cls_token" in ours and final_norm != "pooled" else "mean"
    if (head := ours.get("head.weight")) is not None and head.shape[1] == 2 * known["dim"]:
        return {"pool": "class_mean", "final_norm": final_norm}
    return {"pool": known.get("pool", usual), "final_norm": final_norm}


def read_text(ours: State, known: Mapping[str, Any]) -> dict[str, Any]:
    """What stands around the blocks of a `MaskedTextConfig`, or of a `TextClassifierConfig` where nothing is unmasked.
    """
    if "embed.token.weight" not in ours:
        raise ValueError("neither patches (embed.proj) nor words (embed.token) enter this network")
    table, segments = ours.get("embed.pos_embed"), ours.get("embed.segment.weight")
    if table is None and not {"positions", "max_len"} <= set(known):
        raise ValueError("there is no position table, so the tensors do not tell positions and max_len")
    seen = {
        "kind": "masked_text" if "token_head.bias" in ours else "text_classifier",
        "vocab_size": ours["embed.token.weight"].shape[0],
        "max_len": known["max_len"] if table is None else table.shape[1],
        "positions": known["positions"] if table is None else "learned",
        "segments": 0 if segments is None else segments.shape[0],
        "embed_norm": "embed.norm.weight" in ours,
        "pre_norm": "encoder.norm.weight" in ours,
    }
    if seen["kind"] == "text_classifier":
        pooler = "pool.dense.weight" in ours
        seen |= {"num_classes": ours["head.weight"].shape[0] if "head.weight" in ours else 0,
                 "pool": "pooler" if pooler else known.get("pool", "class")}
    return seen


def same(key: str, seen: Any, stated: Any) -> bool:
    """Whether a stated value is the one the tensors have; a LayerScale's first value is no longer to be seen."""
    if key in ("image_size", "patch_size"):
        return pair(stated) == pair(seen)
    if key == "layer_scale":
        return (seen is None) == (stated is None)
    if key == "mlp_ratio":
        return abs(seen - stated) < 1e-2
    return seen == stated


def pair(size: Any) -> list[int]:
    return [size, size] if isinstance(size, int) else [int(edge) for edge in size]


def plain(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
