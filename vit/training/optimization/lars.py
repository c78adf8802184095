"""LARS as in the code of MoCo v3 and MAE."""

from collections.abc import Callable

import torch
from torch import Tensor


class MocoLars(torch.optim.Optimizer):
    """SGD with momentum in which the gradient of each matrix, with its weight decay, is scaled to `trust_coefficient`
    times the norm of the matrix (LARS, arXiv 1708.03888); parameters of one dimension, such as biases, have the plain
    gradient (arXiv 2104.02057, 2111.06377).

    timm's `lars` scales either the parameters with weight decay or, with `always_adapt`, biases too.
    """

    def __init__(
        self,
        params,
        lr: float = 1e-3,
        weight_decay: float = 0.0,
        momentum: float = 0.9,
        trust_coefficient: float = 0.001,
    ) -> None:
        values = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "trust_coefficient": trust_coefficient}
        super().__init__(params, values)

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """One step; the loss, a scalar, if `closure` computes it"""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                update = parameter.grad
                if parameter.ndim > 1:
                    update = update.add(parameter, alpha=group["weight_decay"])
                    update = update * trust_ratio(parameter, update, group["trust_coefficient"])
                state = self.state[parameter]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(parameter)
                state["momentum_buffer"].mul_(group["momentum"]).add_(update)
                parameter.add_(state["momentum_buffer"], alpha=-group["lr"])
        return loss


def trust_ratio(parameter: Tensor, update: Tensor, coefficient: float) -> Tensor:
    """`coefficient` times the ratio of both norms, a scalar; 1 where one of them is 0"""
    ours, theirs = parameter.norm(), update.norm()
    return torch.where((ours > 0) & (theirs > 0), coefficient * ours / theirs, 1.0)
