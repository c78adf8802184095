"""Several image classifiers as one model: the mean of their probabilities."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vit.models.config import ModelConfig

TINY = 1e-7  # distance of probabilities of labels from 0 and 1, at which logits would be infinite


@dataclass(frozen=True)
class EnsembleConfig(ModelConfig):
    """Configuration of members of one architecture.

    Args:
        member: the config of each member, as a mapping.
        means, stds: mean and deviation of each channel (members,C) with which each member normalizes pixels in 0..1.
        temperatures: the divisors of the logits of each calibrated member: a number, or one per label with
            `multi_label`; () for none.
        multi_label: average independent probabilities per label instead of a distribution over classes.

    Raises:
        ValueError: there is no member, a member lacks a mean, deviation or temperature, or a deviation or temperature
            is not finite and above 0.
    """

    kind: ClassVar[str] = "ensemble"

    member: Mapping[str, Any]
    means: tuple[tuple[float, ...], ...]
    stds: tuple[tuple[float, ...], ...]
    multi_label: bool = False
    temperatures: tuple[float | tuple[float, ...], ...] = ()

    def __post_init__(self) -> None:
        for name in ("means", "stds"):
            object.__setattr__(self, name, tuple(tuple(map(float, row)) for row in getattr(self, name)))
        if not self.means or len(self.means) != len(self.stds):
            raise ValueError(f"an ensemble needs a mean and a deviation for each member, but has {len(self.means)} "
                             f"means and {len(self.stds)} stds")
        object.__setattr__(self, "temperatures", tuple(map(_numbers, self.temperatures)) or (1.0,) * len(self.means))
        if len(self.temperatures) != len(self.means):
            raise ValueError(f"an ensemble of {len(self.means)} members has {len(self.temperatures)} temperatures; "
                             "give one for each member, or none")
        per_label = (each for each in self.temperatures if isinstance(each, tuple))
        if wrong := next((each for each in per_label if len(each) != self.num_classes), ()):
            raise ValueError(f"a member of an ensemble has {len(wrong)} temperatures for {self.num_classes} labels")
        for name, values in (("stds", self.stds), ("temperatures", self.temperatures)):
            numbers = (number for each in values for number in (each if isinstance(each, tuple) else (each,)))
            if (wrong := next((number for number in numbers if not 0 < number < math.inf), None)) is not None:
                raise ValueError(f"{name} of an ensemble has {wrong:g}; they divide, so they must be finite "
                                 "and above 0")
        if self.member.get("kind") == self.kind:
            raise ValueError("a member of an ensemble is an ensemble itself; give its members instead")

    @property
    def num_classes(self) -> int:
        return self.member["num_classes"]

    @property
    def in_chans(self) -> int:
        return self.member.get("in_chans", 3)

    @property
    def image_size(self) -> tuple[int, int]:
        return tuple(self.member["image_size"])

    def to_dict(self) -> dict[str, Any]:
        """JSON-serializable values with the `kind` that `model_from_config` expects."""
        values = super().to_dict()
        return {**values, "means": [list(row) for row in self.means], "stds": [list(row) for row in self.stds],
                "temperatures": [list(each) if isinstance(each, tuple) else each for each in self.temperatures]}


def _numbers(value: float | Sequence[float]) -> float | tuple[float, ...]:
    return tuple(map(float, value)) if isinstance(value, list | tuple) else float(value)


class ClassifierEnsemble(nn.Module):
    """Members that each normalize the image themselves; the logits' softmax (sigmoid for several labels) is the mean of
    the members' probabilities, calibrated where a member is.
    """

    def __init__(self, config: EnsembleConfig, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.config = config
        self.members = nn.ModuleList(members)

    def forward(self, images: Tensor) -> Tensor:
        """images (B,C,H,W) with pixels in 0..1 -> logits (B,classes)"""
        each = [member(self._normalized(images, i)).float() / torch.tensor(temperature, device=images.device)
                for i, (member, temperature) in enumerate(zip(self.members, self.config.temperatures, strict=True))]
        if self.config.multi_label:
            return torch.stack([logits.sigmoid() for logits in each]).mean(0).clamp(TINY, 1 - TINY).logit()
        return torch.stack([logits.log_softmax(-1) for logits in each]).logsumexp(0) - math.log(len(each))

    def _normalized(self, images: Tensor, member: int) -> Tensor:
        mean, std = (images.new_tensor(values[member]).view(-1, 1, 1) for values in (self.config.means,
                                                                                     self.config.stds))
        return (images - mean) / std
