"""timm's VisionTransformer and Eva: parameter names both ways, config values of a timm model, arguments to build it."""

from vit.weights.formats.timm.module_config import DINOV3_HEADS, skeleton, timm_facts
from vit.weights.formats.timm.names import TIMM, TIMM_RULES, from_timm, is_timm, timm_arguments, timm_declared, to_timm

__all__ = [
    "DINOV3_HEADS", "TIMM", "TIMM_RULES", "from_timm", "is_timm", "skeleton", "timm_arguments", "timm_declared",
    "timm_facts", "to_timm",
]
