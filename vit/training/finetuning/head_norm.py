"""Batch normalization before a head on frozen features, merged into the head when a model is saved."""

from torch import Tensor, nn

from vit.weights.training_checkpoint import HEAD_NORM_EPS


class HeadNorm(nn.BatchNorm1d):
    """Batch normalization without scale and shift (MoCo v3, arXiv 2104.02057; MAE, arXiv 2111.06377).

    The features of self-supervised models have channels of very different deviations, with which one learning rate does
    not fit all columns of the head.
    """

    def __init__(self, dim: int) -> None:
        super().__init__(dim, eps=HEAD_NORM_EPS, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B,D) -> (B,D)"""
        return super().forward(x.to(self.running_mean.dtype)).to(x.dtype)  # not in the lower precision of autocast


def add_head_norm(layer: nn.Linear) -> None:
    """Add a `HeadNorm` before a head, whose weights are initialized with deviation 0.01. Its class and parameter names
    stay the same.
    """
    nn.init.trunc_normal_(layer.weight, std=0.01)
    nn.init.zeros_(layer.bias)
    layer.input_norm = HeadNorm(layer.in_features).to(layer.weight.device)
    layer.register_forward_pre_hook(normalize_input)


def normalize_input(layer: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    """The forward pre-hook: input (B,D) -> the normalized input (B,D)"""
    return layer.input_norm(inputs[0])
