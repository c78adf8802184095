"""Layer-wise learning rate decay (BEiT, arXiv 2106.08254): the layer of every parameter, by its name.

`parameter_groups` of `optim.py` applies it.
"""

import re

from torch import nn

from vit.weights.training_checkpoint import clean_name

BLOCK = re.compile(r"(^|\.)blocks\.(\d+)\.")
STEM = re.compile(r"^(model\.)?(embed|encoder\.rotary|rope|patch_embed|cls_token|dist_token|reg_token|pos_embed)\b")


def layer_numbers(model: nn.Module) -> dict[str, int]:
    """The layer of every parameter: 0 for the embedding, N + 1 for block N, one more for what follows the blocks.

    The last norm belongs to the last block, as in timm; in the code of BEiT and MAE to the head. A timm model defines
    its layers by its `group_matcher`.

    Raises:
        ValueError: the model has neither numbered blocks nor a `group_matcher`.
    """
    if hasattr(model, "group_matcher"):
        from timm.models import group_parameters

        return {
            clean_name(name): layer
            for name, layer in group_parameters(model, model.group_matcher(coarse=False), reverse=True).items()
        }
    names = [clean_name(name) for name, _ in model.named_parameters()]
    depth = max((int(match[2]) + 1 for name in names if (match := encoder_block(name))), default=0)
    if depth == 0:
        raise ValueError(
            f"layer_decay needs numbered blocks (`blocks.N.`) or a timm `group_matcher`, but "
            f"{type(model).__name__} has neither; set layer_decay=null"
        )
    return {name: layer_number(name, depth) for name in names}


def layer_number(name: str, depth: int) -> int:
    """The layer of one parameter in a model of `depth` blocks."""
    if match := encoder_block(name):
        return int(match[2]) + 1
    if STEM.search(name):
        return 0
    return depth if re.search(r"(^|\.)encoder\.norm\.", name) else depth + 1


def encoder_block(name: str) -> re.Match | None:
    """The match of a parameter of an encoder block; None for a decoder, which is trained from scratch at full rate."""
    return None if "decoder." in name else BLOCK.search(name)
