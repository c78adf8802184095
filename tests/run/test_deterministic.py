"""`trainer.deterministic`: operations with the same bits each time, within the training of a run only."""

import pytest
import torch

import vit
from tests.run.test_resume import DIGITS, assert_same
from vit.run.config.composing import ConfigError
from vit.run.parts.devices import deterministic_algorithms


@pytest.mark.slow
def test_on_a_cpu_it_changes_nothing(tmp_path, monkeypatch):
    from vit.tasks.base import Task

    step, seen = Task.training_step, set()

    def watched(task, batch, batch_idx):
        seen.add(torch.are_deterministic_algorithms_enabled())
        return step(task, batch, batch_idx)

    monkeypatch.setattr(Task, "training_step", watched)
    for value in ("false", "true"):
        seen.clear()
        vit.train([*DIGITS, "recipe.epochs=1", f"trainer.deterministic={value}", f"run_dir={tmp_path / value}"])
        assert seen == {value == "true"}
    assert_same(tmp_path / "false", tmp_path / "true")
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_former_setting_returns_after_an_error():
    with pytest.raises(KeyError), deterministic_algorithms():
        assert torch.are_deterministic_algorithms_enabled()
        raise KeyError
    assert not torch.are_deterministic_algorithms_enabled()


def test_another_value_is_an_error():
    with pytest.raises(ConfigError, match="trainer.deterministic=warn"):
        vit.train(["trainer.deterministic=warn"])
