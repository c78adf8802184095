"""`vit runs`: the state and numbers of runs, filters, and the files it writes."""

import json
import re
import shutil
import subprocess
import sys

import pytest

import vit
from tests.run.conftest import table
from vit.cli import main
from vit.run.config.composing import ConfigError
from vit.run.records.listing import list_runs, select

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
