"""Detection of the format of a state dict, and of the prefix that a wrapper added to its names."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from vit.weights.formats.bert import BERT
from vit.weights.formats.clip import CLIP, SIGLIP
from vit.weights.formats.dino import DINO
from vit.weights.formats.dinov3 import DINOV3, DINOV3_ORIGINAL
from vit.weights.formats.google import GOOGLE
from vit.weights.formats.mae import MAE
from vit.weights.formats.openclip import OPENCLIP, OPENCLIP_TIMM
from vit.weights.formats.timm import TIMM
from vit.weights.formats.torchvision import TORCHVISION
from vit.weights.formats.transformers import TRANSFORMERS
from vit.weights.formats.vit_pytorch import VIT_PYTORCH
from vit.weights.training_checkpoint import WRAPPERS
from vit.weights.weight_format import State, WeightFormat


def is_vit(state: State) -> bool:
    """Whether the names are those of this project, not those of timm in an attribute `encoder` of another program."""
    own = any(name.startswith("encoder.blocks.") for name in state)
    return own and not any(name.startswith("encoder.patch_embed.") for name in state)


VIT = WeightFormat("this project's own", is_vit, dict, lambda state, source_config: {})
# the order matters: a state dict has the first format that matches
FORMATS = (VIT, MAE, DINOV3, DINOV3_ORIGINAL, DINO, TIMM, TORCHVISION, TRANSFORMERS, CLIP, SIGLIP, OPENCLIP,
           OPENCLIP_TIMM, GOOGLE, VIT_PYTORCH, BERT)
# of several copies of a model in a checkpoint, the first one in this order is loaded: averaged weights before raw ones
COPIES = ("teacher", "ema", "model_ema", "ema_model", "averaged_model", "momentum_encoder")
MAX_PREFIX_DEPTH = 4  # components of a dotted name
WRAPPED_BLOCK = re.compile(rf"(?<=\d)(?:\.(?:{'|'.join(WRAPPERS)}))+(?=\.)")  # `blocks.0._orig_mod.`


@dataclass(frozen=True)
class DetectedWeights:
    """A state dict whose format is known, without the prefix of a wrapper.

    Args:
        state: tensors by name, with the prefix removed where a name had it.
        copies: prefixes of further copies of the model, whose tensors are not in `state`.
        num_heads: number of heads of the model that loads the tensors, for formats whose conversion depends on it.
    """

    format: WeightFormat
    state: dict[str, Tensor]
    prefix: str = ""
    copies: tuple[str, ...] = ()
    num_heads: int | None = None

    @cached_property
    def converted(self) -> dict[str, Tensor]:
        """The tensors under vit's parameter names."""
        converted = self.format.convert(self.state)
        if self.format.with_heads is None or self.num_heads is None:
            return converted
        return self.format.with_heads(converted, self.state, self.num_heads)

    def notes(self) -> list[str]:
        """Lines of the key report about format, prefix and ignored copies."""
        notes = [] if self.format is VIT else [f"format: {self.format.name}"]
        if self.prefix:
            notes.append(f"the prefix {self.prefix} was removed from the names")
        return notes + [f"another copy under {copy} was ignored" for copy in self.copies]


def detect_format(state: State) -> DetectedWeights | None:
    """The format of a state dict, with or without a prefix such as `module.`, `model.` or `teacher.backbone.`; None if
    no format matches. Wrappers of single blocks, as in `blocks.0._orig_mod.norm1.weight`, are removed as well.
    """
    state = {WRAPPED_BLOCK.sub("", name): tensor for name, tensor in state.items()}
    if format := matching_format(state):
        return DetectedWeights(format, state)
    wrapped = [prefix for prefix in name_prefixes(state) if matching_format(strip_prefix(prefix, state))]
    shortest = [prefix for prefix in wrapped if not any(prefix != other and prefix.startswith(other)
                                                        for other in wrapped)]
    if not shortest:
        return None
    prefix, *copies = sorted(shortest, key=copy_rank)
    inside = strip_prefix(prefix, state)
    outside = {name: tensor for name, tensor in state.items()
               if not name.startswith((prefix, *copies)) and name not in inside}
    format = matching_format(inside | outside) or matching_format(inside)
    return DetectedWeights(format, inside | outside, prefix, tuple(copies))


def matching_format(state: State) -> WeightFormat | None:
    return next((each for each in FORMATS if each.matches(state)), None)


def strip_prefix(prefix: str, state: State) -> dict[str, Tensor]:
    """The tensors whose names start with the prefix, under the rest of the name."""
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def name_prefixes(state: State) -> Iterator[str]:
    """Every prefix of one to four components, in the order of the names."""
    seen: dict[str, None] = {}
    for name in state:
        components = name.split(".")[:-1]
        seen |= {".".join(components[: i + 1]) + ".": None for i in range(min(len(components), MAX_PREFIX_DEPTH))}
    yield from seen


def copy_rank(prefix: str) -> int:
    """The position of a prefix in COPIES, for `net_ema.` and `ema_net.` that of `ema`; other prefixes come last."""
    components = {*prefix.split("."), *(["ema"] if "ema" in re.split("[._]", prefix) else [])}
    return next((i for i, copy in enumerate(COPIES) if copy in components), len(COPIES))
