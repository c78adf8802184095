"""A comparison is a set of ordinary runs with a table and a figure; finished runs are not repeated."""

import csv
import json
import shlex
import shutil
import signal
from pathlib import Path

import pytest
from PIL import Image

import vit
from vit.data import Preprocessing
from vit.report.figures.comparison import facts
from vit.run.config.composing import ConfigError, compose, resolve
from vit.run.config.overrides import override_text, parse
from vit.run.multirun.compare import (
    ComparisonError,
    compare,
    compared_model,
    raise_failed,
    row,
    shared_metric,
    train_all,
    write_comparison,
)
from vit.run.multirun.comparison_plan import PLAN, find_stopped, read_plan
from vit.run.parts.networks import build_model
from vit.training import Interrupted
from vit.training.fault_tolerance.interrupts import Terminated

SHORT = ["recipe.epochs=1", "data.image_size=16", "trainer.accelerator=cpu"]


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    folder = tmp_path_factory.mktemp("it's a comparison") / "here"
    tiny = 'compare.vit=["model=micro","model.dim=32","model.depth=1"]'
    return vit.train(["experiment=vit_vs_cnn", tiny, *SHORT, f'run_dir="{folder}"'])


def test_every_run_is_complete(comparison):
    for name in ("vit", "cnn"):
        metrics = json.loads((comparison.path / name / "metrics.json").read_text())
        assert metrics["epochs"] == 1
        assert comparison.metrics[name]["test/accuracy"] == metrics["test/accuracy"]
        assert vit.load(comparison.path / name).model is not None


def test_table_and_picture_contain_all_runs(comparison):
    with open(comparison.path / "comparison.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == ["vit", "cnn"]
    stored = json.loads((comparison.path / "comparison.json").read_text())["results"]
    assert {row["name"]: row for row in stored} == comparison.metrics
    assert all(row["parameters"] > 0 and row["flops"] > 0 and row["per_second"] > 0 for row in stored)
    with Image.open(comparison.path / "comparison.png") as picture:
        assert picture.width > 1000


def test_resuming_trains_nothing_twice(comparison, capsys):
    files = [comparison.path / name / "metrics.json" for name in ("vit", "cnn")]
    before = [file.stat().st_mtime_ns for file in files]
    (comparison.path / "comparison.json").unlink()
    again = vit.train([f'resume="{comparison.path}"', "recipe.epochs=3", SHORT[1]])
    printed = capsys.readouterr().out
    assert printed.count("has no effect") == 1
    assert f"recipe.epochs=3 has no effect: {comparison.path} is resumed with the overrides that it was " in printed
    assert again.metrics == comparison.metrics
    assert [file.stat().st_mtime_ns for file in files] == before


def test_a_second_comparison_does_not_mix_with_the_first(comparison):
    with pytest.raises(ConfigError, match="already contains a comparison"):
        vit.train(["experiment=vit_vs_cnn", f'run_dir="{comparison.path}"'])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (['compare.cnn=["model=tinny"]'], "tiny"),
        (["compare.cnn=null"], "needs 2 or more"),
        (["recipe.epoch=1"], "recipe.epochs"),
        (["task=masked_image"], r"none of accuracy, map, exact_match is a metric of all of them \(task=masked_image\)"),
    ],
)
def test_errors_are_raised_before_the_first_run(tmp_path, overrides, message):
    with pytest.raises(ConfigError, match=message):
        vit.train(["experiment=vit_vs_cnn", *overrides, f"run_dir={tmp_path / 'new'}"])
    assert not (tmp_path / "new").exists()


def test_the_experiment_compares_models_of_one_size():
    config = resolve(compose(["experiment=vit_vs_cnn"]))
    sizes = []
    for overrides in config["compare"].values():
        run = resolve(compose(["experiment=vit_vs_cnn", *overrides]))
        preprocessing = Preprocessing((32, 32), mean=[0.5] * 3, std=[0.5] * 3)
        model = build_model(run["model"], run["data"]["patch_size"], preprocessing, [str(i) for i in range(10)], None)
        sizes.append(sum(p.numel() for p in model.parameters()))
    assert max(sizes) < 1.1 * min(sizes)


def test_the_table_has_the_metrics_of_all_runs(comparison, tmp_path):
    for name in ("vit", "cnn"):
        shutil.copytree(comparison.path / name, tmp_path / name)
    file = tmp_path / "vit" / "metrics.json"
    (file.parent / "manifest.json").unlink()  # an earlier version recorded neither this metric nor the file
    metrics = json.loads(file.read_text())
    file.write_text(json.dumps({key: value for key, value in metrics.items() if key != "val/accuracy"}))
    write_comparison(tmp_path, {"name": "two", "overrides": [], "runs": {"vit": [], "cnn": []}}, ["vit", "cnn"])
    with open(tmp_path / "comparison.csv", newline="") as table:
        vit_row, cnn_row = csv.DictReader(table)
    assert vit_row["val/accuracy"] == "" and float(cnn_row["val/accuracy"]) > 0


@pytest.fixture
def three(tmp_path, monkeypatch):
    """Starts a comparison of three runs that end with these exit codes; the names of those that were started."""
    def start(codes, *overrides):
        started = []

        def train(own):
            override = next(each for each in parse(own) if each.key_or_group in ("resume", "run_dir"))
            folder, code = Path(override.value()), codes[len(started)]
            started.append(f"resume {folder.name}" if override.key_or_group == "resume" else folder.name)
            folder.mkdir(exist_ok=True)
            (folder / "config.yaml").touch()
            if code == 0:
                (folder / "metrics.json").write_text("{}")
            return code

        monkeypatch.setattr("vit.run.multirun.compare.train_in_new_process", train)
        given = list(overrides) or [f"run_dir={tmp_path / 'three'}"]
        runs = {name: [f"seed={seed}"] for seed, name in enumerate("abc")}
        return started, train_all({**resolve(compose(given)), "compare": runs}, given)

    return start


def test_the_folder_of_hydra_is_that_of_the_whole_comparison(tmp_path, monkeypatch):
    runs = []
    monkeypatch.setattr("vit.run.multirun.compare.train_in_new_process", lambda own: runs.append(own) or 0)
    given = [f"hydra.run.dir={tmp_path / 'two'}", "hydra.job.chdir=true"]
    train_all({**resolve(compose(given)), "compare": {"a": ["seed=0"], "b": ["seed=1"]}}, given)
    assert [str(tmp_path / "two" / name) for name in "ab"] == [resolve(compose(own))["run_dir"] for own in runs]
    assert all("hydra.job.chdir=true" in own and given[0] not in own for own in runs)


@pytest.mark.parametrize(("codes", "trained", "failed"), [([1], "a", "a"), ([0, 1, 0], "abc", "b")])
def test_a_failed_run_ends_a_comparison_that_has_no_finished_run(three, codes, trained, failed):
    started, (folder, _, done, wrong) = three(codes)
    assert (started, wrong, done) == ([*trained], [*failed], [each for each in trained if each not in failed])
    with pytest.raises(ComparisonError, match=f"^{failed} of the comparison failed.*resume={folder} continues it"):
        raise_failed(folder, wrong)


def test_a_stopped_comparison_is_resumed_by_the_printed_command(three, tmp_path, capsys):
    with pytest.raises(Interrupted):
        three([0, 143])
    *_, command = capsys.readouterr().out.strip().splitlines()
    assert command.endswith(f"train resume={tmp_path / 'three'}")
    started, (folder, _, done, failed) = three([0, 0], f"resume={tmp_path / 'three'}")
    assert (started, done, failed, folder) == (["resume b", "c"], ["a", "b", "c"], [], tmp_path / "three")


@pytest.mark.parametrize(("stop", "by"), [
    (KeyboardInterrupt(), "Stopped by SIGINT. "), (Terminated(signal.SIGTERM), "Stopped by SIGTERM. "),
    (Interrupted(signal.SIGTERM, agreed=False), ""),  # of a run, or of this command, which have printed it
])
def test_a_stop_between_two_runs_prints_how_to_resume_all_of_them(comparison, capfd, monkeypatch, stop, by):
    def stopped(*arguments, **options):
        raise stop

    monkeypatch.setattr("vit.run.multirun.compare.compared_model", stopped)  # when the table is made
    signum, overrides = getattr(stop, "signal", signal.SIGINT), [override_text("resume", str(comparison.path))]
    with pytest.raises(Interrupted) as raised:
        compare(resolve(compose(overrides)), overrides)
    assert raised.value.code == 128 + signum
    printed = capfd.readouterr()
    *_, line, command = printed.out.splitlines()
    assert line == f"{by}Resume the whole comparison with:" and printed.err == ""
    assert command.endswith(shlex.join(["train", *overrides]))


def test_the_comparison_to_resume(tmp_path):
    for name in ("1", "2", "3"):
        (tmp_path / "runs/both" / name).mkdir(parents=True)
        (tmp_path / "runs/both" / name / PLAN).write_text("overrides: [seed=1]\nruns: {a: [], b: []}\n")
    (tmp_path / "runs/both/3/comparison.json").write_text("{}")  # is finished
    config = {"resume": "auto", "run_dir": None, "runs": str(tmp_path / "runs"), "name": "both"}
    assert find_stopped(config, ["seed=1"]) == tmp_path / "runs/both/2"
    assert find_stopped(config, ["seed=2"]) is None and find_stopped({**config, "resume": None}, ["seed=1"]) is None
    assert find_stopped(config, ["seed=1"], "cross-validate") is None  # they have no folds
    (tmp_path / "runs/both/3" / PLAN).write_text("overrides: [seed=1]\nruns: {a: [data.fold=1/2]}\n")
    assert find_stopped(config, ["seed=1"], "cross-validate") == tmp_path / "runs/both/3"  # its runs are finished
    (tmp_path / "runs/both/3/cross_validation.json").write_text("{}")
    assert find_stopped(config, ["seed=1"], "cross-validate") is None
    assert find_stopped({**config, "run_dir": str(tmp_path / "runs/both/1")}, []) == tmp_path / "runs/both/1"
    assert find_stopped({**config, "run_dir": str(tmp_path)}, ["seed=1"]) is None
    with pytest.raises(ConfigError, match=rf"resume={tmp_path}: no {PLAN} there"):
        find_stopped({**config, "resume": str(tmp_path)}, ["seed=1"])
    for text in ("overrides: [seed=1]\nruns: [a]\n", "overrides: seed=1\nruns: {a: []}\n", "runs: {a: [1]}\n"):
        (tmp_path / PLAN).write_text(text)
        with pytest.raises(ConfigError, match="is not the plan of a comparison"):
            read_plan(tmp_path)


def test_runs_are_compared_by_the_first_metric_that_all_have():
    both = {"val/accuracy": 0.5, "test/accuracy": 0.5, "val/map": 0.5}
    assert shared_metric([both, both]) == ("test", "accuracy")
    assert shared_metric([both, {"val/accuracy": 0.0, "test/accuracy": None}]) == ("val", "accuracy")
    assert shared_metric([both, {"val/map": 0.5}]) == ("val", "map")
    assert shared_metric([{"val/exact_match": 0.5}]) == ("val", "exact_match")
    with pytest.raises(ConfigError, match="cannot be compared: none of accuracy, map, exact_match"):
        shared_metric([both, {"val/loss": 0.5}])


def test_a_broken_plan_is_skipped_by_resume_auto(tmp_path, caplog):
    broken, whole = tmp_path / "both/2", tmp_path / "both/1"
    for folder, text in ((broken, "name: ["), (whole, "overrides: [seed=1]\nruns: {a: [], b: []}\n")):
        folder.mkdir(parents=True)
        (folder / PLAN).write_text(text)
    config = {"resume": "auto", "run_dir": None, "runs": str(tmp_path), "name": "both"}
    assert find_stopped(config, ["seed=1"]) == whole
    assert f"resume=auto skips {broken}" in caplog.text and caplog.text.count("skips") == 1


def test_an_unknown_speed_is_not_zero(comparison):
    """Of a run with a single step, whose time contains the start."""
    metrics = {**json.loads((comparison.path / "vit" / "metrics.json").read_text())}
    slow = {key: value for key, value in metrics.items() if not key.endswith("_per_second")}
    entry = compared_model(comparison.path / "vit", "vit", slow, "test", "accuracy")
    assert row(entry, slow)["per_second"] is None
    assert "samples/s" not in {fact[0] for fact in facts([entry, entry])}
