"""timm's VisionTransformer and Eva: parameter names both ways, config values, and arguments to build a model.

`names` maps parameter names. `model_values` reads config values from a timm model, `default_values` assumes them if
there is no config, and `meta_model` builds the model that a config.json names. `model_args` converts vit's config to
timm's arguments. `eva`, `parallel` and `relative` convert what only these blocks have.
"""

from vit.weights.formats.timm.default_values import DINOV3_NUM_HEADS
from vit.weights.formats.timm.eva import fuse_eva_matrices
from vit.weights.formats.timm.meta_model import build_meta_model
from vit.weights.formats.timm.model_args import timm_arguments
from vit.weights.formats.timm.names import (
    TIMM,
    TIMM_RULES,
    from_timm,
    is_timm,
    timm_config_values,
    timm_declared_config,
    to_timm,
)

__all__ = [
    "DINOV3_NUM_HEADS", "TIMM", "TIMM_RULES", "build_meta_model", "from_timm", "fuse_eva_matrices", "is_timm",
    "timm_arguments", "timm_config_values", "timm_declared_config", "to_timm",
]
