"""Activations as functions, where torch has none."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Activation = Callable[[Tensor], Tensor]  # nn.GELU(), F.relu, ...


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU with a tanh approximation (arXiv 1606.08415, section 2); any shape -> the same."""
    return F.gelu(x, approximate="tanh")


def quick_gelu(x: Tensor) -> Tensor:
    """GELU with a sigmoid approximation (arXiv 1606.08415, section 4), as in OpenAI's CLIP; any shape -> the same."""
    return x * torch.sigmoid(1.702 * x)
