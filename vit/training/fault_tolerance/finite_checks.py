"""Norms that show whether a tensor has an element that is not finite or too large, and the choice of the weights that
are checked in a step.
"""

from collections.abc import Sequence
from operator import attrgetter

import torch
from torch import Tensor

from vit.training.optimization.gradient_clipping import local, norms

PARTS = 8  # subsets of the weights, one of which is checked per step


class RoundRobinWeights:
    """Selects the weights to check in a step: one of `PARTS` subsets in turn, or all weights if something besides the
    optimizer has changed one.

    A check of all weights would take 1 % of a step of a small model, and an update by a finite gradient does not make a
    weight infinite. Torch counts the changes of each tensor (`_version`). An optimizer makes the same number of changes
    in every step; another number reveals a change from elsewhere. Changes that torch does not count, such as a memory
    fault, and weights that the optimizer itself makes too large, without a trace in the loss or a gradient, are found
    up to `PARTS` steps late. A checkpoint is saved only after a check of all weights.

    Args:
        weights: the parameters; those that are not floating point are ignored.
    """

    def __init__(self, weights: Sequence[Tensor]):
        self.all = [weight for weight in weights if weight.is_floating_point()]
        self._turn, self._changes, self._per_step = 0, 0, -1

    def select(self) -> list[Tensor]:
        """The weights to check in this step; call it once per step."""
        before, self._changes = self._changes, sum(map(attrgetter("_version"), self.all))
        usual, self._per_step = self._per_step, self._changes - before
        if self._per_step != usual:
            return self.all
        self._turn = (self._turn + 1) % PARTS
        return self.all[self._turn :: PARTS]


def sum_of_norms(tensors: Sequence[Tensor | None]) -> Tensor:
    """The sum of the norms of the tensors, a scalar: it is finite and small only if all elements in this process are.

    Tensors that are not floating point are ignored.
    """
    return norms([local(t) for t in tensors if t is not None and t.is_floating_point()]).sum()


def gradient_norm_and_others(gradients: Sequence[Tensor], others: Sequence[Tensor]) -> tuple[Tensor, list[float]]:
    """The joint norm of the gradients, a scalar, and the norm of each other tensor, computed in one call."""
    sizes = norms([*gradients, *others])
    return torch.linalg.vector_norm(sizes[: len(gradients)]), sizes[len(gradients) :].tolist()
