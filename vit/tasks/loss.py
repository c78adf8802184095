"""Classification losses on hard (B,) or soft (B,classes) targets."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F


class CrossEntropy(nn.Module):
    """Cross entropy with label smoothing (Szegedy et al. 2016), averaged over the batch.

    Args:
        weights: (classes,) factors against class imbalance; a mixed target takes its share of each.
    """

    def __init__(self, label_smoothing: float = 0.0, weights: np.ndarray | None = None):
        super().__init__()
        self.label_smoothing = label_smoothing
        self.register_buffer("weights", None if weights is None else torch.as_tensor(weights), persistent=False)

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """(B,classes), (B,) or (B,classes) -> scalar"""
        soft = targets if targets.ndim == 2 else F.one_hot(targets, logits.shape[1]).float()
        each = self.each(logits.float(), soft)  # (B,)
        return each.mean() if self.weights is None else (each * (soft @ self.weights)).mean()

    def each(self, logits: Tensor, soft: Tensor) -> Tensor:
        """(B,classes), (B,classes) -> (B,)"""
        return F.cross_entropy(logits, soft, label_smoothing=self.label_smoothing, reduction="none")


class BinaryCrossEntropy(CrossEntropy):
    """One yes/no question per class, summed over classes (Wightman et al. 2021, "ResNet strikes back")."""

    def each(self, logits: Tensor, soft: Tensor) -> Tensor:
        """(B,classes), (B,classes) -> (B,)"""
        smooth = soft * (1 - self.label_smoothing) + self.label_smoothing / logits.shape[1]
        return F.binary_cross_entropy_with_logits(logits, smooth, reduction="none").sum(dim=1)


class MultiLabelLoss(nn.Module):
    """One yes/no question per label, averaged over labels and batch; smoothed answers lie s/2 from 0 and from 1.

    Args:
        weights: (classes,) how much a yes counts for each no of that label.
    """

    def __init__(self, label_smoothing: float = 0.0, weights: np.ndarray | None = None):
        super().__init__()
        self.label_smoothing = label_smoothing
        self.register_buffer("weights", None if weights is None else torch.as_tensor(weights), persistent=False)

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """(B,classes), (B,classes) yes or no, or shares of mixed images -> scalar"""
        smooth = targets.float() * (1 - self.label_smoothing) + self.label_smoothing / 2
        return F.binary_cross_entropy_with_logits(logits.float(), smooth, pos_weight=self.weights)
