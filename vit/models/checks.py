"""What the values of a model's config may be, and what is said of those that cannot."""

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Any

CHOICES = {
    "positions": ("learned", "sincos", "rotary", "none"),
    "rotary_pairs": ("halves", "neighbours"),
    "rotary_places": ("steps", "centred"),
    "stem": ("linear", "normed", "conv", "masked_conv", "pooled_conv"),
    "pool": ("class", "mean", "class_mean", "attention"),
    "final_norm": ("tokens", "pooled", "none"),
    "norm": ("layer", "rms"),
    "block": ("serial", "branch_norm", "parallel"),
    "mlp": ("mlp", "swiglu"),
    "activation": ("gelu", "gelu_tanh", "quick_gelu", "relu", "silu"),
}
PAIRS = ("image_size", "patch_size", "rotary_span")
POSITIVE = ("in_chans", "vocab_size", "max_len", "dim", "depth", "decoder_depth", "num_heads", "mlp_ratio", "norm_eps",
            "rotary_theta", "relative_hidden")
RATES = ("dropout", "attention_dropout", "drop_path", "patch_dropout")


def check_names(cls: type, names: Sequence[str] | Mapping[str, Any]) -> None:
    """Raises ValueError, with the nearest right name, for a name that is no field of the config."""
    fields = [field.name for field in dataclasses.fields(cls)]
    for name in names:
        if name not in fields:
            near = difflib.get_close_matches(name, fields, n=3, cutoff=0.5)
            raise ValueError(f"the model has no option {name!r}; {'nearest' if near else 'it has'}: "
                             f"{', '.join(near or fields)}")


def check_values(config: Any) -> None:
    """Ranges and words; fields that a config does not have are skipped."""
    for key in POSITIVE:
        if (value := getattr(config, key, 1)) <= 0:
            raise ValueError(f"{key} is {value}, but must be above 0")
    for key in ("num_classes", "registers", "segments"):
        if (value := getattr(config, key, 0)) < 0:
            raise ValueError(f"{key} is {value}, but must not be negative")
    if (scale := getattr(config, "layer_scale", None)) is not None and scale <= 0:
        raise ValueError(f"layer_scale is {scale}, but must be above 0; null for none")
    for key in RATES:
        if not 0 <= (value := getattr(config, key, 0.0)) < 1:
            raise ValueError(f"{key} is {value}, but must lie in [0, 1)")
    for key, words in {**CHOICES, **getattr(config, "choices", {})}.items():
        if (value := getattr(config, key, words[0])) not in words:
            near = difflib.get_close_matches(str(value), words, n=1, cutoff=0.3)
            hint = f"nearest: {near[0]}, of" if near else "must be one of"
            raise ValueError(f"{key}={value} is unknown; {hint} {', '.join(words)}")


def check_block(config: Any) -> None:
    if config.block != "serial" and not config.pre_norm:
        raise ValueError(f"block={config.block} has its norms in places of its own; take pre_norm=true with it")
    if config.block == "branch_norm" and config.layer_scale is not None:
        raise ValueError(f"block=branch_norm scales by its norms; take layer_scale=null with it, not "
                         f"{config.layer_scale}")


def check_heads(config: Any) -> None:
    if config.head_dim is None and config.dim % config.num_heads:
        raise ValueError(f"dim {config.dim} is not divisible by num_heads {config.num_heads}; nearest dim: "
                         f"{config.dim // config.num_heads * config.num_heads or config.num_heads}, "
                         f"{-(-config.dim // config.num_heads) * config.num_heads}, or give head_dim")


def check_positions(config: Any, axes: int) -> None:
    """Sines and cosines come in pairs along each axis: of the width that is added to, or of the head that is turned."""
    turned = config.positions in ("rotary", "learned_rotary")
    divisor = 2 * axes if turned or config.positions.startswith("sincos") else 1
    name, width = ("head_dim", config.head_width) if turned else ("dim", config.dim)
    if width % divisor:
        raise ValueError(f"positions={config.positions} need a {name} divisible by {divisor}, but it is {width}; "
                         f"nearest: {width // divisor * divisor or divisor}, {-(-width // divisor) * divisor}")


def set_pairs(config: Any) -> None:
    """One number for both edges, or a list out of a file, becomes (height, width)."""
    for key in PAIRS:
        if (size := getattr(config, key)) is not None:
            object.__setattr__(config, key, pair(key, size))


def pair(key: str, size: int | Sequence[int]) -> tuple[int, int]:
    """32 or [32, 48] -> (height, width)"""
    if isinstance(size, int):
        return size, size
    if len(size) != 2:
        raise ValueError(f"{key} is {list(size)}, but must be one number or (height, width)")
    return int(size[0]), int(size[1])
