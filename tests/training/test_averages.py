"""The mean over epochs against a mean computed by hand, and what a stop leaves of it."""

import pytest
import torch
from torch import nn

from vit.training import EpochAverage


def trained(epochs: int, upto: int, average: EpochAverage, model: nn.Module) -> list[torch.Tensor]:
    """Weights that change in each epoch, and their values at each end."""
    seen = []
    for step in range(epochs, upto):
        with torch.no_grad():
            model.weight.copy_(torch.full_like(model.weight, 2.0**step))
        average.add_snapshot(step)
        seen.append(model.weight.detach().clone())
    return seen


def test_the_mean_of_the_last_epochs():
    model = nn.Linear(3, 2)
    average = EpochAverage(model, 3)
    seen = trained(0, 5, average, model)
    torch.testing.assert_close(average.average["weight"], torch.stack(seen[-3:]).mean(0))
    assert len(average.snapshots) == 3


def test_the_mean_of_one_epoch_is_its_weights():
    model = nn.Linear(3, 2)
    average = EpochAverage(model, 1)
    seen = trained(0, 3, average, model)
    assert torch.equal(average.average["weight"], seen[-1])


def test_buffers_are_those_of_the_last_epoch():
    model = nn.BatchNorm1d(2)
    average = EpochAverage(model, 3)
    for step in range(2):
        model(torch.full((4, 2), 1.0 + step) + torch.arange(4.0)[:, None])
        average.add_snapshot(step)
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert torch.equal(average.average[name], model.state_dict()[name])


def test_fewer_epochs_than_requested_are_averaged_too():
    model = nn.Linear(3, 2)
    average = EpochAverage(model, 10)
    seen = trained(0, 2, average, model)
    torch.testing.assert_close(average.average["weight"], torch.stack(seen).mean(0))


def test_an_epoch_that_is_validated_again_counts_once():
    model = nn.Linear(3, 2)
    average = EpochAverage(model, 3)
    trained(0, 3, average, model)
    before = average.average["weight"].clone()
    average.add_snapshot(2)
    assert torch.equal(average.average["weight"], before) and len(average.snapshots) == 3


def test_a_stopped_average_is_resumed():
    model = nn.Linear(3, 2)
    whole = EpochAverage(model, 3)
    trained(0, 6, whole, model)
    first = EpochAverage(model, 3)
    trained(0, 4, first, model)
    second = EpochAverage(model, 3)
    second.load_state_dict(first.state_dict(), first.snapshots_dict())
    trained(4, 6, second, model)
    assert torch.equal(second.average["weight"], whole.average["weight"])


def test_the_average_leaves_and_enters_the_model():
    model = nn.Linear(3, 2)
    average = EpochAverage(model, 2)
    seen = trained(0, 2, average, model)
    with average.swap():
        torch.testing.assert_close(model.weight.detach(), torch.stack(seen).mean(0))
    assert torch.equal(model.weight.detach(), seen[-1])


def test_no_epochs_to_average():
    with pytest.raises(ValueError, match="over 0 epochs, but needs at least 1"):
        EpochAverage(nn.Linear(3, 2), 0)
