"""Whose names these are: the formats in order, and the prefixes that wrappers put in front of names."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from vit.weights.formats.bert import BERT
from vit.weights.formats.clip import CLIP, SIGLIP
from vit.weights.formats.dino import ORIGINAL
from vit.weights.formats.dinov3 import DINOV3, DINOV3_ORIGINAL
from vit.weights.formats.google import GOOGLE
from vit.weights.formats.mae import MAE
from vit.weights.formats.openclip import OPENCLIP, OPENCLIP_TIMM
from vit.weights.formats.timm import TIMM
from vit.weights.formats.torchvision import TORCHVISION
from vit.weights.formats.transformers import TRANSFORMERS
from vit.weights.formats.vit_pytorch import VIT_PYTORCH
from vit.weights.weight_format import Format, State


def is_ours(state: State) -> bool:
    return any(name.startswith("encoder.blocks.") for name in state)


OURS = Format("this program's own", is_ours, dict, lambda state, source_config: {})
# the first that knows the names counts
FORMATS = (OURS, MAE, DINOV3, DINOV3_ORIGINAL, ORIGINAL, TIMM, TORCHVISION, TRANSFORMERS, CLIP, SIGLIP, OPENCLIP,
           OPENCLIP_TIMM, GOOGLE, VIT_PYTORCH, BERT)
# of several copies of a network the first of these is taken: averages before what they are averages of
COPIES = ("teacher", "ema", "model_ema", "ema_model", "averaged_model", "momentum_encoder")
DEPTH = 4  # words in a prefix at most


@dataclass(frozen=True)
class Recognised:
    """A state dict of a known format, a wrapper's prefix taken off its names.

    Args:
        state: names outside the prefix stay as they are; `copies` of the network under other prefixes are left out.
    """

    format: Format
    state: dict[str, Tensor]
    prefix: str = ""
    copies: tuple[str, ...] = ()

    @cached_property
    def ours(self) -> dict[str, Tensor]:
        """The tensors under our names."""
        return self.format.convert(self.state)

    def notes(self) -> list[str]:
        """What a report must say about the reading of the names."""
        notes = [] if self.format is OURS else [f"format: {self.format.name}"]
        if self.prefix:
            notes.append(f"the prefix {self.prefix} was taken off the names")
        return notes + [f"another copy under {copy} was left out" for copy in self.copies]


def recognise(state: State) -> Recognised | None:
    """The format of a state dict, with a prefix such as `module.`, `model.` or `teacher.backbone.` or without."""
    if found := known(state):
        return Recognised(found, dict(state))
    wrapped = [prefix for prefix in prefixes(state) if known(without(prefix, state))]
    shortest = [prefix for prefix in wrapped if not any(prefix != other and prefix.startswith(other)
                                                        for other in wrapped)]
    if not shortest:
        return None
    prefix, *copies = sorted(shortest, key=preference)
    inside = without(prefix, state)
    outside = {name: tensor for name, tensor in state.items()
               if not name.startswith((prefix, *copies)) and name not in inside}
    return Recognised(known(inside | outside) or known(inside), inside | outside, prefix, tuple(copies))


def to_ours(state: State) -> dict[str, Tensor]:
    """A state dict of any known format under our names; any other as it is."""
    found = recognise(state)
    return dict(state) if found is None else found.ours


def known(state: State) -> Format | None:
    return next((each for each in FORMATS if each.known(state)), None)


def without(prefix: str, state: State) -> dict[str, Tensor]:
    """The tensors under a prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def prefixes(state: State) -> Iterator[str]:
    """All beginnings of one to four words that names have, in their order."""
    seen: dict[str, None] = {}
    for name in state:
        words = name.split(".")[:-1]
        seen |= {".".join(words[: i + 1]) + ".": None for i in range(min(len(words), DEPTH))}
    yield from seen


def preference(prefix: str) -> int:
    words = prefix.split(".")
    return next((i for i, copy in enumerate(COPIES) if copy in words), len(COPIES))
