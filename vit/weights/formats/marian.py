"""transformers' Marian, as OPUS-MT has it: the original transformer under other names, with q, k and v apart."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

State = Mapping[str, Tensor]

# ours -> theirs, within a block
BLOCK = {
    "norm1.": "self_attn_layer_norm.",
    "attn.proj.": "self_attn.out_proj.",
    "cross_norm.": "encoder_attn_layer_norm.",
    "cross_attn.q.": "encoder_attn.q_proj.",
    "cross_attn.proj.": "encoder_attn.out_proj.",
    "norm2.": "final_layer_norm.",
    "mlp.fc1.": "fc1.",
    "mlp.fc2.": "fc2.",
}
STACKED = {
    "attn.qkv.": ("self_attn.q_proj.", "self_attn.k_proj.", "self_attn.v_proj."),
    "cross_attn.kv.": ("encoder_attn.k_proj.", "encoder_attn.v_proj."),
}
SHARED = ("model.shared.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight",
          "lm_head.weight")


def to_marian(state: State) -> dict[str, Tensor]:
    """The weights of a `Transformer` of the original form as those of a `MarianMTModel` of `marian_arguments`."""
    theirs = dict.fromkeys(SHARED, state["target_embed.token.weight"])
    theirs["final_logits_bias"] = torch.zeros(1, len(theirs["lm_head.weight"]))
    for name, tensor in state.items():
        side, _, rest = name.partition(".blocks.")
        if not rest:
            continue
        number, _, leaf = rest.partition(".")
        for ours, parts in {**{key: (value,) for key, value in BLOCK.items()}, **STACKED}.items():
            if leaf.startswith(ours):
                for part, value in zip(parts, tensor.chunk(len(parts)), strict=True):
                    theirs[f"model.{side}.layers.{number}.{part}{leaf.removeprefix(ours)}"] = value.contiguous()
    return theirs


def from_marian(state: State) -> dict[str, Tensor]:
    """The weights of a `MarianMTModel` as those of a `Transformer` with `tied="all"`.

    Raises:
        ValueError: the logits have a bias, for which ours have no place.
    """
    if (bias := state.get("final_logits_bias")) is not None and bias.abs().max() > 0:
        raise ValueError("final_logits_bias is not zero, but logits through the embedding have no bias here")
    shared = state["model.shared.weight"]
    ours = {"embed.token.weight": shared, "target_embed.token.weight": shared}
    singles = {theirs: own for own, theirs in BLOCK.items()}
    for name, tensor in state.items():
        side, _, rest = name.removeprefix("model.").partition(".layers.")
        if not rest:
            continue
        number, _, leaf = rest.partition(".")
        for foreign, own in singles.items():
            if leaf.startswith(foreign):
                ours[f"{side}.blocks.{number}.{own}{leaf.removeprefix(foreign)}"] = tensor
        for own, parts in STACKED.items():
            if leaf.startswith(parts[0]):
                last = leaf.removeprefix(parts[0])
                pieces = [state[f"model.{side}.layers.{number}.{part}{last}"] for part in parts]
                ours[f"{side}.blocks.{number}.{own}{last}"] = torch.cat(pieces)
    return ours


def marian_arguments(config: Any, *, bos: int, eos: int, pad: int) -> dict[str, Any]:
    """The words that make transformers build the same network: `MarianConfig(**marian_arguments(...))`.

    Raises:
        ValueError: the network has a part that Marian knows not.
    """
    wanted = {"source": "text", "positions": "sincos", "pre_norm": False, "norm": "layer", "norm_eps": 1e-5,
              "mlp": "mlp", "tied": "all", "qkv_bias": True, "key_bias": True, "qk_norm": False,
              "attn_norm": False, "mlp_norm": False, "proj_bias": True, "layer_scale": None}
    for key, value in wanted.items():
        if (own := getattr(config, key)) != value:
            raise ValueError(f"Marian's network has {key}={value}, but this one has {key}={own}")
    if config.activation not in ("relu", "silu") or config.head_dim not in (None, config.dim // config.num_heads):
        raise ValueError(f"Marian knows activation=relu or silu and heads that split the width, but this one has "
                         f"activation={config.activation} and head_dim={config.head_dim}")
    return {
        "vocab_size": config.vocab_size,
        "decoder_vocab_size": config.vocab_size,
        "d_model": config.dim,
        "encoder_layers": config.depth,
        "decoder_layers": config.decoder_depth,
        "encoder_attention_heads": config.num_heads,
        "decoder_attention_heads": config.num_heads,
        "encoder_ffn_dim": config.hidden,
        "decoder_ffn_dim": config.hidden,
        "activation_function": config.activation,
        "max_position_embeddings": config.max_len,
        "scale_embedding": config.scale_embed,
        "static_position_embeddings": True,
        "share_encoder_decoder_embeddings": True,
        "tie_word_embeddings": True,
        "decoder_start_token_id": bos,
        "bos_token_id": bos,
        "eos_token_id": eos,
        "pad_token_id": pad,
        "forced_eos_token_id": None,
    }
