"""`callbacks.monitor`: the best epoch by any metric of the task."""

import pytest

import vit
from tests.run.conftest import table
from tests.run.test_accumulate import TASKS, data, made  # noqa: F401 (a fixture)
from tests.slow_values import quick_and_slow
from vit.run.config.composing import ConfigError
from vit.training import mode_of

DIGITS = ["recipe.epochs=4", "precision=32-true", "logger=csv", "report=false", "recipe.ema=null", "model.depth=1",
          "calibrate=none", "model.dim=16"]


@pytest.mark.parametrize(("monitor", "best"), quick_and_slow(
    [("val/loss", min), ("val/accuracy", max), ("train/loss", min)], ("val/accuracy", max)
))
def test_the_best_epoch_is_the_best_by_its_metric(tmp_path, monitor, best):
    """With the wrong direction, the first epoch of a falling loss is the best, and patience ends the run."""
    run = vit.train([*DIGITS, f"callbacks.monitor={monitor}", "callbacks.patience=2", f"run_dir={tmp_path / 'run'}"])
    values = [float(row[monitor]) for row in table(tmp_path / "run" / "metrics.csv")]
    assert len(values) == 4 and max(values) > min(values)
    assert run.metrics[monitor] == pytest.approx(best(values))
    assert run.metrics["best_epoch"] - values.index(best(values)) in (0, 1)  # counted from 0 or 1


def test_no_metric_is_named_as_in_a_config(tmp_path):
    with pytest.raises(ConfigError, match="callbacks.monitor=null: must be one of val/loss"):
        vit.train([*DIGITS, "callbacks.monitor=null", f"run_dir={tmp_path / 'run'}"])


@pytest.mark.parametrize("name", ["classification", "multi-label", "masked images", "masked texts", "text classes",
                                  "sequences"])
def test_every_metric_of_every_task_has_a_direction(name, data):  # noqa: F811
    task = made([override.format(**data) for override in TASKS[name]], 1, 1).task
    assert {metric: mode_of(metric) for metric in task.metric_names if metric.endswith(("loss", "cer"))} == {
        metric: "min" for metric in task.metric_names if metric.endswith(("loss", "cer"))}
    assert all(mode_of(metric) in ("min", "max") for metric in task.metric_names)
