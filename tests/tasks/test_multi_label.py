"""The loss of several labels per image against torch's and Keras's formula, validation's mAP against scikit-learn's."""

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, f1_score
from torch.nn import functional as F

from vit.tasks import MultiLabelLoss
from vit.tasks.multi_label import MeanAveragePrecision, MeanF1

LOGITS = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
TARGETS = (torch.rand(7, 5, generator=torch.Generator().manual_seed(1)) < 0.4)


def test_the_loss_is_torchs():
    weights = torch.tensor([0.5, 1.0, 2.0, 9.0, 4.0])
    expected = torch.nn.BCEWithLogitsLoss(pos_weight=weights)(LOGITS, TARGETS.float())
    assert torch.allclose(MultiLabelLoss(weights=weights.numpy())(LOGITS, TARGETS).mean(), expected, atol=1e-6)


def test_smoothing_pulls_both_targets_to_the_middle():
    p, y = LOGITS.sigmoid(), torch.where(TARGETS, 0.95, 0.05)
    expected = -(y * p.log() + (1 - y) * (1 - p).log()).mean()
    assert torch.allclose(MultiLabelLoss(0.1)(LOGITS, TARGETS).mean(), expected, atol=1e-6)


def test_mixed_targets_are_shares():
    share = torch.rand(7, 5, generator=torch.Generator().manual_seed(2))
    expected = F.binary_cross_entropy_with_logits(LOGITS, share)
    assert torch.allclose(MultiLabelLoss()(LOGITS.bfloat16().float(), share).mean(),
                          F.binary_cross_entropy_with_logits(LOGITS.bfloat16().float(), share), atol=1e-6)
    assert torch.allclose(MultiLabelLoss()(LOGITS, share).mean(), expected, atol=1e-6)


@pytest.mark.parametrize("absent", [[], [1, 3]])
def test_labels_on_no_image_do_not_count_in_map(absent):
    rng = np.random.default_rng(0)
    truth, probabilities = rng.random((40, 6)) < 0.3, rng.random((40, 6)).round(1).astype(np.float32)  # many ties
    truth[:, absent] = False
    metric = MeanAveragePrecision(6)
    for rows in (slice(0, 13), slice(13, 13), slice(13, 40)):
        metric.update(torch.from_numpy(probabilities[rows]), torch.from_numpy(truth[rows]).long())
    there = [c for c in range(6) if c not in absent]
    expected = np.mean([average_precision_score(truth[:, c], probabilities[:, c]) for c in there])
    assert float(metric.compute()) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("absent", [[], [1, 3]])
def test_labels_on_no_image_do_not_count_in_f1(absent):
    rng = np.random.default_rng(0)
    truth, probabilities = rng.random((40, 6)) < 0.3, rng.random((40, 6)).round(1).astype(np.float32)  # some are 0.5
    truth[:, absent] = truth[1:, 5] = False
    truth[0, 5] = True  # a label on one image counts
    metric, targets = MeanF1(6), torch.from_numpy(truth).long()
    targets[30:] = -1  # padding
    for rows in (slice(0, 13), slice(13, 40)):
        metric.update(torch.from_numpy(probabilities[rows]), targets[rows])
    there = [c for c in range(6) if c not in absent]
    expected = np.mean([f1_score(truth[:30, c], probabilities[:30, c] >= 0.5) for c in there])
    assert float(metric.compute()) == pytest.approx(expected, abs=1e-6)
