"""Export to transformers: the model family of transformers as which a model of vit is saved.

    vit                                                             transformers
    the original Vision Transformer                                 ViT
    a distillation token, or one register with a learned position   DeiT
    registers, LayerScale, SwiGLU, or a mean beside a class token   DINOv2, with or without registers
    a norm before the first block                                   CLIP's vision tower
    no class token (mean of the patches), or attention pooling      SigLIP's vision tower
    centred rotary positions                                        DINOv3
    a masked autoencoder of images                                  ViTMAE
    a post-norm text encoder                                        BERT
"""

from collections.abc import Callable
from typing import Any

from vit.weights.export_checks import ForeignWeights
from vit.weights.formats.bert import to_bert
from vit.weights.formats.clip import to_clip, to_siglip
from vit.weights.formats.dinov3 import to_dinov3
from vit.weights.formats.mae import to_mae
from vit.weights.formats.transformers import to_deit, to_dinov2, to_vit
from vit.weights.weight_format import State

TEXT_KINDS = ("masked_text", "text_classifier")


def to_transformers(state: State, config: Any) -> ForeignWeights:
    """config.json without class names, and tensors under the names of files that transformers 4 and 5 load.

    Raises:
        ValueError: the closest family does not support this config; the message names the first option that the family
            lacks.
    """
    return closest_family(config)(state, config)


def closest_family(config: Any) -> Callable[[State, Any], ForeignWeights]:
    """The export function of the closest family. Parts of the config that only one family has are checked first; plain
    ViT is the last.
    """
    if config.kind in TEXT_KINDS:
        return to_bert
    if config.kind != "vit":
        return to_mae if config.kind == "mae" else to_vit
    if config.positions == "rotary" and config.rotary_coordinates == "centred":
        return to_dinov3
    if config.embed_norm:
        return to_clip
    if not config.class_token or config.pool == "attention":
        return to_siglip
    if config.dist_token:
        return to_deit
    if config.pool != "class" or config.mlp != "mlp" or config.layer_scale is not None:
        return to_dinov2
    if config.registers == 1 and config.positions == "learned" and config.prefix_positions:
        return to_deit
    return to_dinov2 if config.registers else to_vit
