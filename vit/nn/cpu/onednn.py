"""oneDNN's operators for linear layers, and whether it computes in bfloat16."""

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
    """oneDNN's operators, or None if this build of torch lacks them or their signature differs."""
    x = torch.ones(2, 3, dtype=torch.float32, device="cpu")  # whatever the default dtype and device are
    try:
        with torch.inference_mode():
            operators = OneDNN(torch.ops.mkldnn._linear_pointwise, torch.ops.mkldnn._reorder_linear_weight)
            products = [operators.product(x, weight, x[:, 0], *FUSED[identity]) for weight in (x, operators.pack(x, 2))]
            return operators if all(torch.equal(each, torch.full_like(each, 4.0)) for each in products) else None
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return None


@cache
def computes_bfloat16() -> bool:
    """Whether oneDNN computes products and the softmax in bfloat16; on processors with AVX2 alone it does not."""
    onednn, x = load_onednn(), torch.ones(2, 2, dtype=torch.bfloat16, device="cpu")
    if onednn is None:
        return False
    try:
        with torch.inference_mode():
            onednn.product(x, x, None, *FUSED[identity])
            x.to_mkldnn().softmax(-1)
    except RuntimeError:
        return False
    return True
