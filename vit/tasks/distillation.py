"""Knowledge distillation (arXiv 1503.02531), with a distillation token too (DeiT, arXiv 2012.12877)."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.data import Preprocessing

StudentOutputs = Tensor | tuple[Tensor, Tensor]  # logits (B,classes), or those of class token and of distillation token


class Teacher:
    """A trained classifier, applied to the student's augmented images.

    It is not an `nn.Module`, so that it is not saved, optimized or switched to training mode with the student.

    Args:
        teacher, student: their preprocessing; images are normalized again, and resized if the sizes differ.
        columns: index of the teacher's logit for each of the student's classes.
    """

    def __init__(
        self, model: nn.Module, teacher: Preprocessing, student: Preprocessing, columns: Sequence[int]
    ) -> None:
        self.model = model.eval().requires_grad_(False)
        self.size, self.columns = teacher.size, torch.tensor(columns)
        numbers = (teacher.mean, teacher.std, student.mean, student.std)
        mean, std, student_mean, student_std = (torch.tensor(each).view(-1, 1, 1) for each in numbers)
        # to the teacher's normalization, (C,1,1)
        self.scale, self.shift = student_std / std, (student_mean - mean) / std

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """images (B,C,H,W) normalized for the student -> teacher logits (B,classes) in the student's class order"""
        if self.columns.device != images.device:
            self.model = self.model.to(images.device)
            self.columns, self.scale, self.shift = (
                each.to(images.device) for each in (self.columns, self.scale, self.shift)
            )
        return self.model(self.prepare(images)).float()[:, self.columns]

    def prepare(self, images: Tensor) -> Tensor:
        """images (B,C,H,W) normalized for the student -> images (B,C,H',W') normalized and resized for the teacher"""
        images = images * self.scale.to(images.dtype) + self.shift.to(images.dtype)
        if self.size != tuple(images.shape[2:]):
            images = F.interpolate(images, size=self.size, mode="bicubic", antialias=True)
        return images


class Distillation:
    """(1 - alpha) * label loss + alpha * distillation loss.

    In a model with a distillation token, the class head learns the labels and the distillation head the teacher.

    Args:
        teacher: images (B,C,H,W) -> logits (B,classes), without gradients.
        target: "soft" for the KL divergence of probabilities, "hard" for cross entropy with the teacher's top class.
        tau: temperature of soft targets; the loss is multiplied by tau^2, which keeps the scale of the gradients. It is
            the divergence of Hinton's and DeiT's formulas, a sum over classes; the code of DeiT divides it by their
            number, so that its alpha=0.1 is a weight of 1e-4 here with 1,000 classes.

    Raises:
        ValueError: a value is out of range.
    """

    def __init__(
        self, teacher: Callable[[Tensor], Tensor], target: str = "soft", alpha: float = 0.5, tau: float = 1.0
    ) -> None:
        if target not in ("soft", "hard"):
            raise ValueError(f"target={target} is not one of soft, hard")
        if not 0 < alpha <= 1:
            raise ValueError(f"alpha={alpha} must be above 0 and at most 1; without a teacher use distill=none")
        if not 0 < tau < float("inf"):
            raise ValueError(f"tau={tau} must be above 0; 1 leaves the probabilities unchanged")
        self.teacher, self.target, self.alpha, self.tau = teacher, target, alpha, tau

    def __call__(self, outputs: StudentOutputs, images: Tensor, label_loss: Callable[[Tensor], Tensor]) -> Tensor:
        """outputs of the model, images (B,C,H,W), label_loss (logits (B,classes) -> (B,)) -> loss per sample (B,)"""
        logits, distilled = outputs if isinstance(outputs, tuple) else (outputs, outputs)
        distillation = self.distillation_loss(distilled.float(), self.teacher(images))
        return (1 - self.alpha) * label_loss(logits) + self.alpha * distillation

    def distillation_loss(self, logits: Tensor, teacher_logits: Tensor) -> Tensor:
        """logits, teacher_logits (B,classes) -> loss per sample (B,)"""
        if self.target == "hard":
            return F.cross_entropy(logits, teacher_logits.argmax(dim=1), reduction="none")
        student, teacher = ((each / self.tau).log_softmax(dim=1) for each in (logits, teacher_logits))
        return F.kl_div(student, teacher, reduction="none", log_target=True).sum(dim=1) * self.tau**2
