"""Validation of model configs."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from vit.messages import nearest_names
from vit.other_names import MODEL

CHOICES = {
    "positions": ("learned", "sincos", "rotary", "none"),
    "sincos_channels": ("halves", "interleaved"),
    "attention": ("scaled", "dot", "cosine", "bilinear", "additive", "local"),
    "heads": ("split", "full"),
    "projection": ("linear", "sliced", "none"),
    "mixer": ("attention", "lstm", "gru", "conv1d", "fnet"),
    "decoder_mixer": (None, "attention", "lstm", "gru", "conv1d"),
    "rotary_pairs": ("rotate_half", "interleaved"),
    "rotary_coordinates": ("steps", "centred"),
    "stem": ("linear", "normed", "conv", "compact", "masked_conv", "pooled_conv"),
    "pool": ("class", "mean", "sum", "class_mean", "attention"),
    "final_norm": ("tokens", "pooled", "none"),
    "norm": ("layer", "rms", "batch"),
    "block": ("serial", "res_post_norm", "parallel"),
    "mlp": ("mlp", "swiglu"),
    "activation": ("gelu", "gelu_tanh", "quick_gelu", "relu", "silu"),
    "drop_path_schedule": ("linear", "constant"),
}
TEXT_POSITIONS = (*CHOICES["positions"], "relative")
# former names, which saved configs may contain
FORMER_KEYS = {"rotary_places": "rotary_coordinates"}
FORMER_VALUES = {
    "rotary_pairs": {"halves": "rotate_half", "neighbours": "interleaved"},
    "block": {"branch_norm": "res_post_norm"},
}
WHOLE = ("in_chans", "vocab_size", "source_vocab", "max_len", "dim", "depth", "num_heads", "decoder_dim",
         "decoder_depth", "decoder_num_heads", "relative_hidden", "head_dim", "value_dim", "dilation", "kernel")
INITIAL_STD = ("init_std", "token_std", "position_std")  # keys that only initialize weights
POSITIVE = ("mlp_ratio", "decoder_mlp_ratio", "norm_eps", "rotary_theta", *INITIAL_STD, "layer_scale")
NOT_NEGATIVE = ("num_classes", "registers", "segments", "window", "global_tokens")
# keys that require mixer=attention, and keys that require attention=local; for `attention_dropout` and `window`, which
# saved models may have without effect, a run only warns (vit.run.config.without_effect)
ATTENTION = ("attention", "heads", "head_dim", "value_dim", "projection", "qk_norm", "attn_norm", "key_bias")
LOCAL = ("dilation", "global_tokens")
RATES = ("dropout", "attention_dropout", "drop_path", "patch_dropout")
DROPPING = (*RATES, "drop_path_schedule")  # keys that have an effect in training only


def current_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a config with former keys and choices replaced by the current ones."""
    values = {FORMER_KEYS.get(key, key): value for key, value in values.items()}
    return {key: FORMER_VALUES.get(key, {}).get(value, value) if isinstance(value, str) else value
            for key, value in values.items()}


def check_names(classes: type | Sequence[type], names: Sequence[str] | Mapping[str, Any]) -> None:
    """Check that all names are fields of the config, or of one of several classes of configs.

    Raises:
        ValueError: a name is unknown; the message has the nearest fields.
    """
    classes = (classes,) if isinstance(classes, type) else classes
    fields = [*dict.fromkeys(field.name for each in classes for field in dataclasses.fields(each))]
    for name in names:
        if name not in fields:
            near = [MODEL[name]] if MODEL.get(name) in fields else nearest_names(name, fields, n=3)
            raise ValueError(f"the model has no option {name!r}; {'nearest' if near else 'it has'}: "
                             f"{', '.join(near or fields)}")


def check_values(config: Any) -> None:
    """Check types and ranges of numbers, and choices, after replacing former choices; fields that a config does not
    have are skipped.

    Raises:
        ValueError: a value is not a number, out of range, neither true nor false, or not one of the choices.
    """
    for key, names in FORMER_VALUES.items():
        if isinstance(value := getattr(config, key, None), str) and value in names:
            object.__setattr__(config, key, names[value])
    optional = {field.name for field in dataclasses.fields(config) if field.default is None}
    for keys, kind, positive in ((WHOLE, Integral, True), (NOT_NEGATIVE, Integral, False), (POSITIVE, Real, True)):
        for key in keys:
            value = getattr(config, key, 1)
            in_range = isinstance(value, kind) and 0 <= value < math.inf and (value > 0 or not positive)
            if not in_range and not (value is None and key in optional):
                number = "a whole number" if kind is Integral else "a number"
                least, null = "above 0" if positive else "of at least 0", ", or null" if key in optional else ""
                raise ValueError(f"{key} is {value!r}, but must be {number} {least}{null}")
    for field in dataclasses.fields(config):
        if field.type is bool and (value := getattr(config, field.name)) is not None and value not in (True, False):
            raise ValueError(f"{field.name} is {value!r}, but must be true or false")  # "off" would be true
    for key in RATES:
        if not (isinstance(value := getattr(config, key, 0.0), Real) and 0 <= value < 1):
            raise ValueError(f"{key} is {value!r}, but must lie in [0, 1)")
    for key, choices in {**CHOICES, **getattr(config, "choices", {})}.items():
        if (value := getattr(config, key, choices[0])) not in choices:
            near = nearest_names(str(value), list(filter(None, choices)), cutoff=0.3)
            hint = f"nearest: {near[0]}, of" if near else "must be one of"
            raise ValueError(f"{key}={value} is unknown; {hint} {', '.join(filter(None, choices))}")


def neighbours_reason(values: Mapping[str, Any]) -> str:
    """Why the tokens of an image model with these values of its config depend on which patches are next to them in the
    sequence; empty if they do not.
    """
    mixer = values.get("mixer") or "attention"
    if mixer != "attention":
        return f"mixer={mixer} depends on the order of the patches"
    return "attention=local has a window along the rows of patches" if values.get("attention") == "local" else ""


def fixed_size_reason(values: Mapping[str, Any]) -> str:
    """Why an image classifier with these values of its config has one image size; empty if any image size works."""
    if values.get("positions") == "relative":
        return "positions=relative has a bias for each pair of patches"
    if reason := neighbours_reason(values):
        return reason
    return "pool=sum depends on the number of patches" if values.get("pool") == "sum" else ""


def packing_obstacle(values: Mapping[str, Any]) -> str:
    """Why an image classifier with these values of its config cannot compute images of different sizes in one batch;
    empty if it can.
    """
    stem, rate = values.get("stem") or "linear", values.get("patch_dropout")
    for unfit, reason in (
        (stem not in ("linear", "normed"), f"stem={stem} has convolutions over the borders of patches"),
        (values.get("norm") == "batch", "norm=batch has means over all tokens, in which large images count more"),
        (rate, f"patch_dropout={rate} keeps the same number of patches of every image"),
    ):
        if unfit:
            return reason
    return fixed_size_reason(values)


def check_block(config: Any) -> None:
    """Check that `block` fits `residual`, `pre_norm` and `layer_scale`.

    Raises:
        ValueError: it does not.
    """
    if config.block != "serial" and not config.residual:
        raise ValueError(f"residual=false needs block=serial, not block={config.block}")
    if config.block != "serial" and not config.pre_norm:
        raise ValueError(f"block={config.block} defines the position of its norms; set pre_norm=true with it")
    if config.block == "res_post_norm" and config.layer_scale is not None:
        raise ValueError(f"block=res_post_norm scales branches by their norms; set layer_scale=null with it, not "
                         f"{config.layer_scale}")


def check_heads(config: Any) -> None:
    """Check `num_heads`, `head_dim`, `value_dim`, `projection` and the options of local attention.

    Raises:
        ValueError: two of these options contradict each other, or `dim` is not divisible by `num_heads` and `head_dim`
            is not given.
    """
    if config.heads == "full" and config.head_dim is not None:
        raise ValueError(f"heads=full are as wide as the model, {config.dim}, but head_dim is {config.head_dim}; leave "
                         "one of them out")
    if config.projection != "linear" and (config.heads == "full" or config.head_dim or not config.key_bias):
        raise ValueError(f"projection={config.projection} gives each head its own slice of the tokens; it needs "
                         "heads=split, head_dim=null and key_bias=true")
    if config.projection == "none" and config.value_dim is not None:
        raise ValueError(f"projection=none has values of dim / num_heads channels; set value_dim=null, not "
                         f"{config.value_dim}")
    if config.attention != "local" and (unused := changed(config, LOCAL)):
        raise ValueError(f"{unused[0]}={getattr(config, unused[0])} needs attention=local, not attention="
                         f"{config.attention}")
    if config.head_dim is None and config.heads == "split" and config.dim % config.num_heads:
        raise ValueError(f"dim {config.dim} is not divisible by num_heads {config.num_heads}; nearest dim: "
                         f"{config.dim // config.num_heads * config.num_heads or config.num_heads}, "
                         f"{-(-config.dim // config.num_heads) * config.num_heads}, or give head_dim")


def check_mixer(config: Any) -> None:
    """Check that the keys of attention and the positions fit `mixer` and, of a decoder, `decoder_mixer`.

    Raises:
        ValueError: they do not.
    """
    decodes = hasattr(config, "decoder_mixer")
    mixers = [config.mixer, config.decoder_mixer or config.mixer] if decodes else [config.mixer]
    if mixers[-1] == "fnet" and decodes:
        raise ValueError("mixer=fnet has no causal form, because every token depends on all others; set "
                         "decoder_mixer=attention, lstm, gru or conv1d with it")
    if "attention" in mixers:
        return
    if config.positions in ("rotary", "learned_rotary", "relative"):
        raise ValueError(f"positions={config.positions} act on the scores of self-attention, which mixer="
                         f"{config.mixer} does not have; use positions=none, learned or sincos")
    if not decodes and (unused := changed(config, ATTENTION)):  # in a decoder they still apply to cross-attention
        raise ValueError(f"{unused[0]}={getattr(config, unused[0])} is an option of attention, but mixer="
                         f"{config.mixer}; leave it out, or set mixer=attention")


def changed(config: Any, keys: Sequence[str]) -> list[str]:
    """The keys whose value is not the default of the config's class."""
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    return [key for key in keys if getattr(config, key) != defaults[key]]


def check_positions(config: Any, axes: int) -> None:
    """Check that the width, of a token or (rotary) of a head, is divisible by the 2 * axes channels that sine or rotary
    positions need.

    Raises:
        ValueError: the width is not divisible by 2 * axes.
    """
    rotary = config.positions in ("rotary", "learned_rotary")
    divisor = 2 * axes if rotary or config.positions.startswith("sincos") else 1
    name, width = ("head_dim", config.head_width) if rotary else ("dim", config.dim)
    if width % divisor:
        raise ValueError(f"positions={config.positions} need a {name} divisible by {divisor}, but it is {width}; "
                         f"nearest: {width // divisor * divisor or divisor}, {-(-width // divisor) * divisor}")


def pair(key: str, size: int | Sequence[int]) -> tuple[int, int]:
    """32 or [32, 48] -> (height, width)

    Raises:
        ValueError: `size` is neither one whole number above 0 nor two of them.
    """
    edges = (size, size) if isinstance(size, Real) else tuple(size)
    if len(edges) != 2 or not all(isinstance(edge, Real) and edge >= 1 and edge % 1 == 0 for edge in edges):
        raise ValueError(f"{key} is {size}, but must be one whole number above 0, or (height, width)")
    return int(edges[0]), int(edges[1])
