"""Our models as those of transformers: which of its families computes the same, what its config.json says, its names.

    what of ours                                                    theirs
    the original form                                               ViT
    a distillation token, or one register with a position           DeiT
    registers, LayerScale, SwiGLU, or a mean beside a class token   DINOv2, with registers or without
    a norm before the first block                                   CLIP's tower
    no class token: the mean of the patches, or attention pooling   SigLIP's tower
    centred rotary positions                                        DINOv3
    masked pre-training of images                                   ViTMAE
    a post-norm encoder of texts                                    BERT
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from vit.weights.exporting import Written, parted, require, require_square, scaled, with_table
from vit.weights.formats.bert import to_bert
from vit.weights.formats.clip import to_clip, to_siglip
from vit.weights.formats.dinov3 import to_dinov3
from vit.weights.formats.mae import to_mae
from vit.weights.formats.transformers import DINOV2, SWIGLU, VIT, dropout_words, image_words, shared_words
from vit.weights.renaming import Names
from vit.weights.weight_format import State

CLASSIFIER = {"head": "classifier"}
TAUGHT = {"head": "cls_classifier", "head_dist": "distillation_classifier"}
TEXTS = ("masked_text", "text_classifier")


def to_transformers(state: State, config: Any) -> Written:
    """What config.json says, less class names, and tensors under the names of files that its versions 4 and 5 read.

    Raises:
        ValueError: the family that comes closest cannot be this network; names the first part that it lacks.
    """
    return family(config)(state, config)


def family(config: Any) -> Callable[[State, Any], Written]:
    """By a part that only this one has."""
    if config.kind in TEXTS:
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


def to_vit(state: State, config: Any) -> Written:
    require(config, "transformers' ViT")
    said = {"architectures": [architecture("ViT", config)], "model_type": "vit", **words(config)}
    return said, headed(renamed(with_table(state, config, 1), VIT), "vit", config)


def to_deit(state: State, config: Any) -> Written:
    """Where both tokens have a head it is called "with a teacher"; else the second is only there to be attended to."""
    registers = (0,) if config.dist_token else (1,)
    require(config, "transformers' DeiT", {"registers": registers}, free=("dist_token",))
    if config.dist_token and not config.num_classes:
        raise ValueError("transformers' DeiT without a head gives the class token alone, but this one with "
                         "dist_token=True and num_classes=0 the mean of both tokens")
    ours = with_table(state, config, 2)
    if config.registers:
        ours["embed.dist_token"] = ours.pop("embed.reg_token")
    taught = config.dist_token and config.num_classes
    said = {"architectures": [architecture("DeiT", config) + ("WithTeacher" if taught else "")], "model_type": "deit"}
    return {**said, **words(config)}, headed(renamed(ours, VIT), "deit", config, TAUGHT if taught else CLASSIFIER)


def to_dinov2(state: State, config: Any) -> Written:
    """Its classifier reads the class token and the mean of the patches: what reads one has zeros for the other."""
    whose = "transformers' DINOv2"
    gated, averages = config.mlp == "swiglu", config.pool != "class"
    also = {"pool": ("class", "mean", "class_mean"), "mlp": ("mlp", "swiglu")}
    also |= {"activation": ("silu",)} if gated else {}
    also |= {"pool_prefix": (False,)} if averages else {}
    also |= {} if config.num_classes else {"pool": ("class",)}  # a model without a head gives the class token
    require(config, whose, also, free=("registers", "layer_scale"))
    require_square(config, whose)
    body, name = "dinov2", "Dinov2"
    own: dict[str, Any] = {"use_mask_token": False}
    ours = scaled(with_table(state, config, 1 if not config.prefix_positions else config.prefix), config)
    if config.registers:
        body, name, own = "dinov2_with_registers", "Dinov2WithRegisters", {"num_register_tokens": config.registers}
        ours = registered(ours, config)
    if config.num_classes and config.pool != "class_mean":
        parts = [ours["head.weight"], torch.zeros_like(ours["head.weight"])]  # (classes,D)
        ours["head.weight"] = torch.cat(parts if config.pool == "class" else parts[::-1], dim=1)
    said = {key: value for key, value in words(config).items() if key != "intermediate_size"}
    said |= {"mlp_ratio": whole_ratio(config, whose), "use_swiglu_ffn": gated, **own}
    said = {"architectures": [architecture(name, config)], "model_type": body, **said}
    return said, headed(renamed(ours, SWIGLU if gated else DINOV2), body, config)


def registered(ours: State, config: Any) -> dict[str, Tensor]:
    """The state with the positions (1,1+N,D) of class token and patches; those of registers become part of them."""
    table, registers = ours["embed.pos_embed"], ours["embed.reg_token"]
    if config.prefix_positions:
        registers = registers + table[:, 1 : config.prefix]
        table = torch.cat([table[:, :1], table[:, config.prefix :]], dim=1)
    mask = torch.zeros(1, config.dim)  # theirs has one, whether it is used or not
    return {**ours, "embed.pos_embed": table, "embed.reg_token": registers, "embeddings.mask_token": mask}


def whole_ratio(config: Any, whose: str) -> int:
    """The `mlp_ratio` that gives this inner width there; of a SwiGLU two thirds, rounded up to eights, are taken.

    Raises:
        ValueError: no whole number does.
    """
    for ratio in range(1, 65):
        inner = ratio * config.dim
        if config.hidden == ((int(inner * 2 / 3) + 7) // 8 * 8 if config.mlp == "swiglu" else inner):
            return ratio
    raise ValueError(f"{whose} has an inner width that is a whole number of times {config.dim}"
                     f"{', times two thirds' if config.mlp == 'swiglu' else ''}, but this one has {config.hidden}")


def words(config: Any) -> dict[str, Any]:
    """What config.json of ViT, DeiT and DINOv2 calls the same."""
    return {**shared_words(config), **image_words(config), **dropout_words(config), "qkv_bias": config.qkv_bias}


def architecture(name: str, config: Any) -> str:
    return f"{name}ForImageClassification" if config.num_classes else f"{name}Model"


def renamed(ours: State, names: Names) -> dict[str, Tensor]:
    return {names.theirs(name): tensor for name, tensor in parted(ours).items()}


def headed(theirs: State, body: str, config: Any, heads: Mapping[str, str] = CLASSIFIER) -> dict[str, Tensor]:
    """A classifier has the network under a name of its own and the heads beside it, under theirs instead of ours."""
    if not config.num_classes:
        return dict(theirs)
    named = {}
    for name, tensor in theirs.items():
        first, _, leaf = name.partition(".")
        named[f"{heads[first]}.{leaf}" if first in heads else f"{body}.{name}"] = tensor
    return named
