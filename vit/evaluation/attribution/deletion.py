"""The deletion curve of an attention map (arXiv 1806.07421): the probability of a class as its patches are removed."""

import math

import torch
from torch import Tensor, nn

STEPS = 10  # points of the curve after the first one


@torch.inference_mode()
def deletion_curve(model: nn.Module, inputs: Tensor, classes: Tensor, maps: Tensor, steps: int = STEPS) -> Tensor:
    """The probability of a class (softmax of the logits) after 0, 1/steps, 2/steps, ... and all patches are removed, in
    descending order of their values in the map.

    Removed patches are filled with the mean of each channel of the image. The lower the mean of the curve, the better
    the map shows which patches determine the class.

    Args:
        inputs: normalized images (B,C,H,W).
        classes: (B,) indices.
        maps: (B,rows,columns), a value per patch.

    Returns:
        (B,steps + 1)
    """
    order = maps.flatten(1).argsort(dim=1, descending=True, stable=True)
    ranks = order.argsort(dim=1).reshape(maps.shape)  # 0 for the highest value
    count, fill = math.prod(maps.shape[1:]), inputs.mean(dim=(2, 3), keepdim=True)
    curve = []
    for step in range(steps + 1):
        removed = (ranks < round(step * count / steps))[:, None].float()
        covered = nn.functional.interpolate(removed, inputs.shape[2:], mode="nearest") > 0
        logits = model(torch.where(covered, fill, inputs))
        curve.append(logits.float().softmax(-1).gather(1, classes[:, None])[:, 0])
    return torch.stack(curve, dim=1)
