"""`vit runs`: the state and numbers of runs, filters, and the files it writes."""

import json
import os
import re
import shutil
import subprocess
import sys
from datetime import datetime

import pytest
import yaml

import vit
from tests.run.conftest import table
from vit.cli import main
from vit.run.config.composing import ConfigError
from vit.run.records.listing import ListedRun, list_runs, select

SHORT = ["recipe.epochs=2", "logger=csv", "report=false", "precision=32-true", "model.depth=1",
         "trainer.accelerator=cpu"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return vit.train([*SHORT, f"run_dir={tmp_path_factory.mktemp('runs') / 'digits' / 'first'}"]).path


@pytest.fixture
def folder(finished, tmp_path):
    """A finished, a stopped, a failed and two damaged runs."""
    runs = tmp_path / "runs"
    for name in ("finished", "stopped", "failed", "cut", "early"):
        shutil.copytree(finished, runs / "digits" / name)
        if name != "finished":
            (runs / "digits" / name / "metrics.json").unlink()
    with open(runs / "digits" / "failed" / "log.txt", "a") as log:
        log.write("2026-01-01 00:00:00,000 DEBUG failed\nTraceback (most recent call last):\n")
        log.write("ValueError: <no> such value\n")
    (runs / "digits" / "cut" / "config.yaml").write_text("data: [")
    (runs / "digits" / "early" / "config.yaml").unlink()
    return runs


def by_name(folder):
    return {run.path.rpartition("/")[2]: run for run in list_runs(folder)}


def test_states_and_numbers(folder, finished):
    runs = by_name(folder)
    metrics = json.loads((finished / "metrics.json").read_text())
    assert {name: run.state for name, run in runs.items()} == {
        "finished": "finished", "stopped": "stopped", "failed": "failed", "cut": "damaged", "early": "stopped"}
    run = runs["finished"]
    assert (run.val, run.test, run.epochs) == (metrics["val/accuracy"], metrics["test/accuracy"], 2)
    assert (run.data, run.metric, run.parameters, run.seed) == ("digits", "accuracy", metrics["parameters"], 0)
    assert len(run.curve) == 2 and max(run.curve) == pytest.approx(run.val)
    assert runs["stopped"].test is None and runs["stopped"].val == pytest.approx(run.val)
    assert runs["failed"].remark == "ValueError: <no> such value" and "config.yaml" in runs["cut"].remark


@pytest.mark.parametrize(("monitor", "val"), [("val/accuracy", 0.75), ("val/loss", 0.25)])
def test_an_unfinished_run_has_the_value_of_its_best_epoch(folder, monitor, val):
    stopped = folder / "digits" / "stopped"
    rows = ["epoch,step,val/accuracy,val/loss", "1,9,0.75,0.5", "2,18,0.5,0.25", "3,27,0.5,0.5", ""]
    (stopped / "metrics.csv").write_text("\n".join(rows))
    config = yaml.safe_load((stopped / "config.yaml").read_text())
    config["callbacks"]["monitor"] = monitor
    config["data"] |= {"name": "folder", "root": "/there/photos/", "fold": "2/5"}
    (stopped / "config.yaml").write_text(yaml.safe_dump(config))
    run = by_name(folder)["stopped"]
    assert (run.metric, run.val, run.epochs, run.planned_epochs) == (monitor.partition("/")[2], val, 3, 2)
    assert run.data == "folder:photos 2/5" and run.model == config["model_name"]
    assert run.curve == ((0.75, 0.5, 0.5) if monitor == "val/accuracy" else (0.5, 0.25, 0.5))


def test_the_time_of_a_run_is_that_of_its_training_or_since_its_start(folder, finished):
    seconds = json.loads((finished / "metrics.json").read_text())["seconds"]
    log = folder / "digits" / "stopped" / "log.txt"
    log.write_text("2026-01-02 03:04:05,678 INFO run folder: x\n2026-01-02 03:04:06,000 INFO y\n")
    os.utime(log, (0, datetime.fromisoformat("2026-01-02 03:05:05").timestamp()))
    for name in ("early", "failed"):
        (folder / "digits" / name / "log.txt").unlink()
    os.utime(folder / "digits" / "failed", (0, datetime.fromisoformat("2026-01-03 03:05:05").timestamp()))
    runs = by_name(folder)
    assert "early" not in runs  # neither a config nor a log
    assert (runs["failed"].started, runs["failed"].state) == ("2026-01-03 03:05:05", "stopped")
    assert runs["finished"].seconds == seconds and runs["stopped"].seconds == 60
    assert runs["stopped"].started == "2026-01-02 03:04:05"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", runs["cut"].started)
    assert [run.started for run in runs.values()] == sorted((run.started for run in runs.values()), reverse=True)


@pytest.mark.parametrize(("condition", "found"), [
    ("val<0.5", [0.25]), ("val<=0.5", [0.25, 0.5]), ("val>0.5", [0.75]), ("val>=0.5", [0.5, 0.75]),
    ("val = 0.5", [0.5]), ("val!=0.5", [0.25, 0.75, None]), ("val=", [None]), ("seed=1?", [0.5]),
])
def test_filters_compare_numbers(condition, found):
    runs = [ListedRun(str(value), "finished", val=value, seed=seed)
            for value, seed in ((0.75, 1), (None, 2), (0.25, 3), (0.5, 10))]
    assert [run.val for run in select(runs, [condition], "val")] == found
    assert [run.val for run in select(runs, [], "-val")] == [0.75, 0.5, 0.25, None]


@pytest.mark.parametrize(("content", "remark"), [
    ('["test/accuracy"]', "metrics.json has no metrics, but list"),
    ('{"test/accuracy": "high"}', "test/accuracy is 'high', not a number"),
    ('{"seconds": true}', "seconds is True, not a number"),
])
def test_a_run_with_damaged_metrics_does_not_hide_the_others(folder, content, remark, capsys):
    (folder / "digits" / "finished" / "metrics.json").write_text(content)
    run = by_name(folder)["finished"]
    assert run.state == "damaged" and run.remark.endswith(remark)
    assert main(["runs", str(folder), "--sort", "test"]) == 0
    assert "5 of 5 runs" in capsys.readouterr().out


def test_a_run_that_holds_its_lock_is_running(folder):
    code = ("import sys, filelock; lock = filelock.FileLock(sys.argv[1]); lock.acquire(); print('held', flush=True); "
            "sys.stdin.read()")
    lock = str(folder / "digits" / "failed" / ".lock")
    holder = subprocess.Popen([sys.executable, "-c", code, lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == b"held\n"
        assert by_name(folder)["failed"].state == "running"
    finally:
        holder.communicate()
    assert by_name(folder)["failed"].state == "failed"


def test_selection_and_order(folder):
    runs = list_runs(folder)
    assert {run.state for run in select(runs, ["state=f*"])} == {"failed", "finished"}
    assert {run.state for run in select(runs, ["state!=f*", "data=digits"])} == {"stopped"}
    assert [run.state for run in select(runs, ["test>=0"])] == ["finished"]
    assert select(runs, ["test>1"]) == []
    ordered = select(runs, [], "-val")
    assert [run.val for run in ordered[:3]] == sorted((run.val for run in ordered[:3]), reverse=True)
    assert ordered[-1].val is None
    with pytest.raises(ConfigError, match="stat is not a column.*did you mean state"):
        select(runs, ["stat=x"])
    with pytest.raises(ConfigError, match="'high' is not a number"):
        select(runs, ["test>high"])
    with pytest.raises(ConfigError, match="'nan' is not a number"):
        select(runs, ["test>nan"])
    with pytest.raises(ConfigError, match=r"started is a text; use started=PATTERN, such as started=2026\*"):
        select(runs, ["started>=2026"])
    with pytest.raises(ConfigError, match="expected KEY=PATTERN"):
        select(runs, ["failed"])


def test_all_runs_are_ordered_by_their_start(folder):
    """Also damaged ones and those without a config, whose folders were changed later than the run began."""
    starts = {"stopped": "2026-03-01", "early": "2026-02-01", "cut": "2026-01-01"}
    for name, day in starts.items():
        log = folder / "digits" / name / "log.txt"
        log.write_text(f"{day} 08:00:00,000 INFO run folder\n" + log.read_text())
    runs = [run for run in list_runs(folder) if run.path.rpartition("/")[2] in starts]
    assert [run.path.rpartition("/")[2] for run in runs] == list(starts)
    assert [run.started[:10] for run in select(runs, [], "started")] == sorted(starts.values())


@pytest.mark.parametrize("sort", ["val", "-val"])
def test_a_run_whose_metric_is_not_a_number_comes_last(sort):
    runs = [ListedRun(f"{val}", "stopped", val=val) for val in (0.5, float("nan"), 0.25, None, 0.75)]
    ordered = [run.path for run in select(runs, [], sort)]
    assert ordered[:3] == (["0.25", "0.5", "0.75"] if sort == "val" else ["0.75", "0.5", "0.25"])


def test_the_command_and_its_files(folder, tmp_path, capsys):
    files = [tmp_path / f"runs.{suffix}" for suffix in ("csv", "json", "html")]
    options = [text for file in files for text in (f"--{file.suffix[1:]}", str(file))]
    assert main(["runs", str(folder), "--filter", "state!=damaged", *options]) == 0
    assert "4 of 5 runs: 1 failed, 1 finished, 2 stopped" in capsys.readouterr().out
    rows = table(files[0])
    stored = json.loads(files[1].read_text())["runs"]
    assert [row["path"] for row in rows] == [run["path"] for run in stored] and len(rows) == 4
    page = files[2].read_text()
    assert page.count("<tr>") == 5 and "ValueError: &lt;no&gt; such value" in page
    assert not re.search(r"(src|href)\s*=|https?:|@import|url\(", page)  # nothing from elsewhere


def test_folders_without_runs(tmp_path, capsys):
    assert main(["runs", str(tmp_path)]) == 0 and "holds no runs" in capsys.readouterr().out
    assert main(["runs", str(tmp_path / "none")]) == 1 and "there is no such folder" in capsys.readouterr().err
