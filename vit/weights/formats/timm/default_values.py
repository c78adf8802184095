"""Config values of timm's published models, by the names and shapes of a state dict that came without a config."""

from typing import Any

from vit.weights.weight_format import State

RES_POST_NORM_WIDTHS = (1792,)  # EVA-02 enormous, whose tensors are named like EVA-1's
DINOV3_NUM_HEADS = {1280: 20}  # by width, where other models of that width have another number
LOAD_FOLDER = "load the folder with its config.json"


def default_config_values(state: State) -> dict[str, Any]:
    """Values that all published models with these names have in common.

    The activation is None if it differs between published models: those of CLIP (gelu or quick_gelu) and SigLIP
    (gelu or gelu_tanh).

    Raises:
        ValueError: the names do not determine the positions or the place of the norms.
    """
    if any("relative_position_bias_table" in name for name in state):
        raise ValueError("BEiT's tables of relative positions are not supported; timm:NAME, or the folder with timm's "
                         "config.json, loads the model as timm's own network")
    relative = any("rel_pos.mlp." in name for name in state)
    # mean pooling with its own norm and without a class token: serial blocks have it, and those of `*_rpn_*`
    averaged = "fc_norm.weight" in state and not {"cls_token", "reg_token", "norm_pre.weight"} & set(state)
    if (relative or averaged) and not {"blocks.0.ls1.gamma", "blocks.0.in_proj.weight"} & set(state):
        raise ValueError("the tensors do not determine whether the norms of these blocks come before attention and MLP "
                         f"or after them (*_rpn_*); {LOAD_FOLDER}, or timm's module")
    if relative:
        return {"norm_eps": 1e-6, "activation": "gelu", "positions": "relative"}
    if "blocks.0.in_proj.weight" in state:
        return {"norm_eps": 1e-6, "activation": "gelu"}
    if "patch_embed.norm.weight" in state:  # AIMv2
        return {"norm_eps": 1e-5, "activation": "silu", "num_heads": state["patch_embed.norm.weight"].shape[0] // 128}
    return serial_defaults(state)


def serial_defaults(state: State) -> dict[str, Any]:
    """Config values of VisionTransformer and Eva with serial blocks and absolute or rotary positions."""
    gated = any(leaf in state for leaf in ("blocks.0.mlp.fc1_g.weight", "blocks.0.mlp.fc1_x.weight"))
    eva = gated or any(name in state for name in ("blocks.0.gamma_1", "blocks.0.attn.q_bias", "rope.freqs"))
    clip, siglip = "norm_pre.weight" in state, "attn_pool.latent" in state
    fc1, fc2 = state.get("blocks.0.mlp.fc1.weight"), state.get("blocks.0.mlp.fc2.weight")
    if fc1 is not None and fc2 is not None and fc2.ndim == 2:
        gated = fc1.shape[0] == 2 * fc2.shape[1]
    eva = eva or (clip and (siglip or not {"norm.weight", "fc_norm.weight"} & set(state)))  # a Perception Encoder
    beit3 = not eva and "blocks.0.attn.norm.weight" in state
    activation = "silu" if gated else "gelu"
    if not gated and (clip or siglip):
        activation = None  # differs between published models
    values: dict[str, Any] = {"norm_eps": 1e-5 if clip or beit3 else 1e-6, "activation": activation}
    return {**values, **default_rotary_values(state, gated)} if eva else values


def default_assumptions(state: State) -> list[str]:
    """What is assumed where published models with the same names differ."""
    assumptions = []
    if "blocks.0.attn.q_bias" in state and "blocks.0.mlp.fc1.weight" in state and "pos_embed" in state:
        order = "after" if state["pos_embed"].shape[-1] in RES_POST_NORM_WIDTHS else "before"
        assumptions.append(f"the norms of the blocks are assumed to come {order} attention and MLP (before in EVA-1, "
                           "after in EVA-02 enormous); the config.json states it")
    averaged = "norm.weight" in state and not {"cls_token", "attn_pool.latent", "blocks.0.ls1.gamma"} & set(state)
    if averaged and "pos_embed" in state:
        assumptions.append("activation gelu is assumed; some SigLIP models with mean pooling (*_siglip_gap_*) have "
                           "another one: give activation=gelu_tanh for those")
    return assumptions


def default_rotary_values(state: State, gated: bool) -> dict[str, Any]:
    """Positions of an Eva: RoPE-Mixed has learned frequencies, EVA-02 SwiGLU and a table, DINOv3 a class token and
    registers but no table, EVA-1 a table alone.

    Raises:
        ValueError: it is none of them.
    """
    if "rope.freqs" in state:
        size = {} if "pos_embed" in state else {"image_size": 14 * state["patch_embed.proj.weight"].shape[-1]}
        return {"positions": "rotary" if size else "learned_rotary", "rotary_mixed": True, "rotary_theta": 10.0,
                "rotary_pairs": "interleaved", "rotary_columns_first": True, "num_heads": state["rope.freqs"].shape[2],
                **size}
    if "pos_embed" in state and "norm_pre.weight" not in state:
        if not gated:
            res_post_norm = state["pos_embed"].shape[-1] in RES_POST_NORM_WIDTHS
            return {"positions": "learned", **({"block": "res_post_norm"} if res_post_norm else {})}
        return {"positions": "learned_rotary", "rotary_theta": 10_000.0, "rotary_pairs": "interleaved",
                "rotary_span": [16, 16]}
    if "cls_token" in state and "reg_token" in state:
        dim, *_, patch = state["patch_embed.proj.weight"].shape
        return {"positions": "rotary", "rotary_coordinates": "centred", "norm_eps": 1e-5, "image_size": 16 * patch,
                "num_heads": DINOV3_NUM_HEADS.get(dim), "pool": "mean"}
    raise ValueError(f"the tensors do not determine these rotary positions; {LOAD_FOLDER}")
