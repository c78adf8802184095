"""transformers' Marian (arXiv 1804.00344), the architecture of OPUS-MT: import and export of the original transformer
(arXiv 1706.03762).
"""

from typing import Any

import torch
from torch import Tensor

from vit.weights.weight_format import State

# vit -> Marian, within a block
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
FUSED = {
    "attn.qkv.": ("self_attn.q_proj.", "self_attn.k_proj.", "self_attn.v_proj."),
    "cross_attn.kv.": ("encoder_attn.k_proj.", "encoder_attn.v_proj."),
}
TIED = ("model.shared.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight",
        "lm_head.weight")
REQUIRED = {
    "source": "text", "positions": "sincos", "pre_norm": False, "norm": "layer", "norm_eps": 1e-5, "mlp": "mlp",
    "tied": "all", "qkv_bias": True, "key_bias": True, "qk_norm": False, "attn_norm": False, "mlp_norm": False,
    "proj_bias": True, "layer_scale": None, "sincos_channels": "halves", "mixer": "attention", "decoder_mixer": None,
    "attention": "scaled", "heads": "split", "value_dim": None, "projection": "linear", "residual": True,
}


def to_marian(state: State) -> dict[str, Tensor]:
    """The weights of a `Transformer` with `tied="all"` for the `MarianMTModel` of `marian_arguments`."""
    foreign = dict.fromkeys(TIED, state["target_embed.token.weight"])
    foreign["final_logits_bias"] = torch.zeros(1, len(foreign["lm_head.weight"]))
    for name, tensor in state.items():
        side, _, rest = name.partition(".blocks.")
        if not rest:
            continue
        number, _, leaf = rest.partition(".")
        for own, parts in {**{key: (value,) for key, value in BLOCK.items()}, **FUSED}.items():
            if leaf.startswith(own):
                for part, value in zip(parts, tensor.chunk(len(parts)), strict=True):
                    foreign[f"model.{side}.layers.{number}.{part}{leaf.removeprefix(own)}"] = value.contiguous()
    return foreign


def from_marian(state: State) -> dict[str, Tensor]:
    """The weights of a `MarianMTModel` for a `Transformer` with `tied="all"`; queries, keys and values are fused.

    Raises:
        ValueError: the logits have a bias that is not zero.
    """
    if (bias := state.get("final_logits_bias")) is not None and bias.abs().max() > 0:
        raise ValueError("final_logits_bias is not zero, but the tied output layer of vit has no bias")
    embedding = state["model.shared.weight"]
    converted = {"embed.token.weight": embedding, "target_embed.token.weight": embedding}
    for name, tensor in state.items():
        side, _, rest = name.removeprefix("model.").partition(".layers.")
        if not rest:
            continue
        number, _, leaf = rest.partition(".")
        for own, foreign in BLOCK.items():
            if leaf.startswith(foreign):
                converted[f"{side}.blocks.{number}.{own}{leaf.removeprefix(foreign)}"] = tensor
        for own, parts in FUSED.items():
            if leaf.startswith(parts[0]):
                last = leaf.removeprefix(parts[0])
                pieces = [state[f"model.{side}.layers.{number}.{part}{last}"] for part in parts]
                converted[f"{side}.blocks.{number}.{own}{last}"] = torch.cat(pieces)
    return converted


def marian_arguments(config: Any, *, bos: int, eos: int, pad: int) -> dict[str, Any]:
    """Arguments of transformers' `MarianConfig` that build the same model.

    Raises:
        ValueError: the model has a part that Marian lacks.
    """
    for key, value in REQUIRED.items():
        if (own := getattr(config, key)) != value:
            raise ValueError(f"Marian's network has {key}={value}, but this model has {key}={own}")
    if config.activation not in ("relu", "silu") or config.head_dim not in (None, config.dim // config.num_heads):
        raise ValueError(f"Marian has activation=relu or silu and heads of width dim / num_heads, but this model has "
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
