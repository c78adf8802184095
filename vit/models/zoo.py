"""Model names and sizes, and the construction of models by name or from a saved config."""

import fnmatch
import re
from collections.abc import Mapping
from typing import Any

from torch import nn

from vit.messages import nearest_names
from vit.models.checks import check_names
from vit.models.classifier import VisionTransformer
from vit.models.config import ModelConfig, VisionTransformerConfig
from vit.models.ensemble import ClassifierEnsemble, EnsembleConfig
from vit.models.mae import MaskedAutoencoder, MaskedImageConfig
from vit.models.masked import Bert, MaskedTextConfig
from vit.models.seq2seq import EncoderDecoderConfig, Transformer
from vit.models.text import TextClassifier, TextClassifierConfig
from vit.models.timm_model import TimmConfig, nearest_timm_models, timm_model

# name: (dim, depth, num_heads, mlp_dim, patch_size by default), as in big_vision (arXiv 2106.04560, 2305.13035), except
# for micro, the size of the default run on images of few pixels
SIZES = {
    "micro": (64, 4, 2, 256, 16),
    "tiny": (192, 12, 3, 768, 16),
    "small": (384, 12, 6, 1536, 16),
    "medium": (512, 12, 8, 2048, 16),
    "base": (768, 12, 12, 3072, 16),
    "large": (1024, 24, 16, 4096, 16),
    "so400m": (1152, 27, 16, 4304, 14),
    "huge": (1280, 32, 16, 5120, 14),
    "giant": (1408, 40, 16, 6144, 14),
    "gigantic": (1664, 48, 16, 8192, 14),
}
PATCHES, IMAGES = (8, 14, 16, 32), (224, 384, 448, 512)  # listed by list_models; other valid pairs can be created too
# name: (dim, depth), with heads of 64 channels, as in the published BERTs (arXiv 1810.04805, 1908.08962)
TEXT_SIZES = {
    "tiny": (128, 2),
    "mini": (256, 4),
    "small": (512, 4),
    "medium": (512, 8),
    "base": (768, 12),
    "large": (1024, 24),
}
TEXT_FAMILIES = {"text": TextClassifierConfig, "bert": MaskedTextConfig}
NAME = re.compile(r"(?:vit|mae)_(?P<size>[a-z0-9]+?)(_patch(?P<patch>\d+))?(_(?P<image>\d+))?")
TIMM = ("timm:", "timm/")  # prefixes of timm's names; the second is the former prefix


def create_model(name: str, **overrides: Any) -> nn.Module:
    """A new model with random weights: `create_model("vit_small", image_size=32, patch_size=4, num_classes=10)`.

    | name                                                | model                | overrides                           |
    |-----------------------------------------------------|----------------------|-------------------------------------|
    | `vit_<size>`, `vit_<size>_patch<pixels>[_<pixels>]` | Vision Transformer   | fields of `VisionTransformerConfig` |
    | `mae_...`, as for `vit_`                            | masked autoencoder   | fields of `MaskedImageConfig`       |
    | `text_<size>`                                       | text classifier      | fields of `TextClassifierConfig`    |
    | `bert_<size>`                                       | BERT                 | fields of `MaskedTextConfig`        |
    | `timm:<name>`                                       | any model of timm    | fields of `TimmConfig`              |

    An override of None is ignored.

    Raises:
        ValueError: an unknown name or override (the message has the nearest one), or values that do not fit together.
    """
    config = named_config(name, **overrides)
    return KINDS[config.kind][1](config)


def named_config(name: str, **overrides: Any) -> ModelConfig:
    """The config of the model that `create_model` builds.

    Raises:
        ValueError: as `create_model`; whether timm has a model is checked when it is built.
    """
    overrides = {key: value for key, value in overrides.items() if value is not None}
    if name.startswith(TIMM):
        check_names(TimmConfig, overrides)
        return TimmConfig(name, **overrides)
    family, _, size = name.partition("_")
    if family in TEXT_FAMILIES and size in TEXT_SIZES:
        scale = {"scale_embed": overrides.get("positions") == "sincos"}  # see TextConfig
        return TEXT_FAMILIES[family].from_dict({**scale, **text_values(size), **overrides})
    config = MaskedImageConfig if family == MaskedImageConfig.kind else VisionTransformerConfig
    return config.from_dict({**named_values(name), **overrides})


def list_models(pattern: str = "*") -> list[str]:
    """Names of models that match a pattern such as `vit_small*`; models of timm (`timm:<name>`) are not listed."""
    names = []
    for size in SIZES:
        names.append(f"vit_{size}")
        names += [f"vit_{size}_patch{p}_{i}" for p in PATCHES for i in IMAGES if i % p == 0]
    names += [f"mae_{size}" for size in SIZES]
    names += [f"{family}_{size}" for family in TEXT_FAMILIES for size in TEXT_SIZES]
    return [name for name in names if fnmatch.fnmatch(name, pattern)]


def text_values(size: str) -> dict[str, int]:
    dim, depth = TEXT_SIZES[size]
    return {"dim": dim, "depth": depth, "num_heads": dim // 64}


def named_values(name: str) -> dict[str, Any]:
    """The config values of a model name.

    Raises:
        ValueError: the name is unknown.
    """
    match = NAME.fullmatch(name)
    if match is None or match["size"] not in SIZES:
        raise ValueError(f"there is no model {name!r}; nearest: {', '.join(nearest_models(name))}")
    dim, depth, num_heads, mlp_dim, patch = SIZES[match["size"]]
    return {
        "image_size": int(match["image"] or 224),
        "patch_size": int(match["patch"] or patch),
        "dim": dim,
        "depth": depth,
        "num_heads": num_heads,
        "mlp_ratio": mlp_dim / dim,
    }


def nearest_models(name: str) -> list[str]:
    near = nearest_timm_models(name, 1.0) or nearest_names(name, list_models(), n=3)
    return near or [f"vit_{size}" for size in SIZES]


def ensemble(config: EnsembleConfig) -> ClassifierEnsemble:
    return ClassifierEnsemble(config, [model_from_config(config.member) for _ in config.means])


KINDS = {  # kind -> the class of the config, and the constructor of the model from it
    config.kind: (config, build)
    for config, build in (
        (VisionTransformerConfig, VisionTransformer),
        (TimmConfig, timm_model),
        (TextClassifierConfig, TextClassifier),
        (MaskedImageConfig, MaskedAutoencoder),
        (MaskedTextConfig, Bert),
        (EncoderDecoderConfig, Transformer),
        (EnsembleConfig, ensemble),
    )
}


def model_from_config(values: Mapping[str, Any]) -> nn.Module:
    """Build a model, with random weights, from the result of `model.config.to_dict()`.

    Raises:
        ValueError: an unknown `kind`, or an invalid value.
    """
    kind = values.get("kind")
    if kind not in KINDS:
        raise ValueError(f"model kind {kind!r} is unknown; it must be one of {', '.join(KINDS)}")
    config, build = KINDS[kind]
    return build(config.from_dict(values))
