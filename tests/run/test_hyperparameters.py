"""The config of a run in the loggers, and resumed runs of their trackers."""

import errno
import logging
import os
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from pytorch_lightning.loggers import Logger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata

import vit
from vit.run.changes_on_resuming import change_loggers
from vit.run.config.composing import compose, resolve
from vit.run.config.overrides import ConfigError
from vit.run.parts.loggers import (
    LoggerErrors,
    build_loggers,
    hyperparameters,
    local_folder,
    log_config,
    logger_defaults,
    without_scheme,
)
from vit.run.records.folder import RunFolder
from vit.run.resume import read_overrides, with_recorded
from vit.training import Interrupted

QUICK = ["debug=true", "data=digits", "model.dim=16", "model.num_heads=2", "model.depth=1", "recipe.optimizer.lr=0.003",
         "trainer.accelerator=cpu", "precision=32-true", "report=false", "calibrate=none"]
TARGET = "tests.run.test_hyperparameters"


class Recorder(Logger):
    """Keeps the hyperparameters of the last run."""

    name, version, found = "recorder", "", {}

    def log_hyperparams(self, params):
        Recorder.found = dict(params)

    def log_metrics(self, metrics, step=None):
        pass


class Refusing(Recorder):
    def log_hyperparams(self, params):
        raise ValueError("'null' exceeds\nthe limit")


class Stopped(BaseException):
    """Ends a run, which the errors of a logger do not."""


class Unreachable(Logger):
    """A tracker whose server is reached once; a call takes a second until it fails."""

    name, version, calls = "unreachable", "", []

    def __init__(self, clock):
        self.clock = clock

    def log_hyperparams(self, params):
        pass

    def log_metrics(self, metrics, step=None):
        self.calls.append("log_metrics")
        if len(self.calls) > 1:
            self.clock[0] += 1
            raise ConnectionError("the server at tracker:5000 does not answer")

    def finalize(self, status):
        self.calls.append("finalize")
        raise ConnectionError("the server at tracker:5000 does not answer")


class MLFlowLogger(Recorder):
    """With the part of MLflow's interface that runs are continued by."""

    runs, stopped = ["others"], False

    def __init__(self, run_id=None, **options):
        super().__init__()
        self.version = run_id

    @property
    def experiment(self):
        if self.version is None:
            self.version = f"run{len(self.runs)}"
            self.runs.append(self.version)
        if self.version not in self.runs:
            raise OSError(f"no run {self.version}")

    def log_metrics(self, metrics, step=None):
        if self.stopped:
            raise Stopped


class WandbLogger(Recorder):
    """Continues the run of the process, if there is one, as Lightning's does."""

    def __init__(self, id=None, **options):
        super().__init__()
        self.version = id

    @property
    def experiment(self):
        wandb = sys.modules["wandb"]
        if wandb.run is None:
            wandb.begun.append(self.version or f"run{len(wandb.begun)}")
            wandb.run = SimpleNamespace(id=wandb.begun[-1], finish=lambda: setattr(wandb, "run", None))
        self.version = wandb.run.id
        return wandb.run


def test_runs_that_start_together_create_the_store_of_mlflow_one_after_the_other(tmp_path, monkeypatch):
    """Its tables and its experiment."""
    events, node = [], {"_target_": f"{TARGET}.MLFlowLogger", "tracking_uri": f"sqlite:///{tmp_path}/mlflow.db"}

    def created(*arguments, **options):
        events.append("begin")
        time.sleep(0.05)
        events.append("end")

    def start(number):
        folder = RunFolder(tmp_path / str(number), main=False)
        config = {"logger": {"mlflow": node}, "callbacks": {"monitor": "val/loss"}, "overrides": []}
        log_config(config, folder, SimpleNamespace(loggers=build_loggers(config, folder)))

    monkeypatch.setattr(MLFlowLogger, "__init__", created)
    monkeypatch.setattr(MLFlowLogger, "experiment", property(created))
    monkeypatch.setattr(RunFolder, "write", lambda *arguments: None)
    threads = [threading.Thread(target=start, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert events == ["begin", "end"] * 6


@pytest.mark.parametrize(("uri", "folder"), [
    ("sqlite:///mlflow.db", Path()), ("sqlite:////data/mlflow.db", Path("/data")), ("file:./mlruns", Path()),
    ("mlruns", Path()), ("http://localhost:5000", None), ("postgresql://user@server/mlflow", None),
])
def test_only_local_stores_of_mlflow_are_locked(uri, folder):
    assert local_folder(uri) == folder


def test_every_logger_gets_the_config(tmp_path):
    folder = tmp_path / "run"
    vit.train([*QUICK, f"++logger.bad._target_={TARGET}.Refusing", f"++logger.mine._target_={TARGET}.Recorder",
               "trainer.log_every_n_steps=3", f"run_dir={folder}"])
    warning = "logger.bad has not stored all of the config ('null' exceeds the limit)"
    assert f"WARNING {warning}" in (folder / "log.txt").read_text()
    values = Recorder.found
    assert values["recipe.optimizer.lr"] == 0.003 and values["model.dim"] == 16 and values["seed"] == 0
    assert values["data.preprocessing.size"] == "[8, 8]" and values["recipe.mixup"] == "null"
    assert not [key for key in values if key.startswith(("logger", "run", "resume", "overrides", "classes"))]
    assert yaml.safe_load((folder / "tensorboard" / "hparams.yaml").read_text()) == values
    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    assert len(events.Scalars("train/step_loss")) == 2  # of 8 steps
    assert "hp_metric" not in events.Tags()["scalars"] and len(events.Scalars("val/accuracy")) == 2
    start = events.summary_metadata[metadata.SESSION_START_INFO_TAG].plugin_data.content
    assert metadata.parse_session_start_info_plugin_data(start).hparams["recipe.optimizer.lr"].number_value == 0.003
    experiment = events.summary_metadata[metadata.EXPERIMENT_TAG].plugin_data.content
    shown = metadata.parse_experiment_plugin_data(experiment).metric_infos
    assert [metric.name.tag for metric in shown] == ["val/accuracy"]


def test_a_resumed_run_continues_that_of_the_tracker(tmp_path, monkeypatch):
    monkeypatch.setattr(MLFlowLogger, "runs", ["others"])
    monkeypatch.setattr(MLFlowLogger, "stopped", True)
    logger = f"++logger.mlflow._target_={TARGET}.MLFlowLogger"
    with pytest.raises(Stopped):
        vit.train([*QUICK, logger, "logger.tensorboard=null", f"run_dir={tmp_path}"])
    monkeypatch.setattr(MLFlowLogger, "runs", ["others"])
    again = [f"resume={tmp_path}", logger]
    with pytest.raises(ConfigError, match=r"logger.mlflow.run_id=run1: the tracker cannot continue this run \(OSError: "
                                          r"no run run1\); \+\+logger.mlflow.run_id=null begins another one"):
        vit.train(again)
    with pytest.raises(Stopped):
        vit.train([*again, "++logger.mlflow.run_id=null"])
    monkeypatch.setattr(MLFlowLogger, "runs", ["others", "second", "run1"])
    monkeypatch.setattr(MLFlowLogger, "stopped", False)
    vit.train(again)
    assert MLFlowLogger.runs == ["others", "second", "run1"]
    assert yaml.safe_load((tmp_path / "config.yaml").read_text())["logger"]["mlflow"]["run_id"] == "run1"


def test_a_logger_that_fails_does_not_end_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(Unreachable, "calls", [])
    vit.train([*QUICK, f"++logger.far={{_target_: {TARGET}.Unreachable, clock: [0]}}", f"run_dir={tmp_path}"])
    warning = ("logger.far: log_metrics failed (the server at tracker:5000 does not answer); the run continues, and "
               "values may be missing there; metrics.csv has all of them")
    assert (tmp_path / "log.txt").read_text().count("logger.far") == 1 and (tmp_path / "metrics.json").exists()
    assert warning in (tmp_path / "log.txt").read_text() and Unreachable.calls[-1] == "finalize"


def test_a_full_disk_of_tensorboard_is_one_warning(tmp_path, monkeypatch):
    """Its file is written by a thread, whose error the next call raises."""
    writes, printed = [], []

    def write(self, data):
        writes.append(data)
        if len(writes) > 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tensorboard.summary.writer.record_writer.RecordWriter.write", write)
    monkeypatch.setattr(threading, "excepthook", printed.append)
    vit.train([*QUICK, f"run_dir={tmp_path}"])
    assert len(writes) == 4 and not printed and threading.excepthook == printed.append
    warnings = [line for line in (tmp_path / "log.txt").read_text().splitlines() if "logger.tensorboard" in line]
    assert len(warnings) == 1 and "No space left on device" in warnings[0]


class DatabaseError(Exception):
    """As SQLAlchemy's: with the SQL in its text, and the error of the database in `orig`."""

    orig = RuntimeError("database or disk is full")


class FullDatabase(Recorder):
    """MLflow on a full disk: it logs each error with its traceback, and raises it."""

    def log_metrics(self, metrics, step=None):
        try:
            raise DatabaseError("(sqlite3.OperationalError) database or disk is full [SQL: INSERT INTO ...]")
        except DatabaseError as error:
            logging.getLogger("mlflow.store.db.utils").exception("SQLAlchemy database error")
            raise RuntimeError(f"INTERNAL_ERROR: {error}") from error


def test_a_full_disk_of_mlflow_is_one_warning(tmp_path, caplog):
    vit.train([*QUICK, f"++logger.mine._target_={TARGET}.FullDatabase", f"run_dir={tmp_path}"])
    warning = "logger.mine: log_metrics failed (database or disk is full); the run continues"
    assert (tmp_path / "log.txt").read_text().count("logger.mine") == 1
    assert warning in (tmp_path / "log.txt").read_text() and "SQLAlchemy" not in caplog.text
    logging.getLogger("mlflow.store.db.utils").error("later", exc_info=ValueError("x"))
    assert "later" in caplog.text


def test_a_tracker_that_cannot_begin_a_run_is_named(tmp_path, monkeypatch):
    def experiment(self):
        raise ConnectionError("the server at tracker:5000 does not answer")

    monkeypatch.setattr(Recorder, "experiment", property(experiment), raising=False)
    error = r"^logger.mine cannot be used \(the server .* does not answer\); logger.mine=null leaves it out$"
    with pytest.raises(ConfigError, match=error):
        vit.train([*QUICK, f"++logger.mine._target_={TARGET}.Recorder", f"run_dir={tmp_path}"])


def test_a_logger_is_left_alone_after_a_slow_error(monkeypatch):
    """Waiting for a tracker takes at most 5 % of the time."""
    clock = [0.0]
    monkeypatch.setattr("vit.run.parts.loggers.time.monotonic", lambda: clock[0])
    monkeypatch.setattr(Unreachable, "calls", ["earlier"])
    logger = LoggerErrors("logger.far").guard(Unreachable(clock))
    for _ in range(100):
        logger.log_metrics({})
        clock[0] += 1
    assert Unreachable.calls == ["earlier", *["log_metrics"] * 5]
    logger.finalize("success")
    assert Unreachable.calls[-1] == "finalize"


def test_a_stop_in_a_logger_stops_the_run():
    def log_metrics(metrics, step=None):
        raise OSError("the call was interrupted") from Interrupted(15, agreed=False)

    logger = Recorder()
    logger.log_metrics = log_metrics
    with pytest.raises(OSError, match="interrupted"):
        LoggerErrors("logger.mine").guard(logger).log_metrics({})


def test_a_resumed_run_has_the_loggers_of_its_command(tmp_path, monkeypatch):
    """Loggers do not change results. One that remains continues its run of the tracker."""
    monkeypatch.setattr(MLFlowLogger, "stopped", True)
    tracker = f"++logger.mlflow._target_={TARGET}.MLFlowLogger"
    with pytest.raises(Stopped):
        vit.train([*QUICK, tracker, f"run_dir={tmp_path}"])
    monkeypatch.setattr(MLFlowLogger, "stopped", False)

    def loggers(*overrides):
        parsed = [f"resume={tmp_path}", tracker, *overrides]
        return read_overrides(resolve(compose(with_recorded(parsed))), parsed).config["logger"]

    stored = loggers()
    assert stored["mlflow"]["run_id"] in MLFlowLogger.runs and "tensorboard" in stored
    assert loggers("logger.tensorboard=null") == {**stored, "tensorboard": None}
    assert loggers("logger=csv") == {"mlflow": stored["mlflow"]}
    assert loggers("logger=wandb")["wandb"]["project"] == "vit"
    mine = f"{TARGET}.Recorder"
    assert loggers(f"++logger.mine._target_={mine}") == {**stored, "mine": {"_target_": mine}}
    assert loggers("++logger.mlflow=null")["mlflow"] is None
    vit.train([f"resume={tmp_path}", tracker, "logger.tensorboard=null", "++logger.mlflow=null"])
    log = (tmp_path / "log.txt").read_text()
    assert "changed on resuming: logger from tensorboard, mlflow to none" in log


@pytest.mark.parametrize("composed", [{"id": None}, {"_target_": "Wandb", "project": "vit", "id": None}])
def test_an_option_of_a_logger_leaves_its_other_options(composed):
    """Also those of an earlier command that resumed the run, which the command and its recorded overrides lack."""
    stored = {"_target_": "Wandb", "project": "mine", "id": "a"}
    config = {"logger": {"wandb": stored}}
    changes = change_loggers(config, ["++logger.wandb.id=null"], {"logger": {"wandb": composed}})
    assert config["logger"] == {"wandb": {**stored, "id": None}} and changes == {"logger.wandb.id": ("a", None)}


def test_each_training_of_a_process_has_its_own_run_of_wandb(tmp_path, monkeypatch):
    """Unless the program has begun one itself, which they continue and do not end."""
    wandb = SimpleNamespace(run=None, begun=[])
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setattr("vit.run.parts.loggers.begun_in_wandb", set())

    def ids(*names):
        overrides = [*QUICK, "logger.tensorboard=null", f"++logger.wandb._target_={TARGET}.WandbLogger"]
        folders = [vit.train([*overrides, f"run_dir={tmp_path / name}"]).path for name in names]
        return [yaml.safe_load((folder / "config.yaml").read_text())["logger"]["wandb"]["id"] for folder in folders]

    assert ids("a", "b") == wandb.begun == ["run0", "run1"] and wandb.run.id == "run1"
    wandb.run = own = SimpleNamespace(id="own", finish=None)
    assert ids("c", "d") == ["own", "own"] and wandb.run is own


def test_a_stopped_run_is_not_finished_in_wandb(monkeypatch):
    codes = []
    logger = WandbLogger("ours")
    run = SimpleNamespace(id="ours", finish=lambda exit_code: codes.append(exit_code))
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=run))
    monkeypatch.setattr("vit.run.parts.loggers.begun_in_wandb", {"ours"})
    LoggerErrors("logger.wandb").guard(logger)
    logger.finalize("success")
    assert codes == []
    logger.finalize("failed")
    assert codes == [1]
    logger.version = "of the program"
    logger.finalize("failed")
    assert codes == [1]


def test_a_tracker_without_an_answer_is_named_while_the_run_waits(monkeypatch, caplog):
    def log_metrics(metrics, step=None):
        deadline = time.monotonic() + 30
        while "no answer" not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.01)

    logger = Recorder()
    logger.log_metrics = log_metrics
    monkeypatch.setattr("vit.run.parts.loggers.SILENCE", 0.02)
    monkeypatch.setattr(logging.getLogger("vit"), "propagate", True)
    LoggerErrors("logger.far").guard(logger).log_metrics({})
    assert "logger.far: no answer from the tracker for 0.02 s; the run waits until it answers" in caplog.text


@pytest.mark.parametrize(("uri", "hint"), [
    ("localhost:5000", "; MLflow takes the address localhost:5000 for a folder: write http://localhost:5000"),
    ("http://localhost:5000", ""), ("runs", ""), (None, "")])
def test_an_address_without_a_scheme_has_a_hint(uri, hint):
    assert without_scheme(uri) == hint


@pytest.mark.parametrize(("target", "option", "run"), [("MLFlowLogger", "run_name", "run_id"),
                                                      ("WandbLogger", "name", "id")])
def test_a_new_run_of_a_tracker_is_named_after_the_run_folder(target, option, run, tmp_path, monkeypatch):
    """Of MLflow all runs with one seed would have the same name."""
    monkeypatch.chdir(tmp_path)
    target, folder = f"pytorch_lightning.loggers.{target}", RunFolder(Path("sweep/3"), main=False)
    assert logger_defaults(target, {}, folder)[option] == "sweep/3"
    assert option not in logger_defaults(target, {run: "former"}, folder)
    monkeypatch.setenv("WANDB_NAME", "mine")
    assert option not in logger_defaults(target, {"tags": {"mlflow.runName": "mine"}}, folder)


def test_values_are_those_of_overrides():
    node = {"a": {"b": None, "c": {}, 3: [1, "x"]}, "d": True, "e": "text", "f": 1e-3}
    assert hyperparameters(node) == {"a.b": "null", "a.c": "{}", "a.3": "[1, 'x']", "d": True, "e": "text", "f": 0.001}
