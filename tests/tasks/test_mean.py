"""The weighted mean by which losses are accumulated, compared with NumPy's."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from vit.tasks.base import Task, WeightedMean


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


def test_a_mean_that_was_reset_in_inference_mode_can_be_used_outside():
    """Lightning validates in inference mode, and without it during `fit`."""
    mean = WeightedMean()
    with torch.inference_mode():
        mean.update(torch.tensor([1.0, 5.0]))
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


class Other(Task):
    metric_names = []

    def training_loss(self, batch, step, micro):
        """Not used."""


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 2), (4, 2)])
def test_steps_count_equally_in_the_epoch_of_a_resume_with_another_number_of_processes(before, after):
    losses = [5.0, 3.0, 1.0, 1.0]  # of the steps of an epoch, two of them before the stop
    sums = torch.tensor([[sum(losses[:2]), 2.0]] * before)  # of each process
    total = torch.zeros(2)
    for rank in range(after):
        task = Other(nn.Linear(1, 1), None)
        task._trainer = SimpleNamespace(world_size=after, global_rank=rank)
        task.on_load_checkpoint({"train_loss": sums})
        for loss in losses[2:]:
            task.train_loss.update(torch.tensor(loss))
        total += torch.stack([task.train_loss.total, task.train_loss.weight])
    assert float(total[0] / total[1]) == pytest.approx(2.5)
