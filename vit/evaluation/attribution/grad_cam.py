"""Grad-CAM (arXiv 1610.02391) of an image classifier of patches, by captum's LayerGradCam."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def check_captum() -> None:
    """
    Raises:
        ValueError: captum is not installed.
    """
    try:
        import captum.attr  # noqa: F401
    except ImportError as error:
        raise ValueError("Grad-CAM needs captum, which is not installed; install it with pip install captum, or leave "
                         "--grad-cam out") from error


class PatchChannels(nn.Module):
    """A norm whose patch tokens pass `maps` as channels (B,D,patches), the layout that captum expects of a layer."""

    def __init__(self, norm: nn.Module, prefix: int) -> None:
        super().__init__()
        self.norm, self.prefix, self.maps = norm, prefix, nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """(B,N,D) -> (B,N,D)"""
        x = self.norm(x)
        patches = self.maps(x[:, self.prefix :].transpose(1, 2))
        return torch.cat([x[:, : self.prefix], patches.transpose(1, 2)], dim=1)


@contextmanager
def patch_channels(model: nn.Module) -> Iterator[nn.Module]:
    """The layer whose output are the patch tokens (B,D,patches) that enter the attention of the last block."""
    block = model.encoder.blocks[-1]
    norm = block.norm1
    block.norm1 = PatchChannels(norm, model.embed.prefix)
    try:
        yield block.norm1.maps
    finally:
        block.norm1 = norm


def grad_cam(model: nn.Module, inputs: Tensor, classes: Tensor) -> Tensor:
    """Normalized inputs (B,C,H,W), classes (B,) -> float32 (B,rows,columns), not negative: the patch tokens that enter
    the attention of the last block, weighted by the mean gradient of the logit of the class per channel.

    Raises:
        ValueError: captum is not installed.
    """
    check_captum()
    from captum.attr import LayerGradCam

    with torch.enable_grad(), patch_channels(model) as layer:
        found = LayerGradCam(model, layer).attribute(inputs.clone().requires_grad_(), classes, relu_attributions=True)
    return found.detach().float().reshape(len(inputs), *model.embed.grid)
