"""Losses of classification, per sample, with hard (B,) or soft (B,classes) targets, and of sequence to sequence."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vit.data.text.tokenizers import EOS, PAD
from vit.models.seq2seq import column_means
from vit.tasks.cross_entropy import cross_entropy


class CrossEntropy(nn.Module):
    """Cross entropy with label smoothing (arXiv 1512.00567).

    Args:
        weights: (classes,), against class imbalance. The loss of a mixed image is the sum of the losses of its labels,
            each multiplied by its mixing ratio and by the weight of its class.
    """

    def __init__(self, label_smoothing: float = 0.0, weights: np.ndarray | None = None):
        super().__init__()
        self.label_smoothing = label_smoothing
        self.register_buffer("weights", None if weights is None else torch.as_tensor(weights), persistent=False)

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """logits (B,classes), targets (B,) or (B,classes) -> loss per sample (B,)"""
        soft = targets if targets.ndim == 2 else F.one_hot(targets, logits.shape[1]).float()
        if self.weights is None:
            return self.each(logits.float(), soft)
        total = soft @ self.weights  # (B,)
        return total * self.each(logits.float(), soft * self.weights / total[:, None])

    def each(self, logits: Tensor, soft: Tensor) -> Tensor:
        """logits, soft targets (B,classes) -> loss per sample (B,)"""
        return F.cross_entropy(logits, soft, label_smoothing=self.label_smoothing, reduction="none")


class BinaryCrossEntropy(CrossEntropy):
    """Binary cross entropy over the classes ("ResNet strikes back", arXiv 2110.00476), here summed over them, as with
    timm's `sum_classes`. timm's default and the code of DeiT III average over the classes.

    Args:
        target_threshold: mixed targets above it are 1, the others 0, as in timm; with `weights`, those in proportion to
            the weights. 0 sets the targets of both labels to 1, as the paper and the code of DeiT III (arXiv
            2204.07118) do. None: mixed targets keep their ratios.

    Raises:
        ValueError: `target_threshold` is not in [0, 1).
    """

    def __init__(
        self, label_smoothing: float = 0.0, weights: np.ndarray | None = None, target_threshold: float | None = None
    ):
        super().__init__(label_smoothing, weights)
        if target_threshold is not None and not 0 <= target_threshold < 1:
            raise ValueError(f"target_threshold={target_threshold} must lie in [0, 1), or be null")
        self.target_threshold = target_threshold

    def each(self, logits: Tensor, soft: Tensor) -> Tensor:
        """logits, soft targets (B,classes) -> loss per sample (B,)"""
        if self.target_threshold is not None:
            soft = (soft > self.target_threshold).to(soft.dtype)
        smooth = soft * (1 - self.label_smoothing) + self.label_smoothing / logits.shape[1]
        return F.binary_cross_entropy_with_logits(logits, smooth, reduction="none").sum(dim=1)


class MultiLabelLoss(nn.Module):
    """Binary cross entropy, averaged over labels; label smoothing s moves targets by s/2 from 0 and 1.

    Args:
        weights: (classes,), weight of the positive class of each label.
    """

    def __init__(self, label_smoothing: float = 0.0, weights: np.ndarray | None = None):
        super().__init__()
        self.label_smoothing = label_smoothing
        self.register_buffer("weights", None if weights is None else torch.as_tensor(weights), persistent=False)

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """logits (B,classes), targets (B,classes) in [0,1] -> loss per sample (B,)"""
        targets = targets.float()
        positive = targets if self.weights is None else targets * self.weights
        total = positive + (1 - targets)  # weighted before smoothing: a smoothed negative keeps weight 1
        smooth = positive / total * (1 - self.label_smoothing) + self.label_smoothing / 2
        each = F.binary_cross_entropy_with_logits(logits.float(), smooth, reduction="none")
        return (each * total).mean(dim=1)


class TextLoss(nn.Module):
    """Cross entropy of the next token, summed over the batch without padding, optionally with a CTC loss.

    Args:
        label_smoothing: part of the target that is uniform over the vocabulary (arXiv 1512.00567).
        ctc: weight of a CTC loss (Graves et al. 2006) on the columns of text images, which aligns the encoder with the
            text earlier in training than attention does (arXiv 1609.06773).
        rows: rows of patches in an image.

    Raises:
        ValueError: `ctc` is not in [0, 1).
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
        loss = cross_entropy(logits.flatten(0, 1), labels.flatten(), PAD, self.label_smoothing)
        return loss if patches is None else torch.lerp(loss, self.ctc_loss(patches, mask, labels), self.ctc)

    def ctc_loss(self, patches: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        """patch logits (B,rows*columns,V), mask (B,rows*columns), False for padding, labels (B,T) -> sum over the texts

        The blank is `pad`. A text has no loss if its tokens, plus one for each pair of equal neighbours, are more than
        the columns. On a GPU torch synchronizes once per call.
        """
        columns, widths = column_means(patches.float(), mask, self.rows)  # (B,columns,V), (B,)
        lengths = ((labels != PAD) & (labels != EOS)).sum(1)  # (B,)
        log_probs = columns.log_softmax(-1).transpose(0, 1)
        each = F.ctc_loss(log_probs, labels, widths, lengths, blank=PAD, reduction="none", zero_infinity=True)  # (B,)
        return (each * (labels != PAD).any(1)).sum()  # an empty text still has eos; rows without any token are padding
