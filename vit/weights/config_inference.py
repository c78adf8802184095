"""The config of a model, inferred from the names and shapes of its tensors under vit's parameter names."""

import re
from collections.abc import Mapping
from typing import Any

from vit.weights.image_config_inference import as_pair, infer_image_model
from vit.weights.weight_format import State

# (dim, depth) -> number of heads of published models; it cannot be inferred for other sizes
PUBLISHED_NUM_HEADS = {
    (128, 2): 2, (192, 12): 3, (256, 4): 4, (256, 12): 4, (384, 12): 6, (512, 4): 8, (512, 8): 8, (512, 12): 8,
    (512, 20): 8, (640, 12): 10, (768, 12): 12, (896, 18): 14, (1024, 24): 16, (1152, 27): 16, (1280, 32): 16,
    (1408, 40): 16, (1536, 40): 24, (1664, 48): 16, (1792, 64): 16, (4096, 40): 32,
}
BLOCK = re.compile(r"encoder\.blocks\.(\d+)\.")
FIRST = "encoder.blocks.0."
MATRICES = ("attn.qkv.weight", "attn.proj.weight", "mlp.fc1.weight", "mlp.fc2.weight")


class ConfigMismatch(ValueError):
    """The tensors are not those of the model that the config beside them describes."""


def infer_config(state: State, config_values: Mapping[str, Any]) -> dict[str, Any]:
    """The complete config, with its `kind`, of the model that has these tensors.

    Args:
        state: tensors under vit's parameter names.
        config_values: values stated by the source or the caller; None is ignored, and the shapes must agree with all
            others.

    Raises:
        ConfigMismatch: the shapes contradict a stated value.
        ValueError: the tensors are not those of a Vision Transformer or text encoder, contradict each other, or leave a
            value open that is not stated.
    """
    stated = {key: value for key, value in config_values.items() if value is not None}
    stack = infer_stack(state, stated)
    infer_rest = infer_image_model if is_image_model(state) else infer_text_model
    inferred = stack | infer_rest(state, {**stack, **stated})
    for key, value in stated.items():
        if key in inferred and not agree(key, inferred[key], value):
            raise ConfigMismatch(f"{key} is {format_value(value)} in the source's config or the argument, but "
                                 f"{format_value(inferred[key])} in the tensors; correct the value or use other "
                                 "weights")
    return {**inferred, **stated}


def check_declared(config: Mapping[str, Any], declared: Mapping[str, Any]) -> None:
    """Checks that a config which was inferred from tensors agrees with the declared one.

    Raises:
        ConfigMismatch: a value differs, or a declared part is not in the tensors; names both.
    """
    for key, value in declared.items():
        if key in config and not agree(key, config[key], value):
            raise ConfigMismatch(f"{key} is {format_value(value)} in the source's config, but "
                                 f"{format_value(config[key])} in its tensors; the file is truncated, or belongs to "
                                 "another config")


def published_num_heads(dim: int, depth: int) -> int | None:
    """The number of heads of published models of this size, which `infer_config` assumes if none is stated."""
    return PUBLISHED_NUM_HEADS.get((dim, depth))


def infer_stack(state: State, stated: Mapping[str, Any]) -> dict[str, Any]:
    """The values of `StackConfig`, from the blocks.

    Raises:
        ValueError: there are no complete blocks, or a value is neither visible nor stated.
    """
    numbers = {int(match[1]) for name in state if (match := BLOCK.match(name))}
    if not numbers or FIRST + "attn.qkv.weight" not in state:
        some = ", ".join(list(state)[:3]) or "nothing"
        raise ValueError(f"these are not the names of a Vision Transformer or text encoder: {some}")
    if missing := set(range(max(numbers) + 1)) - numbers:
        raise ValueError(f"block {min(missing)} is missing, but block {max(numbers)} is there; the file is truncated")
    check_first_block(state)
    inner, dim = state[FIRST + "attn.qkv.weight"].shape[0] // 3, state[FIRST + "attn.qkv.weight"].shape[1]
    check_equal_blocks(state, len(numbers))
    heads = infer_num_heads(state, stated, inner, dim, len(numbers))
    if stated.get("activation") is None:
        raise ValueError("the activation cannot be inferred from tensors; give activation=gelu, gelu_tanh (SigLIP), "
                         "quick_gelu (OpenAI's CLIP), relu or silu (vit convert --activation; with init_from it is "
                         "model.activation)")
    norm_bias = FIRST + "norm1.bias" in state
    return {
        "dim": dim,
        "depth": len(numbers),
        "num_heads": heads,
        "head_dim": None if inner == dim else inner // heads,
        "norm": stated.get("norm", "layer" if norm_bias else "rms"),
        "block": stated.get("block", "serial") if FIRST + "norm2.weight" in state else "parallel",
        "qkv_bias": any(FIRST + "attn.qkv." + leaf in state for leaf in ("bias", "q_bias")),
        "key_bias": FIRST + "attn.qkv.q_bias" not in state,
        "attn_norm": FIRST + "attn.norm.weight" in state,
        "proj_bias": FIRST + "attn.proj.bias" in state,
        "qk_norm": FIRST + "attn.q_norm.weight" in state,
        **infer_relative_positions(state),
        "layer_scale": stated.get("layer_scale", 1e-5) if FIRST + "ls1.gamma" in state else None,
        **infer_mlp(state, dim),
    }


def infer_relative_positions(state: State) -> dict[str, Any]:
    """The values of relative positions, which the blocks contain; none for other positions."""
    hidden = state.get(FIRST + "attn.relative.mlp.fc1.weight")
    return {} if hidden is None else {"positions": "relative", "relative_hidden": hidden.shape[0]}


def check_first_block(state: State) -> None:
    """Checks that the matrices of the first block are there and their shapes fit together.

    Raises:
        ValueError: one is missing, or two do not fit.
    """
    for leaf in MATRICES:
        if (matrix := state.get(FIRST + leaf)) is None or matrix.ndim != 2:
            fault = "is missing" if matrix is None else f"is {tuple(matrix.shape)}, which is not a matrix"
            raise ValueError(f"{leaf} of block 0 {fault}, but every block has one")
    (stacked, dim), (out, inner) = state[FIRST + "attn.qkv.weight"].shape, state[FIRST + "attn.proj.weight"].shape
    if stacked != 3 * inner or out != dim:
        raise ValueError(f"attn.qkv.weight is {(stacked, dim)}, but attn.proj.weight {(out, inner)}; it would have to "
                         f"be {(dim, stacked // 3)}")


def check_equal_blocks(state: State, depth: int) -> None:
    """Checks that every block has the names and shapes of the first one.

    Raises:
        ValueError: a block differs; names the parameter and both shapes.
    """
    first = {name.removeprefix(FIRST): tuple(state[name].shape) for name in state if name.startswith(FIRST)}
    for i in range(1, depth):
        prefix = f"encoder.blocks.{i}."
        block = {name.removeprefix(prefix): tuple(state[name].shape) for name in state if name.startswith(prefix)}
        if block != first:
            leaf = next(leaf for leaf in {**first, **block} if first.get(leaf) != block.get(leaf))
            raise ValueError(f"blocks differ: {leaf} is {first.get(leaf, 'absent')} in block 0, "
                             f"but {block.get(leaf, 'absent')} in block {i}")


def infer_num_heads(state: State, stated: Mapping[str, Any], inner: int, dim: int, depth: int) -> int:
    """The number of heads: from the norm of the queries (K,), else as stated, else as in published models of this size.

    Args:
        inner: width of the queries of all heads together, H * K.

    Raises:
        ValueError: none of them determines it, or it does not divide the queries' width.
    """
    heads = stated.get("num_heads")
    if (norm := state.get(FIRST + "attn.q_norm.weight")) is not None and inner % norm.shape[0] == 0:
        heads = inner // norm.shape[0]
    heads = heads or (published_num_heads(dim, depth) if inner == dim else None)
    if heads is None:
        raise ValueError(f"the number of heads cannot be inferred from tensors of dim {dim} and depth {depth}; "
                         "give num_heads= (vit convert --num-heads; with init_from it is model.num_heads)")
    if inner % heads:
        raise ValueError(f"num_heads {heads} does not divide the {inner} channels of the queries")
    return heads


def infer_mlp(state: State, dim: int) -> dict[str, Any]:
    """The values of the MLP, from fc1 (F,D), or (2*F,D) for SwiGLU, and fc2 (D,F).

    Raises:
        ValueError: they do not fit.
    """
    outputs, hidden = state[FIRST + "mlp.fc1.weight"].shape[0], state[FIRST + "mlp.fc2.weight"].shape[1]
    if outputs not in (hidden, 2 * hidden):
        raise ValueError(f"fc1 of the MLP has {outputs} outputs, but fc2 has {hidden} inputs; {hidden} or {2 * hidden} "
                         "outputs would fit")
    norm = FIRST + "mlp.norm.weight" in state
    return {"mlp": "mlp" if outputs == hidden else "swiglu", "mlp_ratio": hidden / dim, "mlp_norm": norm}


def is_image_model(state: State) -> bool:
    return any(name.startswith("embed.proj.") for name in state)


def infer_text_model(state: State, known: Mapping[str, Any]) -> dict[str, Any]:
    """The values of `MaskedTextConfig` (with a head for masked tokens) or `TextClassifierConfig` that the blocks do not
    determine.

    Raises:
        ValueError: there is no token embedding, or a value is neither visible nor stated.
    """
    if "embed.token.weight" not in state:
        raise ValueError("the tensors have neither a patch projection (embed.proj) nor a token embedding (embed.token)")
    table, segments = state.get("embed.pos_embed"), state.get("embed.segment.weight")
    if table is None and not {"positions", "max_len"} <= set(known):
        raise ValueError("there is no position table, so that positions and max_len cannot be inferred")
    inferred = {
        "kind": "masked_text" if "token_head.bias" in state else "text_classifier",
        "vocab_size": state["embed.token.weight"].shape[0],
        "max_len": known["max_len"] if table is None else table.shape[1],
        "positions": known["positions"] if table is None else "learned",
        "segments": 0 if segments is None else segments.shape[0],
        "embed_norm": "embed.norm.weight" in state,
        "pre_norm": "encoder.norm.weight" in state,
    }
    if inferred["kind"] == "text_classifier":
        pooler = "pool.dense.weight" in state
        inferred |= {"num_classes": state["head.weight"].shape[0] if "head.weight" in state else 0,
                     "pool": "pooler" if pooler else known.get("pool", "class")}
    return inferred


def agree(key: str, inferred: Any, stated: Any) -> bool:
    """Whether a stated value agrees with the tensors; of LayerScale only the presence is comparable, not the initial
    value.
    """
    if key in ("image_size", "patch_size"):
        return as_pair(stated) == as_pair(inferred)
    if key == "layer_scale":
        return (inferred is None) == (stated is None)
    if key in ("mlp_ratio", "pool_mlp_ratio") and None not in (inferred, stated):
        return abs(inferred - stated) < 1e-2  # the width of the MLP is rounded
    return inferred == stated


def format_value(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
