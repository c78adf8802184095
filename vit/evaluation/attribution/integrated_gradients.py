"""Class-specific maps of an image classifier by integrated gradients (arXiv 1703.01365), summed over each patch."""

import torch
from torch import Tensor, nn

STEPS = 16  # steps of the path from the baseline to the image


def integrated_gradients(
    model: nn.Module, inputs: Tensor, classes: Tensor, steps: int = STEPS, multi_label: bool = False
) -> Tensor:
    """The contribution of each patch to the log-probability of a class: normalized inputs (B,C,H,W), classes (B,) ->
    float32 (B,rows,columns), negative where a patch lowers the score of the class.

    The baseline is the image's mean per channel. Contributions sum to the change of the log-probability from the
    baseline to the image, up to the error of `steps` midpoints of the integral.

    Args:
        multi_label: whether each class has a probability of its own, the sigmoid of its logit.
    """
    baseline = inputs.mean(dim=(2, 3), keepdim=True)
    change, total = inputs - baseline, torch.zeros_like(inputs)
    for step in range(steps):
        point = (baseline + (step + 0.5) / steps * change).detach().requires_grad_()
        with torch.enable_grad():
            logits = model(point).float()
            values = nn.functional.logsigmoid(logits) if multi_label else logits.log_softmax(-1)
            value = values.gather(1, classes[:, None]).sum()
            total += torch.autograd.grad(value, point)[0]
    pixels = (change * total / steps).sum(dim=1)  # (B,H,W)
    rows, columns = model.embed.size(inputs)
    return pixels.unflatten(2, (columns, -1)).unflatten(1, (rows, -1)).sum(dim=(2, 4)).float()
