"""Parts of a run from plain configs."""

import pytest
import torch
from torch import nn

from vit.models import create_model
from vit.run.config.composing import ConfigError, compose, resolve
from vit.run.jobs import check_job
from vit.run.parts.devices import Devices
from vit.run.parts.recipe import build_optimization


def rates(optimizing, total, peak=0.5):
    """The learning rate of each step of a run, as parts of the highest."""
    optimizer = optimizing.optimizer(nn.Linear(2, 2))
    schedule = optimizing.schedule(optimizer, total)
    found = []
    for _ in range(total):
        found.append(schedule.get_last_lr()[0] / peak)
        optimizer.step()
        schedule.step()
    return torch.tensor(found)


def optimizing(steps, **schedule):
    recipe = resolve(compose(["recipe.epochs=4", "recipe.optimizer.lr=0.5"]))["recipe"]
    recipe["schedule"] |= schedule
    return build_optimization(recipe, nn.Linear(2, 2), steps)


@pytest.mark.parametrize("name", ["cosine", "wsd", "trapezoid", "constant", "inverse_sqrt"])
def test_debug_has_the_same_share_of_warm_up_steps(name):
    """Of 40 steps 20 are warm-up; of the 8 that `debug` makes, 4."""
    made = optimizing(10, name=name, warmup=20)
    whole, debug = rates(made, 40), rates(made, 8)
    assert torch.allclose(whole[:20], torch.arange(20) / 20) and torch.allclose(debug[:4], torch.arange(4) / 4)


def test_noam_derives_its_rate_from_the_width_of_the_model(caplog):
    recipe = resolve(compose(["recipe.epochs=4", "recipe.schedule.name=noam", "recipe.schedule.warmup=20"]))["recipe"]
    model = create_model("vit_tiny", dim=64, depth=1, num_heads=2, image_size=32, num_classes=2)
    with caplog.at_level("INFO", "vit"):
        made = build_optimization(recipe, model, 10)
    assert rates(made, 40, 1.0)[[0, 4, 19]].tolist() == pytest.approx([64**-0.5 * n * 20**-1.5 for n in (1, 5, 20)])
    assert f"recipe.optimizer.lr={recipe['optimizer']['lr']} is not used" in caplog.text
    with pytest.raises(ConfigError, match="computes the learning rate from the width of the model"):
        build_optimization(recipe, nn.Linear(2, 2), 10)
    recipe["schedule"]["name"], recipe["optimizer"]["lr"] = "cosine", None
    with pytest.raises(ConfigError, match="recipe.optimizer.lr is null, but recipe.schedule.name=cosine needs a rate"):
        build_optimization(recipe, model, 10)


def test_a_warm_up_longer_than_the_run_is_an_error():
    with pytest.raises(ConfigError, match=r"recipe\.schedule: .*41 warm-up .* 40 optimizer steps"):
        optimizing(10, warmup=41)


def test_an_unknown_task_is_an_error_that_lists_the_tasks():
    config = resolve(compose([]))
    config["task"]["name"] = "clasification"
    with pytest.raises(ConfigError, match="task.name=clasification is not one of .*; did you mean classification[?]"):
        check_job(config, Devices("cpu", 1, 1))


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_checks_before_the_data_is_read_draw_no_random_numbers(name):
    """Otherwise the initial weights of a seed would depend on them."""
    config = resolve(compose(["recipe=deit", f"recipe.optimizer.name={name}"]))
    state = torch.get_rng_state()
    check_job(config, Devices("cpu", 1, 1))
    assert torch.equal(torch.get_rng_state(), state)
