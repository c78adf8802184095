"""Every conversion computes the same as the model, or is refused with the name of the part that the target lacks."""

import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from tests.faults.promise import Case, Promise

SMALL = {"image_size": 32, "patch_size": 8, "dim": 32, "depth": 2, "num_heads": 4, "num_classes": 5}
FIELDS: dict[str, tuple] = {  # differences from the original Vision Transformer
    "positions": ("sincos", "rotary", "none", "learned_rotary", "sincos_simple", "relative"),
    "class_token": (False,), "pool": ("mean", "class_mean", "attention"), "block": ("res_post_norm", "parallel"),
    "norm": ("rms",), "mlp": ("swiglu",), "qkv_bias": (False,), "key_bias": (False,), "proj_bias": (False,),
    "patch_bias": (False,), "registers": (1, 3), "image_size": ((32, 16),), "in_chans": (1,), "num_classes": (0,),
    "layer_scale": (0.1,), "final_norm": ("pooled", "none"), "prefix_positions": (False,), "embed_norm": (True,),
    "dist_token": (True,), "norm_eps": (1e-5, 1e-12), "activation": ("silu", "gelu_tanh", "quick_gelu"),
    "mlp_norm": (True,), "attn_norm": (True,), "qk_norm": (True,), "pool_prefix": (True,), "pre_norm": (False,),
    "stem": ("normed", "conv", "pooled_conv"), "patch_norm": (True,), "rotary_pairs": ("interleaved",),
    "rotary_coordinates": ("centred",), "pool_heads": (2,), "pool_mlp_ratio": (2.0,), "mlp_ratio": (2.75, 3.0),
    "head_dim": (16,),
}
# fields for which transformers has models with other values; others are refused nearly always, so drawn less often
FAMILIAR = ("positions", "class_token", "pool", "mlp", "qkv_bias", "patch_bias", "registers", "image_size", "in_chans",
            "num_classes", "layer_scale", "final_norm", "prefix_positions", "embed_norm", "dist_token", "activation",
            "rotary_coordinates", "norm_eps")
KNOWN = (  # former bugs
    {"embed_norm": True, "patch_bias": False, "pool": "mean", "final_norm": "none", "num_classes": 0},
    {"registers": 2, "pool": "mean", "num_classes": 0},
    {"layer_scale": 0.1, "image_size": (32, 16)},
    {"block": "parallel", "proj_bias": False},
    {"positions": "relative", "key_bias": False},
    {"stem": "pooled_conv"},
    {"in_chans": 1},
    {"class_token": False, "pool": "mean", "final_norm": "pooled"},
    {"dist_token": True, "num_classes": 0},
)
TARGETS = ("transformers", "timm", "bundle", "torchvision")
COUNT = 400


def drawn(seed: int) -> dict[str, Any]:
    """Random values for a few fields."""
    rng = random.Random(seed)
    fields = FAMILIAR if seed % 2 else tuple(FIELDS)
    return {key: rng.choice(FIELDS[key]) for key in rng.sample(fields, rng.choice([1, 1, 2, 2, 3, 3, 4, 5]))}


@cache
def options() -> list[dict[str, Any]]:
    singles = [{key: value} for key, values in FIELDS.items() for value in values]
    return [*KNOWN, *singles, *(drawn(seed) for seed in range(COUNT))]


def converted(values: dict[str, Any], folder: Path) -> None:
    """Converts to every target: equal outputs when loaded by either library, or a refusal that names a part."""
    import torch

    import vit
    from tests.exchange.conftest import scramble
    from vit.exchange import SourceError
    from vit.exchange.convert import convert
    from vit.exchange.export.comparing import check_same

    torch.manual_seed(0)
    try:
        model = scramble(vit.create_model("vit_tiny", **{**SMALL, **values}))
    except ValueError:
        return  # the models of this project do not support these values
    for to in TARGETS:
        path = folder / f"{to}.pth"
        try:
            convert(model, path, to)
        except SourceError as error:
            assert "nothing was written" not in str(error), error  # refused only after the comparison
            assert to != "bundle" and not path.exists(), error
        else:
            check_same(path, to, model)
    if model.config.num_classes:
        vit.load(folder / "bundle.pth")


def cases() -> Iterator[Case]:
    for number, values in enumerate(options()):
        name = f"{number} " + " ".join(f"{key}={value}" for key, value in values.items())
        yield Case(name, lambda folder, v=values: converted(v, folder), quick=number < len(KNOWN))


PROMISE = Promise("a conversion gives equal outputs, or is refused with the name of the unsupported part", cases)
