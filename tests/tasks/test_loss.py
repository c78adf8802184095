"""Losses against torch's own, timm's and plain counting, with hard, smoothed, mixed and weighted targets, and texts."""

import itertools
import math

import pytest
import timm.loss
import torch
from torch.nn import functional as F

from vit.data.text import BOS, EOS, PAD
from vit.tasks import BinaryCrossEntropy, CrossEntropy, TextLoss

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


def test_padding_of_a_text_does_not_count():
    logits, labels = torch.randn(2, 4, 8), torch.tensor([[5, 6, 7, EOS], [5, EOS, PAD, PAD]])
    expected = F.cross_entropy(logits[labels != PAD], labels[labels != PAD], label_smoothing=0.1, reduction="sum")
    torch.testing.assert_close(TextLoss(0.1)(logits, labels), expected)


def spelled(path: tuple[int, ...]) -> list[int]:
    """What signs at the columns of a line say: repeats are one sign, and `pad` is none."""
    return [sign for sign, _ in itertools.groupby(path) if sign != PAD]


def test_spelling_is_the_sum_over_all_ways_to_write_a_text_along_the_columns():
    """Two rows of patches; the second image is two columns narrower, and its lower row is empty in one of them."""
    torch.manual_seed(0)
    patches = torch.randn(3, 10, 7)  # (B,2*5,V)
    mask = torch.ones(3, 2, 5, dtype=torch.bool)
    mask[1, :, 3:] = mask[1, 1, 2] = False
    labels = torch.tensor([[5, 6, 6, EOS], [6, EOS, PAD, PAD], [5, 5, 5, 5]])  # the last has no room: 7 columns
    assert BOS not in labels
    total = 0.0
    for row, width in ((0, 5), (1, 3)):
        each = patches[row].view(2, 5, 7)
        lower = mask[row, 1].float()[:, None]
        likely = ((each[0] + lower * each[1]) / (1 + lower)).log_softmax(-1)[:width]  # (columns,V)
        text = [sign for sign in labels[row].tolist() if sign not in (PAD, EOS)]
        ways = [path for path in itertools.product(range(7), repeat=width) if spelled(path) == text]
        total -= math.log(sum(math.exp(sum(float(likely[i, sign]) for i, sign in enumerate(path))) for path in ways))
    found = TextLoss(ctc=0.5, rows=2).spelling(patches, mask.flatten(1), labels)
    assert float(found) == pytest.approx(total, rel=1e-5)
    logits, loss = torch.randn(3, 4, 7), TextLoss(0.1, ctc=0.25, rows=2)
    whole = loss(logits, labels, patches, mask.flatten(1))
    torch.testing.assert_close(whole, 0.75 * loss(logits, labels) + 0.25 * found)
