"""Grad-CAM (arXiv 1610.02391) of an image classifier of patches, by captum's LayerGradCam."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from vit.evaluation.attribution.relevance import check_relevance
from vit.messages import import_problem
from vit.nn import ResPostNormBlock


def check_captum() -> None:
    """Checks that captum is installed.

    Raises:
        ValueError: it is not.
    """
    try:
        import captum.attr  # noqa: F401
    except ImportError as error:
        raise ValueError(f"Grad-CAM needs captum, which {import_problem(error, 'captum')}: pip install "
                         "'vitwright[report]', or leave --grad-cam out") from error


class PatchChannels(nn.Module):
    """The identity; the patch tokens pass through `maps` as channels (B,D,patches), the layout that captum expects of a
    layer.
    """

    def __init__(self, prefix: int) -> None:
        super().__init__()
        self.prefix, self.maps = prefix, nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """(B,N,D) -> (B,N,D)"""
        patches = self.maps(x[:, self.prefix :].transpose(1, 2))
        return torch.cat([x[:, : self.prefix], patches.transpose(1, 2)], dim=1)


@contextmanager
def patch_channels(model: nn.Module) -> Iterator[nn.Module]:
    """The layer whose output is the patch tokens (B,D,patches) that the last attention attends to: the tokens after the
    first norm of the last block, or, if norms follow the attention, the input of the block. Later patch tokens do not
    influence a class token.
    """
    block, channels = model.encoder.blocks[-1], PatchChannels(model.embed.prefix)
    if block.pre_norm and not isinstance(block, ResPostNormBlock):
        hook = block.norm1.register_forward_hook(lambda _, inputs, output: channels(output))
    else:
        hook = block.register_forward_pre_hook(lambda _, inputs: (channels(inputs[0]), *inputs[1:]))
    try:
        yield channels.maps
    finally:
        hook.remove()


def grad_cam(model: nn.Module, inputs: Tensor, classes: Tensor) -> Tensor:
    """Normalized inputs (B,C,H,W), classes (B,) -> float32 (B,rows,columns), not negative: the patch tokens that the
    last attention reads, weighted by the mean gradient of the logit of the class per channel.

    Raises:
        ValueError: captum is not installed, or the model has no grid of patches with attention.
    """
    check_captum()
    check_relevance(model)
    from captum.attr import LayerGradCam

    with torch.enable_grad(), patch_channels(model) as layer:
        leaf = inputs.clone().requires_grad_()
        relevance = LayerGradCam(model, layer).attribute(leaf, classes, relu_attributions=True)
    return relevance.detach().float().reshape(len(inputs), *model.embed.size(inputs))
