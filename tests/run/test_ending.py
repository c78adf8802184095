"""How runs end: time limits, the recorded reason, and the table of a sweep."""

import datetime
import json
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

import vit
from tests.run.conftest import SMALL, table, write_photos
from vit.exchange.run_records import best_epoch
from vit.report.sections.training_and_data import cost
from vit.run.command import main
from vit.run.config.composing import ConfigError
from vit.run.finish import find_ending, loss_note
from vit.run.multirun.sweep_results import SweptRun, settings_of, summary
from vit.run.parts.trainer import max_time
from vit.run.records.metrics_table import MetricsTable, counted_from_one
from vit.training import Patience

FAST = ["data=folder", *SMALL, "precision=32-true", "logger=csv", "report=false", "trainer.accelerator=cpu"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("7m", 420), ("7min", 420), ("1h30m", 5400), ("90s", 90), ("2d", 172_800), ("1d2h3m4s", 93_784),
     ("00:01:30:00", 5400), ("3H", 10_800), (None, None)],
)
def test_times_are_parsed(text, seconds):
    assert max_time(text) == (None if seconds is None else datetime.timedelta(seconds=seconds))


@pytest.mark.parametrize("text", ["soon", "", 90, 0, False, "1:30", "0s", "5 apples", "-3m", "1.5h", "30m1h"])
def test_an_invalid_time_is_an_error(text):
    with pytest.raises(ConfigError, match="such as 7m, 1h30m, 90s, 2d or 00:01:30:00"):
        max_time(text)


@pytest.fixture
def small(tmp_path):
    return write_photos(tmp_path / "photos", {"cat": 12, "dog": 12})


def test_a_run_that_ends_by_patience_reports_it(small, tmp_path, capsys):
    overrides = [*FAST, f"data.root={small}", "data.fractions=[0.8,0.2,0]", "recipe.epochs=9", "callbacks.patience=1"]
    run = vit.train([*overrides, "recipe.optimizer.lr=1e-30", "callbacks.monitor=val/loss",
                     f"run_dir={tmp_path / 'run'}"])
    shown = capsys.readouterr().out
    log = (run.path / "log.txt").read_text()
    rows = table(run.path / "metrics.csv")
    done = len(rows)
    assert run.metrics["ended"] == "patience" and done < 9
    assert f"no better val/loss in 1 epoch, ended in epoch {done} of 9" in log
    assert f"ended in epoch {done} of 9" in " ".join(shown.split())
    assert [int(row["epoch"]) for row in rows] == list(range(1, done + 1))
    best = min(rows, key=lambda row: (float(row["val/loss"]), -int(row["epoch"])))
    assert run.metrics["best_epoch"] == int(best["epoch"])
    assert f"epoch {done}/9" in shown
    assert run.metrics["measured_on"] == "val"  # there is no test split
    assert "which also selected the best epoch" in log and "which also selected" in " ".join(shown.split())


@pytest.mark.parametrize(("waited", "ending"), [(1, "patience"), (0, "callback")])
def test_patience_that_ends_the_first_epoch_is_named(waited, ending):
    """Where the start of training was better: Lightning counts the epoch from 0, as if it had not stopped."""
    patience = Patience("val/accuracy", patience=1, mode="max")
    patience.wait_count = waited
    trainer = SimpleNamespace(current_epoch=1, max_epochs=5, callbacks=[patience], should_stop=True)
    why, text = find_ending(trainer, {"callbacks": {"patience": 1}})
    assert why == ending and text.endswith("ended in epoch 1 of 5")


def test_a_run_that_max_time_ended_is_resumed(small, tmp_path):
    limits = ["recipe.epochs=100000", "trainer.max_time=1s"]
    first = vit.train([*FAST, f"data.root={small}", *limits, f"run_dir={tmp_path / 'run'}"])
    with pytest.raises(ConfigError, match=r"trainer.max_time=1s ended that run; add trainer.max_time=null, or a"):
        vit.train([f"resume={first.path}"])
    epochs = first.metrics["epochs"] + 3
    again = vit.train([f"resume={first.path}", "trainer.max_time=null", f"recipe.epochs={epochs}"])
    assert again.path == first.path and again.metrics["ended"] == "epochs" and again.metrics["epochs"] == epochs
    assert again.metrics["steps"] > first.metrics["steps"]
    assert json.loads((first.path / "metrics_at_max_time.json").read_text())["ended"] == "max_time"
    with pytest.raises(ConfigError, match="that run is finished"):
        vit.train([f"resume={first.path}", "trainer.max_time=9s"])


def test_a_run_that_ends_by_max_time_reports_it(small, tmp_path):
    overrides = [*FAST, f"data.root={small}", "recipe.epochs=100000", "trainer.max_time=2s"]
    run = vit.train([*overrides, f"run_dir={tmp_path / 'run'}"])
    assert run.metrics["ended"] == "max_time" and run.metrics["measured_on"] == "test"
    log = (run.path / "log.txt").read_text()
    assert f"trainer.max_time=2s was reached, ended in epoch {run.metrics['epochs']} of 100000" in log
    assert "also selected the best epoch" not in log


def test_runs_from_before_counted_epochs_from_0():
    rows = [{"epoch": "0", "step": "3"}, {"epoch": "1", "step": "6"}]
    assert [row["epoch"] for row in counted_from_one(rows)] == [1, 2]
    assert counted_from_one(rows[1:]) == rows[1:]
    start = [{"epoch": "0", "step": "0"}, {"epoch": "1", "step": "3"}]  # validated before training
    assert counted_from_one(start) == start
    assert best_epoch({"best_epoch": 4}) == 5 and best_epoch({"best_epoch": 5, "ended": "epochs"}) == 5
    assert cost({"best_epoch": 4})["best epoch"] == "5" and cost({})["best epoch"] is None
    assert best_epoch({"best_epoch": "damaged"}) is None


def test_the_table_of_a_run_from_before_is_continued_up_to_its_checkpoint(tmp_path):
    file = tmp_path / "metrics.csv"
    file.write_text("epoch,step,val/loss\n0,3,0.5\n1,6,0.25\n2,9,0.125\n")
    table = MetricsTable(file, done=6)
    table.on_train_start(None, None)
    assert [(row["epoch"], row["val/loss"]) for row in table.rows] == [(1, "0.5"), (2, "0.25")]
    table.on_train_start(None, None)
    assert len(table.rows) == 2
    new = MetricsTable(file)
    new.on_train_start(None, None)
    assert new.rows == []


def test_a_sweep_ends_in_a_table_of_means(small, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    overrides = [*FAST, f"data.root={small}", "recipe.epochs=1", "seed=0,1"]
    assert main(["-m", *overrides]) == 0
    shown = capfd.readouterr().out
    (folder,) = (tmp_path / "runs" / "folder").glob("*_sweep")
    content = json.loads((folder / "sweep.json").read_text())
    (row,) = content["settings"]
    scores = [json.loads((tmp_path / run["folder"] / "metrics.json").read_text())["test/accuracy"]
              for run in content["runs"]]
    seeds = [yaml.safe_load((tmp_path / run["folder"] / "config.yaml").read_text())["seed"] for run in content["runs"]]
    assert seeds == [0, 1] and row["runs"] == 2 and row["failed"] == 0
    assert row["mean"]["test/accuracy"] == pytest.approx(np.mean(scores))
    assert row["deviation"]["test/accuracy"] == pytest.approx(np.std(scores, ddof=1))
    assert f"{100 * np.mean(scores):.2f} ± {100 * np.std(scores, ddof=1):.2f} %" in shown
    lines = table(folder / "sweep.csv")
    assert [line["seed"] for line in lines] == ["0", "1"] and float(lines[1]["test/accuracy"]) == scores[1]


def test_runs_of_one_setting_are_grouped():
    jobs = [[f"seed={seed}", f"model={model}", "recipe.epochs=3"] for model in ("tiny", "small") for seed in (0, 1)]
    settings = settings_of(jobs)
    assert settings[3] == {"seed": "1", "model": "small"}
    runs = [SweptRun(f"r{i}", each, 0, {"test/accuracy": i / 10, "steps": 4}) for i, each in enumerate(settings[:3])]
    tiny, little = summary([*runs, SweptRun("r3", settings[3], 1)])
    assert tiny["setting"] == {"model": "tiny"} and tiny["mean"] == {"test/accuracy": pytest.approx(0.05)}
    assert little["failed"] == 1 and little["runs"] == 2 and little["deviation"] == {"test/accuracy": None}


def test_the_note_on_losses_names_what_only_training_has():
    quiet = {"recipe": {"loss": {"label_smoothing": 0.0}, "crop": None, "mixup": None}, "model": {"dropout": 0.0}}
    assert loss_note(quiet) == ""
    mixed = {"recipe": {"mixup": {"mixup": 0.2, "prob": 0}}, "model": {}}
    assert loss_note(mixed) == ""
    mixed["recipe"]["mixup"]["prob"] = 0.5
    assert loss_note(mixed) == "Only the training loss is computed with mixup."
    loud = {"recipe": {"loss": {"label_smoothing": 0.1, "ctc": 0.5}, "augment": {"affine": {"degrees": 1}}},
            "model": {"dropout": 0.1, "dim": 8}, "distill": {"kind": "none"}}
    assert loss_note(loud) == ("Only the training loss is computed with label smoothing 0.1, CTC loss of "
                               "weight 0.5, augmentation and dropout.")


def test_the_line_of_an_epoch_has_the_mean_loss_of_the_epoch(small, tmp_path):
    made = vit.train([*FAST, f"data.root={small}", "recipe.epochs=2", f"run_dir={tmp_path / 'run'}"])
    printed = [float(line.split("  loss ")[1].split()[0]) for line in (made.path / "log.txt").read_text().splitlines()
               if " loss " in line and " epoch " in line]
    logged = [float(row["train/loss"]) for row in table(made.path / "metrics.csv") if row.get("train/loss")]
    assert printed == [round(value, 4) for value in logged] and len(printed) == 2
