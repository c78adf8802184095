"""Cross entropy over a vocabulary, whose logits are the largest numbers of a text's training step."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

PART = 2**18  # logits at a time: in float32 they stay in a core's cache while they are worked on


def cross_entropy(logits: Tensor, labels: Tensor, ignored: int, label_smoothing: float = 0.0) -> Tensor:
    """logits (N,V), labels (N,) -> scalar, summed over all labels but `ignored`; computed in float32.

    On a CPU each part of the logits is read once and becomes its gradient at once, in the logits' own precision, where
    torch writes several tensors of that size in float32. A small translator's step is 1.1 to 1.5 times as fast where
    freed memory is not kept, and little faster where it is (benchmarks/cpu_step.py).
    """
    elsewhere = logits.device.type != "cpu" or torch.compiler.is_compiling()
    if elsewhere or not (torch.is_grad_enabled() and logits.requires_grad):
        return F.cross_entropy(
            logits.float(), labels, ignore_index=ignored, label_smoothing=label_smoothing, reduction="sum"
        )
    return ByParts.apply(logits, labels, ignored, label_smoothing)


class ByParts(torch.autograd.Function):
    """The sum over n of -sum_v target[n,v] log softmax(logits)[n,v], where a target is 1 - s + s/V at its label and s/V
    elsewhere (arXiv 1512.00567); its gradient is softmax(logits) - target."""

    @staticmethod
    def forward(ctx: FunctionCtx, logits: Tensor, labels: Tensor, ignored: int, label_smoothing: float) -> Tensor:
        V = logits.shape[1]
        gradient = torch.empty_like(logits, memory_format=torch.contiguous_format)
        counted = (labels != ignored).float()[:, None]  # (N,1)
        labels = labels.where(labels != ignored, 0)[:, None]  # any that is counted must be an id: `gather` checks it
        rows = max(1, PART // V)
        total = logits.new_zeros((), dtype=torch.float32)
        for part, label, count, out in zip(*(x.split(rows) for x in (logits, labels, counted, gradient)), strict=True):
            part = part.float()
            shares = part.softmax(1)  # the likeliest is never too small for a logarithm
            norm = part.amax(1, keepdim=True) - shares.amax(1, keepdim=True).log_()
            likely = part.gather(1, label)  # (rows,1)
            if label_smoothing:
                likely = likely.lerp(part.mean(1, keepdim=True), label_smoothing)
            total += ((norm - likely) * count).sum()
            shares.sub_(label_smoothing / V)
            shares.scatter_add_(1, label, torch.full_like(count, label_smoothing - 1))
            out.copy_(shares.mul_(count))
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, scale: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * scale, None, None, None
