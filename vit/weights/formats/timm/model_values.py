"""The values of vit's config that a timm model in memory has, and the first part of it that vit does not support."""

from collections.abc import Callable, Mapping
from typing import Any

from vit.weights.formats.timm.parallel import as_serial
from vit.weights.formats.timm.relative import relative_values, unsupported_relative_positions

# timm -> vit
POOLS = {"token": "class", "avg": "mean", "map": "attention"}
ACTIVATIONS = {"GELU": "gelu", "GELUTanh": "gelu_tanh", "QuickGELU": "quick_gelu", "SiLU": "silu", "ReLU": "relu"}
BLOCKS = {"Block": "serial", "EvaBlock": "serial", "ResPostBlock": "res_post_norm", "EvaBlockPostNorm": "res_post_norm",
          "ParallelScalingBlock": "parallel", "RelPosBlock": "serial", "ResPostRelPosBlock": "res_post_norm"}
# classes that are supported
MODELS = ("VisionTransformer", "VisionTransformerDistilled", "VisionTransformerRelPos", "Eva")
ATTENTIONS = ("Attention", "AttentionRope", "EvaAttention", "RelPosAttention", "SimpleNamespace")  # the last: as_serial
MIXED_ROPE, DINOV3_ROPE = "RotaryEmbeddingMixed", "RotaryEmbeddingDinoV3"
ROPES = ("NoneType", "RotaryEmbeddingCat", DINOV3_ROPE, MIXED_ROPE)


def model_values(module: Any) -> dict[str, Any]:
    """Config values of a VisionTransformer or Eva of timm that its tensors do not determine.

    Raises:
        ValueError: the model has a part that vit does not support.
    """
    if reason := unsupported_part(module):
        raise ValueError(f"this timm model has {reason}, which vit does not support")
    kind, block = type(module.blocks[0]).__name__, as_serial(module.blocks[0])
    pool = getattr(module, "attn_pool", None)
    return {
        "block": BLOCKS[kind],
        "num_heads": block.attn.num_heads,
        "norm": "rms" if "rms" in type(block.norm1).__name__.lower() else "layer",
        "norm_eps": block.norm1.eps,
        "activation": activation(block),
        "image_size": covered_image_size(module.patch_embed),
        "pool": POOLS[module.global_pool],
        "pool_prefix": module.num_prefix_tokens > 0 and pools_prefix(module),
        "pool_heads": None if pool is None or pool.num_heads == block.attn.num_heads else pool.num_heads,
        "prefix_positions": has_prefix_positions(module),
        "layer_scale": None if BLOCKS[kind] == "res_post_norm" else initial_layer_scale(block),
        **(relative_values(module) or absolute_or_rotary_values(module)),
    }


def covered_image_size(embed: Any) -> list[int]:
    """The part of an image that patches cover: timm ignores incomplete ones at the right and bottom edges."""
    return [patches * edge for patches, edge in zip(embed.grid_size, embed.patch_size, strict=True)]


def pools_prefix(module: Any) -> bool:
    """Whether class token and registers are pooled like patches; Eva's attention pooling always includes them."""
    return getattr(module, "pool_include_prefix", type(module).__name__ == "Eva" and module.attn_pool is not None)


def has_prefix_positions(module: Any) -> bool:
    """Whether class token and registers have positions; True without a table, and without such tokens."""
    table = getattr(module, "pos_embed", None)
    return table is None or not module.num_prefix_tokens or not module.no_embed_class


def activation(block: Any) -> str | None:
    act = block.mlp.act
    name = ACTIVATIONS.get(type(act).__name__)
    return "gelu_tanh" if name == "gelu" and getattr(act, "approximate", "none") == "tanh" else name


def initial_layer_scale(block: Any) -> float | None:
    """The initial value of LayerScale; 1e-5 if the module does not store it, None without LayerScale."""
    scale = getattr(block, "init_values", None) or getattr(getattr(block, "ls1", None), "init_values", None)
    return scale or (1e-5 if hasattr(getattr(block, "ls1", None), "gamma") else None)


def absolute_or_rotary_values(module: Any) -> dict[str, Any]:
    """The config values of the position table and rotary positions of a timm model."""
    rope = getattr(module, "rope", None)
    if rope is None:
        return {"positions": "none" if module.pos_embed is None else "learned"}
    values = {
        "positions": "rotary" if module.pos_embed is None else "learned_rotary",
        "rotary_theta": float(rope.temperature),
        "rotary_columns_first": rope.grid_indexing == "xy",
    }
    if type(rope).__name__ == MIXED_ROPE:
        return {**values, "rotary_mixed": True, "rotary_pairs": "interleaved"}
    values["rotary_pairs"] = "rotate_half" if rope.rotate_half else "interleaved"
    if type(rope).__name__ == DINOV3_ROPE:
        return {**values, "rotary_coordinates": "centred"}
    span = rope.ref_feat_shape
    return {**values, "rotary_offset": float(rope.grid_offset), "rotary_span": None if span is None else list(span)}


def unsupported_part(module: Any) -> str | None:
    """The first part of a timm model that vit does not support, as the object of a sentence; None if there is none."""
    kind = type(module).__name__
    if kind not in MODELS or not len(module.blocks):
        return f"the class {kind}"
    kinds, blocks = {type(block).__name__ for block in module.blocks}, [as_serial(block) for block in module.blocks]
    block, stem = blocks[0], type(module.patch_embed).__name__
    if kinds - set(BLOCKS) or len(kinds) > 1:
        return f"blocks of the class {' and '.join(sorted(kinds))}"
    if type(block.attn).__name__ not in ATTENTIONS:
        return f"attention of the class {type(block.attn).__name__}"
    if stem != "PatchEmbed":
        return f"a stem of the class {stem}"
    if reason := unsupported_relative_positions(module):
        return reason
    pool = getattr(module, "attn_pool", None)
    checks: Mapping[str, Callable[[], bool]] = {
        "fewer heads of keys than of queries": lambda: any(
            getattr(each.attn, "num_kv_heads", each.attn.num_heads) != each.attn.num_heads for each in blocks),
        "gates on the heads": lambda: getattr(block.attn, "gate", None) is not None,
        "a gate in the second half of the first MLP layer": lambda: getattr(block.mlp, "gate_last", False),
        "a bias in only one of attn.proj and mlp.fc2": lambda: (block.attn.proj.bias is None)
        != (block.mlp.fc2.bias is None),
        f"the activation {type(block.mlp.act).__name__}": lambda: activation(block) is None,
        "LayerScale in the attention branch only": lambda: hasattr(block, "gamma_1")
        and (block.gamma_1 is None) != (block.gamma_2 is None),
        f"the pooling {module.global_pool!r}": lambda: module.global_pool not in POOLS,
        "another norm for patches than for blocks": lambda: hasattr(module.patch_embed.norm, "weight")
        and (type(module.patch_embed.norm), module.patch_embed.norm.eps) != (type(block.norm1), block.norm1.eps),
        "another activation in its pooling": lambda: getattr(pool, "mlp", None) is not None
        and activation(pool) != activation(block),
        "another pooling than AttentionPoolLatent": lambda: pool is not None
        and type(pool).__name__ != "AttentionPoolLatent",
        **unsupported_rope(getattr(module, "rope", None)),
    }
    return next((part for part, is_present in checks.items() if is_present()), None)


def unsupported_rope(rope: Any) -> dict[str, Callable[[], bool]]:
    """Checks of rotary positions, in the form of `unsupported_part`."""
    kind = type(rope).__name__
    return {
        f"rotary positions of the class {kind}": lambda: kind not in ROPES,
        "rotary positions with an offset from the centre": lambda: kind == DINOV3_ROPE
        and (rope.grid_offset != 0 or rope.normalize_coords != "separate"),
    }
