"""Labels of multi-label predictors: those above their thresholds, or the most probable ones."""

from types import SimpleNamespace

import pytest
import torch

from vit.inference import MultiLabelPredictor


@pytest.mark.parametrize("labels", [1, 3, 40])
@pytest.mark.parametrize("top_k", [None, 1, 3])
def test_labels_are_in_the_order_of_a_stable_sort(labels, top_k):
    torch.manual_seed(0)
    logits, thresholds = torch.randn(20, labels).mul(2).round(), torch.rand(labels, dtype=torch.float64)  # with ties
    predictor = object.__new__(MultiLabelPredictor)
    predictor.bundle = SimpleNamespace(thresholds=thresholds.tolist(), calibration=None)
    predictor.classes = list(range(labels))
    top_k = top_k and min(top_k, labels)
    found = list(predictor._best(logits, top_k, None))
    for row, (names, probabilities) in zip(logits.sigmoid(), found, strict=True):
        order = row.argsort(descending=True, stable=True)
        expected = order[(row.double() >= thresholds)[order]] if top_k is None else order[:top_k]
        assert names == tuple(expected.tolist()) and probabilities == tuple(row[expected].tolist())
