"""`precision=bf16-residual` in a run."""

import pytest
import yaml

import vit
from tests.run.conftest import QUICK
from vit.nn.transformer import Stack
from vit.run import main

DIGITS = [*QUICK, "recipe.batch_size=256", "model.depth=1", "trainer.accelerator=cpu"]


def test_residuals_are_bfloat16_in_the_run_and_the_saved_model_is_any_other(tmp_path, monkeypatch):
    seen, run = set(), Stack.run

    def watched(self, x, *arguments, **options):
        seen.add(self.autocast_residual)
        return run(self, x, *arguments, **options)

    monkeypatch.setattr(Stack, "run", watched)
    losses = {}
    for precision in ("bf16-residual", "bf16-mixed"):
        trained = vit.train([*DIGITS, f"precision={precision}", f"run_dir={tmp_path / precision}"])
        assert yaml.safe_load((trained.path / "config.yaml").read_text())["precision"] == precision
        losses[precision] = trained.metrics["test/loss"]
    assert seen == {True, False}  # the copy that is calibrated and saved has plain residuals
    assert losses["bf16-residual"] != losses["bf16-mixed"]
    assert losses["bf16-residual"] == pytest.approx(losses["bf16-mixed"], rel=0.05)
    model = vit.load(tmp_path / "bf16-residual").model
    assert not any(stack.autocast_residual for stack in model.modules() if isinstance(stack, Stack))


def test_a_network_without_blocks_of_this_project_is_refused(tmp_path, capsys):
    overrides = [*DIGITS[:-2], "model=timm", "model.name=test_resnet", "trainer.accelerator=cpu"]
    assert main([*overrides, "precision=bf16-residual", f"run_dir={tmp_path / 'run'}"]) == 2
    assert "the model has no blocks of this project; use bf16-mixed" in capsys.readouterr().err
