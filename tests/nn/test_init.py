"""Modes of modules are restored, whatever happens in between."""

import pytest
from torch import nn

from vit.nn.init import evaluating, restored_modes


def frozen_part() -> nn.Sequential:
    """A module in training mode with a part in evaluation mode."""
    model = nn.Sequential(nn.Dropout(), nn.Sequential(nn.BatchNorm1d(2), nn.Dropout()))
    model[1].eval()
    return model


def modes(model: nn.Module) -> list[bool]:
    return [module.training for module in model.modules()]


def test_evaluation_mode_lasts_as_long_as_the_context() -> None:
    one, other = frozen_part(), nn.Dropout().eval()
    before = modes(one)
    with evaluating(one, other):
        assert not any(modes(one)) and not other.training
    assert modes(one) == before and not other.training and any(before) and not all(before)


def test_modes_are_restored_after_an_error() -> None:
    model = frozen_part()
    before = modes(model)
    with pytest.raises(RuntimeError), restored_modes(model):
        model.train()
        raise RuntimeError
    assert modes(model) == before
