"""The tables of a sweep, against means and deviations of numpy."""

import json

import numpy as np
import pytest

from tests.run.conftest import table
from vit.run.config.composing import ConfigError
from vit.run.multirun.sweep_results import SweptRun, best_first, gather, summary, write_record, write_results
from vit.run.records.reading import read_metrics


def test_records_are_in_the_order_of_their_numbers(tmp_path):
    for number in (11, 2, 0, 10):
        write_record(tmp_path, number, {"folder": str(tmp_path / str(number)), "overrides": [f"seed={number}"],
                                        "exit_code": number, "metrics": {}})
    assert gather(tmp_path) == [0, 2, 10, 11]
    runs = json.loads((tmp_path / "sweep.json").read_text())["runs"]
    assert [run["settings"] for run in runs] == [{"seed": str(number)} for number in (0, 2, 10, 11)]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["sweep.csv", "sweep.json"]
    assert gather(tmp_path / "none") == [] and not (tmp_path / "none").exists()


@pytest.mark.parametrize(("text", "message"), [
    ('{"val/accuracy": 0.', r"is damaged \(.*char 18\)\); restore it, or remove it and resume the run"),
    ("", "is damaged"), ("[]", "has no metrics, but list"),
])
def test_damaged_metrics_are_named(tmp_path, text, message):
    (tmp_path / "metrics.json").write_text(text)
    with pytest.raises(ConfigError, match=f"metrics.json {message}"):
        read_metrics(tmp_path)


def test_only_metrics_of_all_finished_runs_have_a_mean():
    values = np.array([0.5, 0.75, 0.875])
    runs = [SweptRun(f"r{i}", {"seed": str(i)}, 0, {
        "val/loss": float(value), "test/accuracy": [0.5, float("nan"), 0.5][i], "seconds": 1.0, "model": "vit",
        "test/signature": "a", **({"test/bleu": 0.1} if i == 0 else {}),
    }) for i, value in enumerate(values)]
    (row,) = summary([*runs, SweptRun("r3", {"seed": "3"}, 1)])
    assert (row["runs"], row["failed"], row["setting"]) == (4, 1, {})
    assert row["mean"] == {"val/loss": pytest.approx(values.mean())}
    assert row["deviation"] == {"val/loss": pytest.approx(values.std(ddof=1))}


@pytest.mark.parametrize(("metric", "order"), [("val/accuracy", "bac"), ("val/loss", "abc")])
def test_a_search_has_the_best_setting_first_and_those_without_the_metric_last(metric, order):
    rows = [{"setting": name, "mean": mean} for name, mean in (("c", {}), ("a", {metric: 0.25}), ("b", {metric: 0.5}))]
    assert "".join(row["setting"] for row in best_first(rows, metric)) == order


def test_the_table_has_rates_in_percent_and_losses_as_they_are(tmp_path, capsys):
    metrics = [{"val/accuracy": 0.9, "test/accuracy": 0.81}, {"val/accuracy": 0.9, "test/accuracy": 0.83}]
    runs = [SweptRun(f"r{i}", {"lr": "1", "seed": str(i)}, 0, each) for i, each in enumerate(metrics)]
    write_results([*runs, SweptRun("r2", {"lr": "2", "seed": "0"}, 1)], tmp_path)
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.split()]
    _, headings, _, first, second = lines[:5]
    assert headings == ["setting", "runs", "test", "accuracy"]
    assert first == ["lr=1", "2", "82.00", "±", "1.41", "%"] and second == ["lr=2", "1", "(1", "failed)", "none"]
    assert table(tmp_path / "sweep.csv") == [
        {"run": "r0", "lr": "1", "seed": "0", "exit_code": "0", "val/accuracy": "0.9", "test/accuracy": "0.81"},
        {"run": "r1", "lr": "1", "seed": "1", "exit_code": "0", "val/accuracy": "0.9", "test/accuracy": "0.83"},
        {"run": "r2", "lr": "2", "seed": "0", "exit_code": "1", "val/accuracy": "", "test/accuracy": ""},
    ]
    losses = [SweptRun("a", {"lr": "1"}, 0, {"val/loss": 0.12345}), SweptRun("b", {"lr": "2"}, 0, {"val/loss": 0.1})]
    write_results(losses, tmp_path, "val/loss")
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.lstrip().startswith("lr=")]
    assert rows == [["lr=2", "1", "0.1000"], ["lr=1", "1", "0.1235"]]
    write_results([SweptRun("a", {"lr": "1"}, 0, {"val/perplexity": 12.5})], tmp_path, "val/perplexity")
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.lstrip().startswith("lr=")]
    assert rows == [["lr=1", "1", "12.5000"]]
