"""Copies of models that only predict."""

import torch
from torch import nn

from vit.models.classifier import Classifier
from vit.nn.cpu.prepacked import prepacked


def inference_copy(model: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
    """`prepacked`, in which the last block of a classifier computes only the tokens that are pooled, as in training.

    The logits differ from those of the model in the last digits.

    Args:
        dtype: as in `prepacked`.
    """
    copy = prepacked(model, dtype)
    for part in copy.modules():
        if isinstance(part, Classifier):
            part.pooled_only = True
    return copy
