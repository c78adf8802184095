"""A run that starts from trained weights: the start is a candidate for the best epoch, and can be what is saved."""

import json
import os
import signal

import pytest
import torch

import vit
from tests.run.conftest import QUICK, run, table, write_photos
from tests.run.test_resume import assert_same, stopped_and_resumed
from tests.run.test_strategies import TWO
from vit.report.logged_values import read_curves
from vit.run.config.composing import compose, resolve
from vit.run.parts.finetuning import log_recipe
from vit.run.records.reading import read_config
from vit.tasks import Classification
from vit.training import FollowEpoch

DIGITS = ["data=digits", "data.image_size=8", "recipe.batch_size=128", "trainer.accelerator=cpu", *QUICK]
SPOIL = ["finetune.trainable=head", "recipe.optimizer.lr=3", "recipe.ema=null", "recipe.epochs=3"]  # lr is too large


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return vit.train([*DIGITS, "model.depth=1", "recipe.epochs=4", f"run_dir={tmp_path_factory.mktemp('source')}"]).path


@pytest.fixture(scope="module")
def spoilt(source, tmp_path_factory):
    return vit.train([*DIGITS, *SPOIL, f"init_from={source}", f"run_dir={tmp_path_factory.mktemp('spoilt')}"])


def start_scores(folder):
    state = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["callbacks"]["Checkpoints"]
    return state["start_scores"]


def test_training_that_makes_it_worse_saves_the_start(source, spoilt):
    rows = table(spoilt.path / "metrics.csv")
    accuracy = [float(row["val/accuracy"]) for row in rows]
    assert [(int(row["epoch"]), int(row["step"])) for row in rows] == [(0, 0), (1, 10), (2, 20), (3, 30)]
    assert accuracy[0] > max(accuracy[1:])
    assert spoilt.metrics["best_epoch"] == 0 and spoilt.metrics["epochs"] == 3
    assert spoilt.metrics["val/accuracy"] == accuracy[0]
    saved, start = (vit.load(path).model.state_dict() for path in (spoilt.path, source))
    assert all(torch.equal(saved[name], start[name]) for name in start)
    before = json.loads((source / "metrics.json").read_text())
    assert spoilt.metrics["test/accuracy"] == before["test/accuracy"]
    log = (spoilt.path / "log.txt").read_text()
    assert "epoch 0/3  before training  val/" in log
    assert "best epoch: 0 (the initial model): no epoch was better by val/accuracy" in log


def test_the_last_screen_and_the_curves_have_the_start(source, tmp_path, capsys):
    run = vit.train([*DIGITS, *SPOIL, "recipe.epochs=1", f"init_from={source}", f"run_dir={tmp_path}"])
    assert "0 of 1 (the start of training: no epoch was better)" in " ".join(capsys.readouterr().out.split())
    assert read_curves(run.path / "metrics.csv")["val/accuracy"].x.tolist() == [0, 1]
    assert read_curves(run.path / "metrics.csv")["train/loss"].x.tolist() == [1]


@pytest.mark.parametrize("batches", [1, 12])
def test_stopped_and_resumed_it_is_the_same(source, spoilt, tmp_path, monkeypatch, batches):
    """In the first step, from the checkpoint of the start, and in the second epoch."""
    again = stopped_and_resumed([*DIGITS, *SPOIL, f"init_from={source}"], tmp_path, monkeypatch, batches)
    assert_same(tmp_path, spoilt.path)
    assert again.metrics["best_epoch"] == 0
    assert (tmp_path / "log.txt").read_text().count("before training") == 1


def test_from_the_checkpoint_of_the_start(source, spoilt, tmp_path, monkeypatch):
    def fails(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises((KeyboardInterrupt, SystemExit)):
        patch.setattr(FollowEpoch, "on_train_epoch_start", fails)
        vit.train([*DIGITS, *SPOIL, f"init_from={source}", f"run_dir={tmp_path}"])
    last, best = (torch.load(tmp_path / "checkpoints" / name, weights_only=True) for name in ("last.ckpt", "best.ckpt"))
    assert last["global_step"] == best["global_step"] == 0
    vit.train([f"resume={tmp_path}"])
    assert_same(tmp_path, spoilt.path)


def test_a_stop_while_the_start_is_validated(source, spoilt, tmp_path, monkeypatch):
    def interrupted(task, batch, index, step=Classification.validation_step):
        os.kill(os.getpid(), signal.SIGINT)
        return step(task, batch, index)

    with monkeypatch.context() as patch, pytest.raises(SystemExit) as stop:
        patch.setattr(Classification, "validation_step", interrupted)
        vit.train([*DIGITS, *SPOIL, f"init_from={source}", f"run_dir={tmp_path}"])
    assert stop.value.code == 130 and not list((tmp_path / "checkpoints").glob("*.ckpt"))
    vit.train([f"resume={tmp_path}"])
    assert_same(tmp_path, spoilt.path)


@pytest.mark.parametrize(
    ("rate", "margin", "best"), [("1e-30", 0, 0), ("0.001", 0, 2), ("0.001", 3, 0)]
)
def test_only_a_clearly_better_epoch_replaces_the_start(source, tmp_path, rate, margin, best):
    """By more than this number of standard errors of the difference on the same samples, with a margin of 0 by any."""
    assert compose(DIGITS)["callbacks"]["start_margin"] == 1
    overrides = [*DIGITS, f"recipe.optimizer.lr={rate}", "recipe.epochs=2", f"init_from={source}"]
    overrides += [f"callbacks.start_margin={margin}"]
    run = vit.train([*overrides, f"run_dir={tmp_path}"])
    scores = [float(row["val/accuracy"]) for row in table(run.path / "metrics.csv")]
    assert run.metrics["best_epoch"] == best and run.metrics["val/accuracy"] == scores[best]
    assert (max(scores) > scores[0]) == (rate != "1e-30")


@pytest.mark.slow
def test_a_resumed_run_compares_with_the_same_scores_of_the_start(source, tmp_path, monkeypatch):
    """Stopped in the second epoch; the epochs that are clearly better than the start come after it."""
    overrides = [*DIGITS, "recipe.optimizer.lr=0.004", "recipe.epochs=4", f"init_from={source}"]
    whole = vit.train([*overrides, f"run_dir={tmp_path / 'whole'}"])
    again = stopped_and_resumed(overrides, tmp_path / "again", monkeypatch, 12)
    assert_same(whole.path, again.path)
    assert whole.metrics["best_epoch"] == again.metrics["best_epoch"] == 4
    states = [start_scores(run.path) for run in (whole, again)]
    assert all(torch.equal(states[0][key], states[1][key]) and len(states[0][key]) == 180 for key in ("index", "score"))


def test_patience_counts_from_the_start(source, tmp_path):
    overrides = [*DIGITS, *SPOIL, "recipe.epochs=9", "callbacks.patience=2", f"init_from={source}"]
    run = vit.train([*overrides, f"run_dir={tmp_path}"])
    assert (run.metrics["ended"], run.metrics["epochs"], run.metrics["best_epoch"]) == ("patience", 2, 0)


def test_a_metric_that_the_start_lacks_is_compared_among_epochs(source, tmp_path):
    overrides = [*DIGITS, "callbacks.monitor=train/loss", f"init_from={source}"]
    assert vit.train([*overrides, f"run_dir={tmp_path}"]).metrics["best_epoch"] > 0


@pytest.mark.slow
def test_two_processes_gather_the_scores_of_their_samples(source, tmp_path):
    overrides = [*DIGITS, "recipe.optimizer.lr=1e-30", "recipe.epochs=1", f"init_from={source}"]
    states = []
    for name, others in (("one", []), ("two", ["strategy=ddp", *TWO])):
        code, _, err = run([*overrides, *others, f"run_dir={name}"], tmp_path)
        assert code == 0, err
        assert json.loads((tmp_path / name / "metrics.json").read_text())["best_epoch"] == 0
        states.append(start_scores(tmp_path / name))
    assert torch.equal(states[0]["index"], states[1]["index"]) and states[0]["index"].tolist() == list(range(180))
    assert torch.equal(states[0]["score"], states[1]["score"])


@pytest.mark.slow
def test_the_recipe_is_that_of_fine_tuning_unless_one_is_named(source, tmp_path, monkeypatch):
    """It is logged where neither a recipe nor an experiment is named, and not again in a resumed run; also where the
    data set is in a folder that the command adds.
    """
    root = write_photos(tmp_path / "photos", {"cat": 20, "dog": 20}, (8, 8))
    overrides = ["data=folder", f"data.root={root}", f"init_from={source}", "recipe.epochs=1", "logger=csv",
                 "report=false"]
    line = "recipe: finetune, the default with init_from"
    rates = {}
    for name in ("finetune", "scratch"):
        run = vit.train([*overrides, f"recipe={name}", f"run_dir={tmp_path / name}"])
        assert line not in (run.path / "log.txt").read_text()
        rates[name] = read_config(run.path)["recipe"]["optimizer"]["lr"]
    (tmp_path / "own" / "data").mkdir(parents=True)
    (tmp_path / "own" / "data" / "flowers.yaml").write_text("defaults: [folder]\n")
    added, own = f"hydra.searchpath=['{tmp_path / 'own'}']", ["data=flowers", *overrides[1:]]
    stopped_and_resumed([added, *own], tmp_path / "default", monkeypatch, 2, [added])
    assert (tmp_path / "default" / "log.txt").read_text().count(line) == 1
    assert read_config(tmp_path / "default")["recipe"]["optimizer"]["lr"] == rates["finetune"] < rates["scratch"]


@pytest.mark.parametrize(("overrides", "text"), [
    (["data=folder", "data.root=x"], "recipe: finetune, the default with init_from"),
    (["data=digits"], "recipe: the default of data=digits is for training from scratch; for fine-tuning from"),
    (["data=folder", "data.root=x", "recipe=scratch"], ""),
    (["experiment=finetune", "data.root=x"], ""),
    (["data=text_table"], ""),
])
def test_the_recipe_of_images_is_logged_unless_the_command_names_one(overrides, text, caplog):
    overrides = [*overrides, "init_from=x"]
    config = resolve(compose(overrides))
    caplog.clear()
    with caplog.at_level("INFO", "vit"):
        log_recipe(config, overrides)
    assert text in caplog.text if text else "recipe:" not in caplog.text


def test_a_fitted_head_that_training_spoils_is_what_is_saved(source, tmp_path):
    root = write_photos(tmp_path / "photos", {"cat": 30, "dog": 30, "emu": 30}, (8, 8))
    overrides = ["data=folder", f"data.root={root}", "recipe=finetune", f"init_from={source}", "logger=csv",
                 "report=false",
                 "precision=32-true", "recipe.epochs=2", "recipe.optimizer.lr=3", "recipe.clip=null", "recipe.ema=null"]
    run = vit.train([*overrides, f"run_dir={tmp_path / 'run'}"])
    rows = table(run.path / "metrics.csv")
    assert run.metrics["val/accuracy"] == float(rows[0]["val/accuracy"]) > 0.6
    assert run.metrics["best_epoch"] == 0 and run.metrics["test/accuracy"] > 0.6
