"""Classification losses on hard (B,) or soft (B,classes) targets."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F


class CrossEntropy(nn.Module):
    """Cross entropy with label smoothing (Szegedy et al. 2016); `weights` (classes,) against class imbalance."""

    def __init__(self, label_smoothing: float = 0.0, weights: np.ndarray | None = None):
        super().__init__()
        self.label_smoothing = label_smoothing
        self.register_buffer("weights", None if weights is None else torch.as_tensor(weights), persistent=False)

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """(B,classes), (B,) or (B,classes) -> scalar"""
        soft = _soft(targets, logits.shape[1])
        each = F.cross_entropy(logits.float(), soft, label_smoothing=self.label_smoothing, reduction="none")  # (B,)
        return each.mean() if self.weights is None else (each * (soft @ self.weights)).mean()


class BinaryCrossEntropy(nn.Module):
    """One yes/no question per class, summed over classes (Wightman et al. 2021, "ResNet strikes back")."""

    def __init__(self, label_smoothing: float = 0.0, weights: np.ndarray | None = None):
        super().__init__()
        self.label_smoothing = label_smoothing
        self.register_buffer("weights", None if weights is None else torch.as_tensor(weights), persistent=False)

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """(B,classes), (B,) or (B,classes) -> scalar"""
        soft = _soft(targets, logits.shape[1])
        smooth = soft * (1 - self.label_smoothing) + self.label_smoothing / logits.shape[1]
        each = F.binary_cross_entropy_with_logits(logits.float(), smooth, reduction="none").sum(dim=1)  # (B,)
        return each.mean() if self.weights is None else (each * (soft @ self.weights)).mean()


def _soft(targets: Tensor, classes: int) -> Tensor:
    return targets if targets.ndim == 2 else F.one_hot(targets, classes).float()
