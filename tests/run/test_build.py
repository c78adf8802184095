"""Parts of a run from plain configs."""

import pytest
import torch
from torch import nn

from vit.run.config.composing import ConfigError, compose, resolve
from vit.run.parts.optimization import build_optimization


def rates(optimizing, total):
    """The learning rate of each step of a run, as parts of the highest."""
    optimizer = optimizing.optimizer(nn.Linear(2, 2))
    schedule = optimizing.schedule(optimizer, total)
    found = []
    for _ in range(total):
        found.append(schedule.get_last_lr()[0] / 0.5)
        optimizer.step()
        schedule.step()
    return torch.tensor(found)


def optimizing(steps, **schedule):
    recipe = resolve(compose(["recipe.epochs=4", "recipe.optimizer.lr=0.5"]))["recipe"]
    recipe["schedule"] |= schedule
    return build_optimization(recipe, nn.Linear(2, 2), steps)


@pytest.mark.parametrize("name", ["cosine", "wsd", "trapezoid", "constant", "inverse_sqrt"])
def test_debug_takes_the_same_part_of_its_few_steps_for_a_warm_up_in_steps(name):
    """Of 40 steps 20 are warm-up; of the 8 that `debug` makes, 4."""
    made = optimizing(10, name=name, warmup=20)
    whole, debug = rates(made, 40), rates(made, 8)
    assert torch.allclose(whole[:20], torch.arange(20) / 20) and torch.allclose(debug[:4], torch.arange(4) / 4)


def test_a_warm_up_longer_than_the_run_is_an_error():
    with pytest.raises(ConfigError, match=r"recipe\.schedule: .*41 warm-up .* 40 optimizer steps"):
        optimizing(10, warmup=41)
