"""Losses: of classification on hard (B,) or soft (B,classes) targets, one number per sample, and of texts."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vit.data.text.tokenizers import EOS, PAD
from vit.models.seq2seq import column_means
from vit.tasks.cross_entropy import cross_entropy


class CrossEntropy(nn.Module):
    """Cross entropy with label smoothing (Szegedy et al. 2016).

    Args:
        weights: (classes,) factors against class imbalance. The loss of a mixed image is that of its labels, each with
            its share and its own class's weight: so classes count alike however often they meet in one image.
    """

    def __init__(self, label_smoothing: float = 0.0, weights: np.ndarray | None = None):
        super().__init__()
        self.label_smoothing = label_smoothing
        self.register_buffer("weights", None if weights is None else torch.as_tensor(weights), persistent=False)

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """(B,classes), (B,) or (B,classes) -> (B,)"""
        soft = targets if targets.ndim == 2 else F.one_hot(targets, logits.shape[1]).float()
        if self.weights is None:
            return self.each(logits.float(), soft)
        total = soft @ self.weights  # (B,)
        return total * self.each(logits.float(), soft * self.weights / total[:, None])

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
    """One yes/no question per label, averaged over labels; smoothed answers lie s/2 from 0 and from 1.

    Args:
        weights: (classes,) how much a yes counts for each no of that label.
    """

    def __init__(self, label_smoothing: float = 0.0, weights: np.ndarray | None = None):
        super().__init__()
        self.label_smoothing = label_smoothing
        self.register_buffer("weights", None if weights is None else torch.as_tensor(weights), persistent=False)

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """(B,classes), (B,classes) yes or no, or shares of mixed images -> (B,)"""
        targets = targets.float()
        yes = targets if self.weights is None else targets * self.weights
        total = yes + (1 - targets)  # a smoothed no is still a no: only what is really a yes has its weight
        smooth = yes / total * (1 - self.label_smoothing) + self.label_smoothing / 2
        each = F.binary_cross_entropy_with_logits(logits.float(), smooth, reduction="none")
        return (each * total).mean(dim=1)


class TextLoss(nn.Module):
    """Cross entropy of every next token, summed over the batch; `pad` does not count, nor a row of nothing else.

    Args:
        label_smoothing: share of the target that goes to all tokens alike (arXiv 1512.00567).
        ctc: share of another loss, for images of writing: the columns of what was read shall spell the text by
            themselves, from left to right (connectionist temporal classification, Graves et al. 2006). It teaches the
            reader where signs stand, which attention to a whole picture finds out late (arXiv 1609.06773).
        rows: rows of patches in an image.
    """

    def __init__(self, label_smoothing: float = 0.0, ctc: float = 0.0, rows: int = 1):
        super().__init__()
        if not 0 <= ctc < 1:
            raise ValueError(f"ctc={ctc} must lie in [0, 1)")
        self.label_smoothing, self.ctc, self.rows = label_smoothing, ctc, rows

    def forward(
        self, logits: Tensor, labels: Tensor, patches: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """logits (B,T,V), labels (B,T); with `ctc` the logits of the patches (B,S,V) and their mask (B,S) -> scalar"""
        written = cross_entropy(logits.flatten(0, 1), labels.flatten(), PAD, self.label_smoothing)
        return written if patches is None else torch.lerp(written, self.spelling(patches, mask, labels), self.ctc)

    def spelling(self, patches: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        """Logits of patches (B,rows*columns,V), which of them are real (B,rows*columns), labels (B,T) -> scalar, the
        sum over the texts; `pad` is the sign for nothing. A text with more tokens than columns does not count. On a GPU
        torch waits for the lengths, once per call."""
        columns, widths = column_means(patches.float(), mask, self.rows)  # (B,columns,V), (B,)
        signs = ((labels != PAD) & (labels != EOS)).sum(1)  # (B,)
        likely = columns.log_softmax(-1).transpose(0, 1)
        each = F.ctc_loss(likely, labels, widths, signs, blank=PAD, reduction="none", zero_infinity=True)  # (B,)
        return (each * (labels != PAD).any(1)).sum()  # an empty text still has its end
