"""Losses against torch's own and timm's, with hard, smoothed, mixed and weighted targets."""

import pytest
import timm.loss
import torch
from torch.nn import functional as F

from vit.tasks import BinaryCrossEntropy, CrossEntropy

LOGITS = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 2, 3, 4, 0, 2])
SOFT = torch.rand(7, 5, generator=torch.Generator().manual_seed(1)).softmax(dim=1)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_is_torchs(smoothing):
    expected = F.cross_entropy(LOGITS, LABELS, label_smoothing=smoothing)
    assert torch.allclose(CrossEntropy(smoothing)(LOGITS, LABELS), expected, atol=1e-6)


def test_soft_targets_are_timms():
    assert torch.allclose(CrossEntropy()(LOGITS, SOFT), timm.loss.SoftTargetCrossEntropy()(LOGITS, SOFT), atol=1e-6)


def test_binary_cross_entropy_is_timms():
    ours = BinaryCrossEntropy(0.1)(LOGITS, LABELS)
    theirs = timm.loss.BinaryCrossEntropy(smoothing=0.0, sum_classes=True)(LOGITS, F.one_hot(LABELS, 5) * 0.9 + 0.1 / 5)
    assert torch.allclose(ours, theirs, atol=1e-6)


def test_weights_count_a_class_more():
    weights = torch.tensor([2.0, 0.5, 1.0, 1.0, 3.0])
    each = F.cross_entropy(LOGITS, LABELS, reduction="none")
    assert torch.allclose(
        CrossEntropy(weights=weights.numpy())(LOGITS, LABELS), (each * weights[LABELS]).mean(), atol=1e-6
    )


def test_bfloat16_logits_are_summed_in_float32():
    assert CrossEntropy()(LOGITS.bfloat16(), LABELS).dtype == torch.float32
