"""oneDNN's operators for linear layers."""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.nn.activations import gelu_tanh
from vit.nn.norm import identity

FUSED = {  # activations that oneDNN computes with a product: the arguments of its operator
    identity: ("none", [], ""), F.gelu: ("gelu", [], "none"), gelu_tanh: ("gelu", [], "tanh"), F.relu: ("relu", [], ""),
}


class OneDNN(NamedTuple):
    """The operators that torch's compiler uses to compute `F.linear` with oneDNN."""

    product: Callable[..., Tensor]
    pack: Callable[..., Tensor]


@cache
def load_onednn() -> OneDNN | None:
    """oneDNN's operators, or None where this build of torch lacks them or their signature differs."""
    x = torch.ones(2, 3)
    try:
        with torch.inference_mode():
            operators = OneDNN(torch.ops.mkldnn._linear_pointwise, torch.ops.mkldnn._reorder_linear_weight)
            products = [operators.product(x, weight, x[:, 0], *FUSED[identity]) for weight in (x, operators.pack(x, 2))]
            return operators if all(torch.equal(each, torch.full((2, 2), 4.0)) for each in products) else None
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return None
