"""What this room knows of somebody else's way to write a network down."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

State = Mapping[str, Tensor]


@dataclass(frozen=True)
class Format:
    """A foreign format as pure maps: how to recognise it, its names as ours, and what its tensors do not say.

    Args:
        name: the word for it in reports.
        known: whether a state dict is of this format.
        convert: their names -> ours, fused and split as ours are. What has no home here keeps its own name, so that a
            report shows it as unused; a part that ours cannot compute raises a ValueError of one sentence.
        facts: state dict and the source's own config, parsed ({} without one) -> values of our config that shapes
            cannot tell, such as `norm_eps`, `activation` and `num_heads`; None where only the caller can know.
        declared: state dict and the source's own config -> all values of our config that the source's config fixes and
            tensors can contradict, None for a part that is not there.
        apart: patterns of whole names that stand beside the network and are left out on purpose, such as the text tower
            of CLIP -> what they are.
        doubts: state dict that came without a config -> how something was taken that its tensors leave open between
            published models, a sentence each.
    """

    name: str
    known: Callable[[State], bool]
    convert: Callable[[State], dict[str, Tensor]]
    facts: Callable[[State, Mapping[str, Any]], dict[str, Any]]
    apart: Mapping[str, str] = field(default_factory=dict)
    declared: Callable[[State, Mapping[str, Any]], dict[str, Any]] = lambda state, source_config: {}
    doubts: Callable[[State], list[str]] = lambda state: []
