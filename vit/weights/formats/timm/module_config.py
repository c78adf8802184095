"""What the tensors of a timm model do not say: from the module, its architecture's name, or what is usual."""

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from vit.weights.formats.timm.parallel import as_serial
from vit.weights.formats.timm.relative import beyond_our_relative, relative_facts
from vit.weights.weight_format import State

POOLS = {"token": "class", "avg": "mean", "map": "attention"}
ACTIVATIONS = {"GELU": "gelu", "GELUTanh": "gelu_tanh", "QuickGELU": "quick_gelu", "SiLU": "silu", "ReLU": "relu"}
CLASSES = ("VisionTransformer", "VisionTransformerDistilled", "VisionTransformerRelPos", "Eva")
BLOCKS = {"Block": "serial", "EvaBlock": "serial", "ResPostBlock": "res_post_norm", "EvaBlockPostNorm": "res_post_norm",
          "ParallelScalingBlock": "parallel", "RelPosBlock": "serial", "ResPostRelPosBlock": "res_post_norm"}
LOADING = {"pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path", "cache_dir"}
BRANCH_NORM_WIDTHS = (1792,)  # EVA-02 enormous, whose tensors are called like EVA-1's
MOST_BLOCKS, LARGEST = 1_000, 10_000_000  # of a number in model_args whose name is of depths or layers, and any other
DINOV3_HEADS = {1280: 20}  # by width, where other models of that width have other heads
ATTENTIONS = ("Attention", "AttentionRope", "EvaAttention", "RelPosAttention", "SimpleNamespace")  # a parallel block's


def timm_facts(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    """Values of our config, by the best source there is.

    Args:
        source_config: the `config.json` of a timm folder, or `{"module": model}` for one in memory.

    Raises:
        ValueError: the model has a part that ours lacks; one sentence that names it.
    """
    if "module" in source_config:
        return module_facts(source_config["module"])
    if "architecture" in source_config:
        return module_facts(skeleton(source_config))
    return usual_facts(state)


def skeleton(config: Mapping[str, Any]) -> Any:
    """timm's model of a `config.json` without tensors: only timm knows what the name of an architecture stands for."""
    import timm  # here, because it takes a second that most programs need not wait for

    arguments, cfg = config.get("model_args") or {}, config.get("pretrained_cfg") or {}
    if not (isinstance(config["architecture"], str) and isinstance(arguments, dict) and isinstance(cfg, dict)):
        raise ValueError("the config's architecture must be a word, its model_args and pretrained_cfg tables of values")
    name, arguments = config["architecture"].split(".")[0], dict(arguments)
    if cfg.get("input_size"):
        arguments.setdefault("in_chans", cfg["input_size"][0])
    if cfg.get("fixed_input_size") and cfg.get("input_size"):
        arguments.setdefault("img_size", cfg["input_size"][1:])
    stated = {"num_classes": cfg.get("num_classes"), **config}
    for key in ("num_classes", "global_pool"):
        if stated.get(key) is not None:
            arguments.setdefault(key, stated[key])
    if not timm.is_model(name):
        raise ValueError(f"the config names the architecture {name!r}, which timm {timm.__version__} does not know")
    if loading := LOADING & set(arguments):
        raise ValueError(f"the config's model_args have {min(loading)}, which would load another file; take it out")
    check_numbers(arguments)
    try:
        return built(name, json.dumps(arguments, sort_keys=True))
    except (TypeError, ValueError, AssertionError, RuntimeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"timm cannot build {name} with the config's model_args: {reason}") from None


def check_numbers(arguments: Mapping[str, Any]) -> None:
    """Raises ValueError for a number that would keep timm building for hours."""
    for key, value in arguments.items():
        if isinstance(value, dict):
            check_numbers(value)
        most = MOST_BLOCKS if any(part in key for part in ("depth", "layers", "blocks", "repeats")) else LARGEST
        numbers = [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, int | float)]
        if numbers and not abs(max(numbers, key=abs)) <= most:
            raise ValueError(f"the config's model_args have {key}={value}, but {most:,} is the most that is built")


@lru_cache(maxsize=4)  # facts and declarations of one folder are read off the same
def built(name: str, arguments: str) -> Any:
    import timm
    import torch

    with torch.device("meta"):
        return timm.create_model(name, **json.loads(arguments))


def module_facts(module: Any) -> dict[str, Any]:
    """What a VisionTransformer or Eva of timm says of itself."""
    if reason := beyond_ours(module):
        raise ValueError(f"this timm model has {reason}, which no model of ours has")
    kind, block = type(module.blocks[0]).__name__, as_serial(module.blocks[0])
    pool = getattr(module, "attn_pool", None)
    return {
        "block": BLOCKS[kind],
        "num_heads": block.attn.num_heads,
        "norm": "rms" if "rms" in type(block.norm1).__name__.lower() else "layer",
        "norm_eps": block.norm1.eps,
        "activation": activation(block),
        "image_size": whole_patches(module.patch_embed),
        "pool": POOLS[module.global_pool],
        "pool_prefix": module.num_prefix_tokens > 0 and counts_prefix(module),
        "pool_heads": None if pool is None or pool.num_heads == block.attn.num_heads else pool.num_heads,
        "prefix_positions": not module.no_embed_class if getattr(module, "pos_embed", None) is not None else True,
        "layer_scale": None if BLOCKS[kind] == "res_post_norm" else first_scale(block),
        **(relative_facts(module) or rope_facts(module)),
    }


def whole_patches(embed: Any) -> list[int]:
    """The part of an image that is read: timm leaves out what is no whole patch at the right and below."""
    return [patches * edge for patches, edge in zip(embed.grid_size, embed.patch_size, strict=True)]


def counts_prefix(module: Any) -> bool:
    """Whether class token and registers are pooled as patches are; an Eva's attention pooling always does."""
    return getattr(module, "pool_include_prefix", type(module).__name__ == "Eva" and module.attn_pool is not None)


def activation(block: Any) -> str | None:
    act = block.mlp.act
    name = ACTIVATIONS.get(type(act).__name__)
    return "gelu_tanh" if name == "gelu" and getattr(act, "approximate", "none") == "tanh" else name


def first_scale(block: Any) -> float | None:
    """The value a LayerScale began with; 1e-5 where the module no longer tells."""
    scale = getattr(block, "init_values", None) or getattr(getattr(block, "ls1", None), "init_values", None)
    return scale or (1e-5 if hasattr(getattr(block, "ls1", None), "gamma") else None)


def rope_facts(module: Any) -> dict[str, Any]:
    """Where the patches stand to a rotary model, and how far an angle goes."""
    rope = getattr(module, "rope", None)
    if rope is None:
        return {"positions": "none" if module.pos_embed is None else "learned"}
    facts = {
        "positions": "rotary" if module.pos_embed is None else "learned_rotary",
        "rotary_theta": float(rope.temperature),
        "rotary_columns_first": rope.grid_indexing == "xy",
    }
    if type(rope).__name__ == "RotaryEmbeddingMixed":
        return {**facts, "rotary_mixed": True, "rotary_pairs": "interleaved"}
    facts["rotary_pairs"] = "rotate_half" if rope.rotate_half else "interleaved"
    if type(rope).__name__ == "RotaryEmbeddingDinoV3":
        return {**facts, "rotary_coordinates": "centred"}
    span = rope.ref_feat_shape
    return {**facts, "rotary_offset": float(rope.grid_offset), "rotary_span": None if span is None else list(span)}


def beyond_ours(module: Any) -> str | None:
    """The first part of a timm model that ours lack."""
    kind = type(module).__name__
    if kind not in CLASSES or not len(module.blocks):
        return f"the form of {kind}"
    kinds, blocks = {type(block).__name__ for block in module.blocks}, [as_serial(block) for block in module.blocks]
    block, stem = blocks[0], type(module.patch_embed).__name__
    if kinds - set(BLOCKS) or len(kinds) > 1:
        return f"blocks of the form {' and '.join(sorted(kinds))}"
    if type(block.attn).__name__ not in ATTENTIONS:
        return f"attention of the form {type(block.attn).__name__}"
    if stem != "PatchEmbed":
        return f"a stem of the form {stem}"
    if reason := beyond_our_relative(module):
        return reason
    pool = getattr(module, "attn_pool", None)
    lacks: dict[str, Callable[[], bool]] = {
        "fewer heads of keys than of queries": lambda: any(
            getattr(each.attn, "num_kv_heads", each.attn.num_heads) != each.attn.num_heads for each in blocks),
        "gates on the heads": lambda: getattr(block.attn, "gate", None) is not None,
        "a bias at one of its projections only": lambda: (block.attn.proj.bias is None) != (block.mlp.fc2.bias is None),
        f"the activation {type(block.mlp.act).__name__}": lambda: activation(block) is None,
        "LayerScale on the attention alone": lambda: hasattr(block, "gamma_1")
        and (block.gamma_1 is None) != (block.gamma_2 is None),
        f"the pooling {module.global_pool!r}": lambda: module.global_pool not in POOLS,
        "a norm of another form at the patches": lambda: hasattr(module.patch_embed.norm, "weight")
        and (type(module.patch_embed.norm), module.patch_embed.norm.eps) != (type(block.norm1), block.norm1.eps),
        "another activation in its pooling": lambda: getattr(pool, "mlp", None) is not None
        and activation(pool) != activation(block),
        "a pooling of its own form": lambda: pool is not None and type(pool).__name__ != "AttentionPoolLatent",
        **rope_lacks(getattr(module, "rope", None)),
    }
    return next((words for words, true in lacks.items() if true()), None)


def rope_lacks(rope: Any) -> dict[str, Callable[[], bool]]:
    kinds = ("NoneType", "RotaryEmbeddingCat", "RotaryEmbeddingDinoV3", "RotaryEmbeddingMixed")
    return {
        f"rotary positions of the form {type(rope).__name__}": lambda: type(rope).__name__ not in kinds,
        "rotary positions that are moved beside the middle": lambda: type(rope).__name__ == kinds[2]
        and (rope.grid_offset != 0 or rope.normalize_coords != "separate"),
    }


def usual_facts(state: State) -> dict[str, Any]:
    """For tensors without any config: what all published models of their names have in common.

    The activation stays open where it differs between files of the same names: CLIP's (gelu or quick_gelu) and
    SigLIP's (gelu or gelu_tanh).
    """
    if any("relative_position_bias_table" in name for name in state):
        raise ValueError("BEiT's tables of relative positions are no part of ours; timm:NAME, or the folder with "
                         "timm's config.json, keeps the model as timm's own network")
    relative = any("rel_pos.mlp." in name for name in state)
    # a mean without class token under a norm of its own: so are plain blocks, and those of `*_rpn_*`
    averaged = "fc_norm.weight" in state and not {"cls_token", "reg_token", "norm_pre.weight"} & set(state)
    if (relative or averaged) and not {"blocks.0.ls1.gamma", "blocks.0.in_proj.weight"} & set(state):
        raise ValueError("the tensors do not tell where the norms of these blocks stand, before attention and MLP or "
                         "after them (*_rpn_*); load the folder with the config.json they came with, or timm's module")
    if relative:
        return {"norm_eps": 1e-6, "activation": "gelu", "positions": "relative"}
    if "blocks.0.in_proj.weight" in state:
        return {"norm_eps": 1e-6, "activation": "gelu"}
    if "patch_embed.norm.weight" in state:  # AIMv2
        return {"norm_eps": 1e-5, "activation": "silu", "num_heads": state["patch_embed.norm.weight"].shape[0] // 128}
    gated = any(leaf in state for leaf in ("blocks.0.mlp.fc1_g.weight", "blocks.0.mlp.fc1_x.weight"))
    eva = gated or any(name in state for name in ("blocks.0.gamma_1", "blocks.0.attn.q_bias", "rope.freqs"))
    clip, siglip = "norm_pre.weight" in state, "attn_pool.latent" in state
    widened, hidden = state.get("blocks.0.mlp.fc1.weight"), state.get("blocks.0.mlp.fc2.weight")
    if widened is not None and hidden is not None and hidden.ndim == 2:
        gated = widened.shape[0] == 2 * hidden.shape[1]
    eva = eva or (clip and (siglip or not {"norm.weight", "fc_norm.weight"} & set(state)))  # a Perception Encoder
    facts: dict[str, Any] = {
        "norm_eps": 1e-5 if clip or (not eva and "blocks.0.attn.norm.weight" in state) else 1e-6,  # the latter BEiT-3
        "activation": "silu" if gated else None if clip or siglip else "gelu",
    }
    return {**facts, **usual_rope(state, gated)} if eva else facts


def usual_doubts(state: State) -> list[str]:
    """How tensors without any config were taken that published models of the same names read in two ways."""
    doubts = []
    if "blocks.0.attn.q_bias" in state and "blocks.0.mlp.fc1.weight" in state and "pos_embed" in state:
        where = "after" if state["pos_embed"].shape[-1] in BRANCH_NORM_WIDTHS else "before"
        doubts.append(f"the norms of the blocks are taken to stand {where} attention and MLP (EVA-1 has them before, "
                      "EVA-02 enormous after); the config.json tells")
    averaged = "norm.weight" in state and not {"cls_token", "attn_pool.latent", "blocks.0.ls1.gamma"} & set(state)
    if averaged and "pos_embed" in state:
        doubts.append("activation gelu is taken; some of SigLIP's models with a mean (*_siglip_gap_*) have "
                      "another: give act=gelu_tanh for those")
    return doubts


def usual_rope(state: State, gated: bool) -> dict[str, Any]:
    """RoPE-Mixed has its frequencies; EVA-02 SwiGLU and a table; DINOv3 a class token, registers and no table; EVA-1 a
    table alone."""
    if "rope.freqs" in state:
        size = {} if "pos_embed" in state else {"image_size": 14 * state["patch_embed.proj.weight"].shape[-1]}
        return {"positions": "rotary" if size else "learned_rotary", "rotary_mixed": True, "rotary_theta": 10.0,
                "rotary_pairs": "interleaved", "rotary_columns_first": True, "num_heads": state["rope.freqs"].shape[2],
                **size}
    if "pos_embed" in state and "norm_pre.weight" not in state:
        if not gated:
            branch_norm = state["pos_embed"].shape[-1] in BRANCH_NORM_WIDTHS
            return {"positions": "learned", **({"block": "res_post_norm"} if branch_norm else {})}
        return {"positions": "learned_rotary", "rotary_theta": 10_000.0, "rotary_pairs": "interleaved",
                "rotary_span": [16, 16]}
    if "cls_token" in state and "reg_token" in state:
        dim, *_, patch = state["patch_embed.proj.weight"].shape
        return {"positions": "rotary", "rotary_coordinates": "centred", "norm_eps": 1e-5, "image_size": 16 * patch,
                "num_heads": DINOV3_HEADS.get(dim), "pool": "mean"}
    raise ValueError("the tensors do not tell these rotary positions; load the folder with the config.json they came "
                     "with")
