"""The record that describes a foreign checkpoint format."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

State = Mapping[str, Tensor]


@dataclass(frozen=True)
class WeightFormat:
    """A checkpoint format as pure functions of a state dict and the config that came with it ({} if there is none).

    Args:
        name: as it is printed in reports.
        matches: whether a state dict has the parameter names of this format.
        convert: renames to vit's parameter names and fuses or splits matrices where vit does. A tensor without a
            counterpart keeps its own name, so that the key report lists it as unused. Raises ValueError for a part
            that vit does not support.
        config_values: values of vit's config that shapes do not determine, such as `norm_eps`, `activation` and
            `num_heads`; None for a value that only the caller can state.
        declared_config: every value of vit's config that the source's config fixes and that the tensors could
            contradict; None for a part that the model does not have.
        excluded: regular expression for names that do not belong to the model, such as the text tower of CLIP ->
            what they are; the key report lists them as excluded.
        assumptions: function of a state dict without a config: a sentence for each choice that its tensors leave open
            between published models.
        with_heads: changes of the converted tensors that depend on the number of heads: (converted, the source's state,
            number of heads) -> converted.
    """

    name: str
    matches: Callable[[State], bool]
    convert: Callable[[State], dict[str, Tensor]]
    config_values: Callable[[State, Mapping[str, Any]], dict[str, Any]]
    excluded: Mapping[str, str] = field(default_factory=dict)
    declared_config: Callable[[State, Mapping[str, Any]], dict[str, Any]] = lambda state, source_config: {}
    assumptions: Callable[[State], list[str]] = lambda state: []
    with_heads: Callable[[dict[str, Tensor], State, int], dict[str, Tensor]] | None = None
