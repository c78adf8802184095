"""Which weights the guard reads in a step, and the norms that show whether an element is not finite or too large."""

from collections.abc import Sequence
from operator import attrgetter

import torch
from torch import Tensor

from vit.training.optimization.gradient_clipping import local, norms

PARTS = 8  # of the weights; one is read per step


class WeightsInTurn:
    """Selects the weights to read in a step: some, or all if something besides the optimizer changed one.

    Torch counts the changes of each tensor, and an optimizer makes equally many in every step. Reading all weights in
    each step costs a small model 1 % of it, and an update by a finite gradient does not make a weight infinite, so the
    weights are read in turn. That also finds what torch does not count, such as a fault of the memory. A weight that
    the optimizer itself makes too large, without a trace in the loss or a gradient, is found up to `PARTS` steps late;
    a checkpoint is saved only after all weights have been read.

    Args:
        weights: the parameters; those that are not floating point are ignored.
    """

    def __init__(self, weights: Sequence[Tensor]):
        self.all = [weight for weight in weights if weight.is_floating_point()]
        self._turn, self._changes, self._per_step = 0, 0, -1

    def due(self) -> list[Tensor]:
        """The tensors to read in this step."""
        before, self._changes = self._changes, sum(map(attrgetter("_version"), self.all))
        usual, self._per_step = self._per_step, self._changes - before
        if self._per_step != usual:
            return self.all
        self._turn = (self._turn + 1) % PARTS
        return self.all[self._turn :: PARTS]


def norm_of(tensors: Sequence[Tensor | None]) -> Tensor:
    """A scalar that is finite and small only if all elements in this process are; others than floats are ignored."""
    return norms([local(t) for t in tensors if t is not None and t.is_floating_point()]).sum()


def gradient_and_others(gradients: Sequence[Tensor], others: Sequence[Tensor]) -> tuple[Tensor, list[float]]:
    """The joint norm of the gradients, a scalar, and the norm of each other tensor, from one call for all."""
    sizes = norms([*gradients, *others])
    return torch.linalg.vector_norm(sizes[: len(gradients)]), sizes[len(gradients) :].tolist()
