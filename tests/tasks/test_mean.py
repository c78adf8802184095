"""The weighted mean that losses are gathered with, against numpy's."""

import numpy as np
import pytest
import torch

from vit.tasks.base import WeightedMean


def test_weights_count():
    rng = np.random.default_rng(0)
    values, weights = rng.normal(size=(3, 5)), rng.integers(0, 2, size=(3, 5)).astype(float)
    mean = WeightedMean()
    for value, weight in zip(values, weights, strict=True):
        mean.update(torch.tensor(value), torch.tensor(weight))
    assert float(mean.compute()) == pytest.approx(np.average(values, weights=weights), rel=1e-5)


def test_without_weights_and_scalars():
    mean = WeightedMean()
    for value in (1.0, 2.0, 6.0):
        mean.update(torch.tensor(value))
    assert float(mean.compute()) == pytest.approx(3.0)
    mean.reset()
    mean.update(torch.tensor([4.0, 6.0]))
    assert float(mean.compute()) == pytest.approx(5.0)


def test_nan_is_not_hidden():
    mean = WeightedMean()
    mean.update(torch.tensor([1.0, float("nan")]))
    assert mean.compute().isnan()


def test_continues_from_the_sums_of_a_checkpoint(recwarn):
    mean = WeightedMean()
    mean.restore(torch.tensor(6.0), torch.tensor(4.0))
    assert mean.compute() == 1.5 and not recwarn  # stopped after the last step of an epoch
    mean = WeightedMean()
    mean.restore(torch.tensor(6.0), torch.tensor(4.0))
    mean.update(torch.tensor(9.0))
    assert mean.compute() == 3.0
