"""Learning from a teacher's answers beside the labels (arXiv 1503.02531, 2012.12877)."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.data import Preprocessing

Outputs = Tensor | tuple[Tensor, Tensor]  # logits (B,classes), or those of class token and distillation token


class Teacher:
    """A finished classifier that answers on a student's own pixels, prepared as it is used to them.

    No module, so that neither checkpoints nor optimizers nor the student's `train()` get hold of it.

    Args:
        theirs, ours: how teacher and student normalise pixels; an image is resized where their sizes differ.
        columns: which of the teacher's logits is which of the student's classes.
    """

    def __init__(
        self, model: nn.Module, theirs: Preprocessing, ours: Preprocessing, columns: Sequence[int]
    ) -> None:
        self.model = model.eval().requires_grad_(False)
        self.size, self.columns = theirs.size, torch.tensor(columns)
        mean, std, own_mean, own_std = (
            torch.tensor(values).view(-1, 1, 1) for values in (theirs.mean, theirs.std, ours.mean, ours.std)
        )
        self.scale, self.shift = own_std / std, (own_mean - mean) / std  # from our normal form to theirs, (C,1,1)

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """float (B,C,H,W) as the student sees them -> logits (B,classes) in the student's order"""
        if self.columns.device != images.device:
            self.model = self.model.to(images.device)
            self.columns, self.scale, self.shift = (
                each.to(images.device) for each in (self.columns, self.scale, self.shift)
            )
        return self.model(self.prepared(images)).float()[:, self.columns]

    def prepared(self, images: Tensor) -> Tensor:
        """From the student's mean, deviation and size to the teacher's."""
        images = images * self.scale.to(images.dtype) + self.shift.to(images.dtype)
        if self.size != tuple(images.shape[2:]):
            images = F.interpolate(images, size=self.size, mode="bicubic", antialias=True)
        return images


class Distillation:
    """(1 - alpha) times the loss on the labels, plus alpha times that on the teacher's answers.

    A model with a distillation token learns the labels with the one head and the teacher's answers with the other.

    Args:
        teacher: images (B,C,H,W) -> logits (B,classes), without gradients.
        target: "soft" compares probabilities by their KL divergence, "hard" takes the teacher's answer as the label.
        tau: what logits are divided by before they are made soft probabilities; tau^2 keeps the gradients' size.
    """

    def __init__(
        self, teacher: Callable[[Tensor], Tensor], target: str = "soft", alpha: float = 0.5, tau: float = 1.0
    ) -> None:
        if target not in ("soft", "hard"):
            raise ValueError(f"target={target} is not one of soft, hard")
        if not 0 < alpha <= 1:
            raise ValueError(f"alpha={alpha} must be above 0 and at most 1; without a teacher take distill=none")
        if tau <= 0:
            raise ValueError(f"tau={tau} must be above 0; 1 leaves the probabilities as they are")
        self.teacher, self.target, self.alpha, self.tau = teacher, target, alpha, tau

    def __call__(self, outputs: Outputs, images: Tensor, label_loss: Callable[[Tensor], Tensor]) -> Tensor:
        """logits of one head or two, images (B,C,H,W), logits -> loss on the labels (B,); -> (B,)"""
        logits, told = outputs if isinstance(outputs, tuple) else (outputs, outputs)
        return (1 - self.alpha) * label_loss(logits) + self.alpha * self.difference(told.float(), self.teacher(images))

    def difference(self, logits: Tensor, taught: Tensor) -> Tensor:
        """(B,classes), (B,classes) -> (B,)"""
        if self.target == "hard":
            return F.cross_entropy(logits, taught.argmax(dim=1), reduction="none")
        ours, theirs = ((each / self.tau).log_softmax(dim=1) for each in (logits, taught))
        return F.kl_div(ours, theirs, reduction="none", log_target=True).sum(dim=1) * self.tau**2
