"""Labels of multi-label predictors: those above their thresholds, or the most probable ones."""

import math
from types import SimpleNamespace

import pytest
import torch

from vit.evaluation.multi_label import reaches
from vit.inference import MultiLabelPredictor
from vit.inference.multi_label import MultiLabelPrediction


def predictor_of(labels, thresholds):
    predictor = object.__new__(MultiLabelPredictor)
    predictor.bundle = SimpleNamespace(thresholds=thresholds, calibration=None)
    predictor.classes = list(range(labels))
    return predictor


@pytest.mark.parametrize("labels", [1, 3, 40])
@pytest.mark.parametrize("top_k", [None, 1, 3])
def test_labels_are_in_the_order_of_a_stable_sort(labels, top_k):
    torch.manual_seed(0)
    logits, thresholds = torch.randn(20, labels).mul(2).round(), torch.rand(labels, dtype=torch.float64)  # with ties
    predictor = predictor_of(labels, thresholds.tolist())
    top_k = top_k and min(top_k, labels)
    found = list(predictor._best(logits, top_k, None))
    for row, (names, probabilities) in zip(logits.sigmoid(), found, strict=True):
        order = row.argsort(descending=True, stable=True)
        expected = order[(row.double() >= thresholds)[order]] if top_k is None else order[:top_k]
        assert names == tuple(expected.tolist()) and probabilities == tuple(row[expected].tolist())


def test_a_threshold_is_reached_by_an_equal_probability_as_in_an_evaluation():
    logits = torch.randn(1, 20, generator=torch.Generator().manual_seed(0))
    exact = logits.sigmoid()[0].tolist()
    thresholds = [math.nextafter(value, 1) if i % 2 else value for i, value in enumerate(exact)]
    ((names, _),) = predictor_of(20, thresholds)._best(logits, None, None)
    assert sorted(names) == list(range(0, 20, 2)) == reaches([exact], thresholds)[0].nonzero()[0].tolist()


def test_the_label_of_a_prediction_is_all_of_its_names():
    two, none = MultiLabelPrediction("a.png", ("cat", "dog"), (0.9, 0.8)), MultiLabelPrediction("b.png", (), ())
    assert (two.label, two.probability, none.label, none.probability) == ("cat|dog", 0.9, "", 0.0)
