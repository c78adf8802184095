"""One run, from overrides to a tested model: the files of its folder, and metrics that the saved model reproduces."""

import csv
import json
import re
import shlex
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file

import vit
from tests.blank_pictures import use_blank_pictures
from tests.run.conftest import QUICK, SMALL, table, write_photos
from tests.slow_values import quick_and_slow
from vit.cli import main as vit_main
from vit.data import digits
from vit.files.atomic import CheckpointError
from vit.run import jobs
from vit.run.config.composing import ConfigError
from vit.run.parts import calibration
from vit.run.records.folder import RunFolder
from vit.run.reporting import finish_with_report, run_subject
from vit.run.training_run import how_to_resume
from vit.training import Interrupted, StopSignals


@pytest.fixture(scope="module", autouse=True)
def blank_pictures(digits_run):
    """Figures of all other runs are blank."""
    with pytest.MonkeyPatch.context() as patch:
        use_blank_pictures(patch)
        yield


@pytest.fixture(scope="module")
def digits_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    run = vit.train(["recipe.epochs=3", "precision=32-true", f"runs={folder}"])
    assert run.path.parent == folder / "digits"
    return run


def test_the_files_of_a_run_folder(digits_run):
    there = {str(path.relative_to(digits_run.path)) for path in digits_run.path.rglob("*") if path.is_file()}
    assert there >= {
        "config.yaml",
        "log.txt",
        "metrics.csv",
        "metrics.json",
        "environment.json",
        "predictions.csv",
        "confusion.png",
        "curves.png",
        "mistakes.png",
        "report.html",
        "report.json",
        "splits/train.tsv",
        "splits/val.tsv",
        "splits/test.tsv",
        "model/config.json",
        "model/model.safetensors",
        "checkpoints/best.ckpt",
        "checkpoints/last.ckpt",
        "checkpoints/previous.ckpt",
    }
    assert sum(name.startswith("samples/") for name in there) == 8
    assert any(name.startswith("tensorboard/events") for name in there)
    for name in ("confusion.png", "curves.png", "mistakes.png"):
        assert min(Image.open(digits_run.path / name).size) > 100
    assert not [name for name in there if name.endswith((".part", ".tmp"))]


def test_a_run_ends_with_a_report_of_its_test(digits_run):
    found = json.loads((digits_run.path / "report.json").read_text())
    assert found["accuracy"]["accuracy"]["value"] == digits_run.metrics["test/accuracy"]
    assert found["training"]["metrics"] == digits_run.metrics and found["header"]["images"] == 360
    assert f"report: {digits_run.path / 'report.html'}" in (digits_run.path / "log.txt").read_text()


def test_a_report_that_fails_or_is_disabled_does_not_end_the_run(tmp_path, caplog, monkeypatch):
    job = SimpleNamespace(config={"report": False})
    folder, tested = SimpleNamespace(path=tmp_path), jobs.Tested({}, (), "predictor", "evaluation")
    assert finish_with_report(job, folder, tested, {}) is None and not caplog.records
    job.config["report"] = True
    monkeypatch.setattr("vit.run.reporting.run_subject", lambda *parts: 1 / 0)
    with caplog.at_level("WARNING", "vit"):
        assert finish_with_report(job, folder, tested, {}) is None
    assert "the report failed (ZeroDivisionError: division by zero)" in caplog.text
    assert f"vit report {tmp_path}" in caplog.text


def test_a_report_that_cannot_be_written_is_an_error(tmp_path, monkeypatch):
    job, tested = SimpleNamespace(config={"report": True}), jobs.Tested({}, (), "predictor", "evaluation")
    (tmp_path / "report.html").mkdir()
    monkeypatch.setattr("vit.run.reporting.run_subject", lambda *parts: None)
    monkeypatch.setattr("vit.run.reporting.write_report", lambda path, subject: path.write_text("page"))
    with pytest.raises(CheckpointError, match=r"the report failed .*report\.html.*vit report .* tries again"):
        finish_with_report(job, SimpleNamespace(path=tmp_path), tested, {})


def test_a_stop_during_the_report_is_a_stop_and_not_a_failed_report(tmp_path, caplog, monkeypatch):
    """Also where a library raises an error of its own at the stop."""
    def interrupted(*parts):
        try:
            signal.raise_signal(signal.SIGTERM)
        except BaseException:
            raise RuntimeError("figure is locked")  # noqa: B904  libraries do not name the cause

    job, tested = SimpleNamespace(config={"report": True}), jobs.Tested({}, (), "predictor", "evaluation")
    monkeypatch.setattr("vit.run.reporting.run_subject", interrupted)
    with caplog.at_level("WARNING", "vit"), pytest.raises(Interrupted) as stop, StopSignals(False).handled():
        finish_with_report(job, SimpleNamespace(path=tmp_path), tested, {})
    assert stop.value.code == 143 and not caplog.records


def test_the_report_of_a_run_names_the_batches_of_its_test_and_the_limit_of_its_audit(tmp_path):
    job = SimpleNamespace(config={"data": {"audit_seconds": 7}}, audit="audit", split="val", evaluated=str,
                          source=SimpleNamespace(name="photos"))
    job.title = jobs.Job.title.fget(job)
    settings = {"batch_size": None, "precision": "32-true"}  # a batch of training has a number of tokens
    subject = run_subject(job, SimpleNamespace(path=tmp_path), jobs.Tested({}), settings)
    assert subject.facts["evaluated with"] == "batches of 64, precision 32-true" and subject.audit_seconds == 7
    assert "which also selected the best epoch" in subject.facts["note"] and subject.title == "photos, val"


def test_a_finished_run_that_is_stopped_in_its_report_is_not_to_be_resumed(digits_run):
    assert "vit report" in how_to_resume(RunFolder(digits_run.path, main=False))


def test_a_run_that_is_stopped_before_it_is_recorded_is_not_to_be_resumed(tmp_path):
    assert how_to_resume(RunFolder(tmp_path, main=False)) == "Training had not started, nothing was saved."


def test_the_config_is_resolved_and_plain(digits_run):
    text = (digits_run.path / "config.yaml").read_text()
    config = yaml.safe_load(text)
    assert "${" not in text
    assert config["name"] == "digits" and config["recipe"]["epochs"] == 3 and config["model"]["dim"] == 64
    assert config["classes"] == [str(i) for i in range(10)]
    assert config["overrides"] == ["recipe.epochs=3", "precision=32-true"]


def test_metrics_by_their_names(digits_run):
    metrics = json.loads((digits_run.path / "metrics.json").read_text())
    assert metrics == digits_run.metrics
    assert set(metrics) == {
        "val/accuracy",
        "best_epoch",
        "ended",
        "measured_on",
        "test/accuracy",
        "test/images",
        "test/loss",
        "test/top5",
        "test/ece",
        "test/calibrated_loss",
        "test/calibrated_ece",
        "test/set_coverage",
        "test/set_size",
        "epochs",
        "steps",
        "seconds",
        "images_per_second",
        "data_wait",
        "first_step_seconds",
        "parameters",
        "trained_parameters",
        "peak_memory",
        "flops",
        "model",
        "skipped_images",
    }
    assert metrics["epochs"] == 3 and metrics["steps"] == 3 * (1257 // 64) and metrics["skipped_images"] == 0
    assert metrics["seconds"] > 0 and metrics["images_per_second"] > 0
    rows = table(digits_run.path / "metrics.csv")
    assert [int(row["epoch"]) for row in rows] == [1, 2, 3] and rows[-1]["step"] == str(metrics["steps"])
    assert {"train/loss", "val/loss", "val/accuracy", "val/top5", "lr"} <= set(rows[0])
    best = max(range(3), key=lambda epoch: (float(rows[epoch]["val/accuracy"]), -float(rows[epoch]["val/loss"])))
    assert metrics["best_epoch"] == best + 1 and metrics["val/accuracy"] == float(rows[best]["val/accuracy"])
    assert float(rows[-1]["train/loss"]) < float(rows[0]["train/loss"])


def test_the_log_and_the_environment(digits_run):
    log = (digits_run.path / "log.txt").read_text()
    assert "1,257 train / 180 val / 360 test, 10 classes" in log and "204,106 parameters" in log and "epoch 3/3" in log
    facts = json.loads((digits_run.path / "environment.json").read_text())
    assert facts["versions"]["torch"] == torch.__version__ and facts["cores"] >= 1 and facts["command"]


def test_test_numbers_are_those_of_the_model_on_disk(digits_run):
    """The same numbers by another way: one picture after the other through the predictor."""
    predictor, source = vit.load(digits_run.path), digits()
    split = source.splits["test"]
    predictions = predictor.predict([split.read(i) for i in range(len(split))], top_k=5, batch_size=1)
    truth = [source.classes[label] for label in split.labels]
    accuracy = np.mean([prediction.label == name for prediction, name in zip(predictions, truth, strict=True)])
    top5 = np.mean([name in prediction.names for prediction, name in zip(predictions, truth, strict=True)])
    assert digits_run.metrics["test/accuracy"] == accuracy and digits_run.metrics["test/top5"] == top5
    rows = table(digits_run.path / "predictions.csv")
    assert [row["label"] for row in rows] == [prediction.label for prediction in predictions]
    assert [row["true"] for row in rows] == truth
    losses = [
        -np.log(predictor_share(prediction, name))
        for prediction, name in zip(
            predictor.predict([split.read(i) for i in range(len(split))], top_k=10), truth, strict=True
        )
    ]
    assert digits_run.metrics["test/calibrated_loss"] == pytest.approx(np.mean(losses), rel=1e-5)


def predictor_share(prediction, name):
    return dict(zip(prediction.names, prediction.probabilities, strict=True))[name]


def test_evaluate_gives_the_numbers_again_to_the_last_digit(digits_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert vit_main(["evaluate", str(digits_run.path), "--json", "again.json"]) == 0
    again = json.loads(Path("again.json").read_text())
    for name in ("test/accuracy", "test/loss", "test/top5"):
        assert again[name] == digits_run.metrics[name]


def test_the_model_is_the_best_epochs_average(digits_run):
    best = torch.load(digits_run.path / "checkpoints" / "best.ckpt", weights_only=True)
    assert best["epoch"] + 1 == digits_run.metrics["best_epoch"]
    average = best["callbacks"]["AverageWeights"]["average"]
    model = vit.load(digits_run.path).model
    assert all(torch.equal(tensor, average[name]) for name, tensor in model.state_dict().items())
    assert best["config"]["recipe"]["epochs"] == 3  # for people: plain values, or weights_only would have refused


def test_the_next_command_works_as_printed(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    vit.train(["recipe.epochs=1", "precision=32-true", "logger=csv", "report=false", "run_dir=my run"])
    printed = capsys.readouterr().out
    command = next(line for line in printed.splitlines() if "Next:" in line).partition("Next:")[2]
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader(done.stdout.splitlines()))
    assert len(rows) == 8 and shlex.split(command)[-1] == "3" and "probability_3" in rows[0]
    assert Path("my run/metrics.json").exists()


def test_splits_list_the_images(tmp_path, photos):
    run = vit.train([*QUICK, *SMALL, "data=folder", f"data.root={photos}", f"run_dir={tmp_path / 'run'}"])
    listed = {}
    for split in ("train", "val", "test"):
        lines = (run.path / "splits" / f"{split}.tsv").read_text().splitlines()
        listed |= {name: (split, label) for name, label in (line.split("\t")[:2] for line in lines)}
    assert len(listed) == 42 and all((photos / name).parent.name == label for name, (_, label) in listed.items())
    rows = table(run.path / "predictions.csv")
    assert {row["file"] for row in rows} == {name for name, (split, _) in listed.items() if split == "test"}
    assert json.loads((run.path / "audit.json").read_text())["decoded"] == 42


def test_a_data_set_named_by_a_relative_path_is_found_from_anywhere(tmp_path, monkeypatch):
    write_photos(tmp_path / "my, photos", {"cat": 10, "dog": 10})
    monkeypatch.chdir(tmp_path)
    run = vit.train(
        [*QUICK, *SMALL, "data=folder", "data.root='my, photos'", "data.fractions=[0.6,0.2,0.2]", "run_dir=run"]
    )
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert vit_main(["evaluate", str(tmp_path / "run"), "--json", "again.json"]) == 0
    again = json.loads(Path("again.json").read_text())
    assert again["test/loss"] == run.metrics["test/loss"] and 3 <= again["images"] <= 6


def test_a_table_of_paths(tmp_path, photos):
    lines = [f"{path.relative_to(tmp_path)},{path.parent.name}" for path in sorted(photos.rglob("*.png"))]
    (tmp_path / "labels.csv").write_text("\n".join(["path,label", *lines]) + "\n")
    overrides = ["data=table", f"data.path={tmp_path / 'labels.csv'}", "data.balance=loss"]
    run = vit.train([*QUICK, *SMALL, *overrides, f"run_dir={tmp_path / 'run'}"])
    assert yaml.safe_load((run.path / "config.yaml").read_text())["classes"] == ["cat", "dog", "emu"]


def test_grey_images_from_training_to_prediction(tmp_path):
    run = vit.train([*QUICK, "data.preprocessing.mode=L", f"run_dir={tmp_path}"])
    predictor = vit.load(run.path)
    assert predictor.model.config.in_chans == 1 and len(predictor.preprocessing.mean) == 1
    log = (run.path / "log.txt").read_text()
    assert "WARNING model: timm and transformers will load this model, but prepare images another way" in log


def test_debug_runs_every_phase(tmp_path, capsys):
    run = vit.train(["debug=true", "precision=32-true", f"run_dir={tmp_path}"])
    assert run.metrics["steps"] == 8 and "test/accuracy" in run.metrics and (run.path / "model").is_dir()
    predictions = table(run.path / "predictions.csv")
    assert len(predictions) == 64 and len({row["true"] for row in predictions}) > 5  # of 360, from all over the split
    printed = capsys.readouterr().out
    assert re.search(r"test accuracy +[\d.]+% of 64 images", printed)
    assert "calibration on 64 validation samples: " in printed


def test_debug_reads_few_images_for_the_calibration(tmp_path, monkeypatch):
    """The class means of 12,000 classes were those of all 240,000 training images. Classes may have no image then."""
    read, of_images = [], calibration.image_outputs
    monkeypatch.setattr(calibration, "image_outputs", lambda *each: read.append(len(each[2])) or of_images(*each))
    monkeypatch.setattr("vit.run.jobs.base.QUICK", 8)
    run = vit.train(["debug=true", "precision=32-true", "report=false", "model.depth=1", f"run_dir={tmp_path}"])
    assert read == [8, 8] and run.metrics["test/images"] == 8


def test_debug_counts_optimizer_steps_and_no_more_epochs_than_the_recipe(tmp_path):
    run = vit.train(["debug=true", "recipe.accumulate=2", "recipe.epochs=1", "precision=32-true", "report=false",
                     "model.depth=1", f"run_dir={tmp_path}"])
    assert run.metrics["steps"] == 4 and run.metrics["epochs"] == 1


def test_a_run_of_one_step_states_no_rate(tmp_path, capsys):
    """The first step, which includes the start, is not measured; images/s 0 was printed."""
    small = ["model.depth=1", "model.dim=16", "recipe.batch_size=1257", "recipe.epochs=1", "calibrate=none"]
    run = vit.train([*small, "precision=32-true", "logger=csv", "report=false", f"run_dir={tmp_path}"])
    assert run.metrics["steps"] == 1 and "images_per_second" not in run.metrics
    assert "  images/s" not in capsys.readouterr().out.partition("ended: ")[2]


@pytest.mark.parametrize("data", quick_and_slow(["spelled_numbers", "text_table", "corpus"], "text_table", "corpus"))
def test_debug_tests_few_texts(data, tmp_path):
    small = ["model.dim=16", "model.num_heads=2", "model.depth=1", "precision=32-true", "logger=csv", "report=false"]
    run = vit.train(["debug=true", f"data={data}", *small, f"run_dir={tmp_path}"])
    if data == "corpus":
        right = 64 * run.metrics["test/pair_accuracy"]
        assert right == round(right) and 0 < right < 64
    else:
        assert len(table(run.path / "predictions.csv")) == 64
        calibrated = "calibration on 64 validation samples: " in (run.path / "log.txt").read_text()
        assert calibrated == (data == "text_table")


def test_training_stops_when_no_metric_improves(tmp_path):
    overrides = ["recipe.epochs=40", "recipe.optimizer.lr=0.0", "callbacks.patience=2", "precision=32-true",
                 "logger=csv", "report=false"]
    run = vit.train([*overrides, "recipe.ema=null", f"run_dir={tmp_path}"])
    assert run.metrics["epochs"] == 3


def test_training_stops_when_its_time_is_over(tmp_path):
    overrides = [
        "recipe.epochs=5000",
        "trainer.max_time=00:00:00:02",
        "precision=32-true",
        "logger=csv", "report=false",
        f"run_dir={tmp_path}",
    ]
    run = vit.train(overrides)
    assert run.metrics["epochs"] < 1000 and run.metrics["seconds"] > 1.5 and "test/accuracy" in run.metrics


def test_the_sampler_draws_every_class_equally_often(tmp_path):
    root = write_photos(tmp_path / "photos", {"cat": 30, "dog": 4})
    overrides = ["data=folder", f"data.root={root}", "data.balance=sampler", "recipe.batch_size=4"]
    run = vit.train([*QUICK, *SMALL[:-2], *overrides, f"run_dir={tmp_path / 'run'}"])
    assert run.metrics["steps"] > 0


def test_unreadable_images_are_left_out_counted_and_listed(tmp_path, photos):
    (photos / "cat" / "000.png").write_bytes(b"no image at all")
    whole = (photos / "dog" / "001.png").read_bytes()
    (photos / "dog" / "001.png").write_bytes(whole[: len(whole) // 2])
    overrides = ["data=folder", f"data.root={photos}", "data.on_bad_sample=skip", "data.fractions=[0.8,0.1,0.1]"]
    run = vit.train([*QUICK, *SMALL, *overrides, f"run_dir={tmp_path / 'run'}"])
    log = (run.path / "log.txt").read_text()
    assert "left out cat/000.png" in log and "left out dog/001.png" in log
    assert "1 of these files has a readable header: the numbers of samples below include it, and it is" in log
    listed = {path.stem: path.read_text().splitlines() for path in (run.path / "splits").iterdir()}
    left_out = [line.partition("\t")[0] for line in listed.pop("left_out")]
    names = {line.partition("\t")[0] for lines in listed.values() for line in lines}
    assert "cat/000.png" in left_out and "cat/000.png" not in names
    assert set(left_out) | names == {str(path.relative_to(photos)) for path in photos.rglob("*.png")}


def test_a_sweep_runs_every_value_and_one_log_holds_one_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = vit.run.main(["-m", "seed=0,1", "debug=true", "precision=32-true", "logger=csv", "report=false",
                         "runs=sweep"])
    (summary,) = (tmp_path / "sweep" / "digits").glob("*_sweep")
    assert {path.name for path in summary.iterdir()} == {"sweep.json", "sweep.csv", "multirun.yaml"}
    folders = sorted(path for path in summary.parent.iterdir() if path != summary)
    assert code == 0 and len(folders) == 2
    weights = [load_file(folder / "model" / "model.safetensors") for folder in folders]
    assert not torch.equal(weights[0]["head.weight"], weights[1]["head.weight"])
    assert all((folder / "log.txt").read_text().count("run folder") == 1 for folder in folders)


def test_runs_of_a_sweep_that_share_a_folder_are_refused_before_the_first(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert vit.run.main(["-m", "seed=0,1", "debug=true", "run_dir=x y"]) == 2
    assert "run_dir=x y: 2 of the 2 runs of -m would share this folder; give 'runs=x y'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_timm_model_under_the_same_recipe(tmp_path):
    overrides = [
        "model=timm",
        "model.name=test_resnet",
        "data.image_size=32",
        "debug=true",
        "precision=32-true",
        "logger=csv", "report=false",
    ]
    run = vit.train([*overrides, f"run_dir={tmp_path}"])
    model = vit.load(run.path).model
    assert model.config.kind == "timm" and model.config.name == "test_resnet"
    assert "timm:test_resnet" in (run.path / "log.txt").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_training_learns_the_same(tmp_path, mode):
    overrides = ["debug=true", "precision=32-true", "logger=csv", "report=false", "model.depth=1", "recipe.ema=null"]
    plain = vit.train([*overrides, f"run_dir={tmp_path / 'plain'}"])
    compiled = vit.train([*overrides, "compile=true", f"compile_mode={mode}", f"run_dir={tmp_path / 'compiled'}"])
    a, b = (load_file(run.path / "model" / "model.safetensors") for run in (plain, compiled))
    assert a.keys() == b.keys()
    tables = [table(run.path / "metrics.csv") for run in (plain, compiled)]
    for name in (
        "train/loss",
        "val/loss",
    ):  # not the weights: Adam makes whole steps of the rounding in a gradient that is 0
        expected, found = ([float(row[name]) for row in table] for table in tables)
        assert found == pytest.approx(expected, rel=1e-3)


def test_a_missing_compiler_is_an_error_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="compile=true needs a C.. compiler .* use compile=false"):
        vit.train(["compile=true", f"run_dir={tmp_path / 'run'}"])
    assert not (tmp_path / "run").exists()
