"""Test-time augmentation of image classifiers: the image and its mirror image."""

import torch
from torch import Tensor, nn

from vit.messages import ArgumentError


class MirrorAverage(nn.Module):
    """The mean of a classifier's logits for an image and for its mirror image, at twice the time.

    For models trained with horizontal flips. The image itself comes last, so that what hooks record last is its own.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.training = model.training

    def forward(self, images: Tensor) -> Tensor:
        """(B,C,H,W) -> logits (B,classes)"""
        mirrored = self.model(images.flip(-1))
        return torch.stack([mirrored, self.model(images)]).mean(0)


def averaged(model: nn.Module, tta: int) -> nn.Module:
    """The model itself for `tta=1`, its `MirrorAverage` for `tta=2`.

    Raises:
        ValueError: another number.
    """
    check_tta(tta)
    return MirrorAverage(model) if tta == 2 else model


def check_tta(tta: int) -> None:
    """Check the number of versions of an image over which a classifier averages.

    Raises:
        ValueError: it is neither 1 nor 2.
    """
    if tta not in (1, 2):
        raise ArgumentError(f"tta={tta}: a classifier of images averages over the image and its mirror image; use "
                            "tta=2, or tta=1 for the image alone")
