"""The config of a run in the loggers, and resumed runs of their trackers."""

import pytest
import yaml
from pytorch_lightning.loggers import Logger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata

import vit
from vit.run.config.overrides import ConfigError
from vit.run.parts.hyperparameters import flat

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
            raise InterruptedError("stopped")


def test_every_logger_gets_the_config(tmp_path):
    folder = tmp_path / "run"
    vit.train([*QUICK, f"++logger.bad._target_={TARGET}.Refusing", f"++logger.mine._target_={TARGET}.Recorder",
               f"run_dir={folder}"])
    warning = "logger.bad has not stored all of the config ('null' exceeds the limit)"
    assert f"WARNING {warning}" in (folder / "log.txt").read_text()
    values = Recorder.found
    assert values["recipe.optimizer.lr"] == 0.003 and values["model.dim"] == 16 and values["seed"] == 0
    assert values["data.preprocessing.size"] == "[8, 8]" and values["recipe.mixup"] == "null"
    assert not [key for key in values if key.startswith(("logger", "run", "resume", "overrides", "classes"))]
    assert yaml.safe_load((folder / "tensorboard" / "hparams.yaml").read_text()) == values
    events = EventAccumulator(str(folder / "tensorboard")).Reload()
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
    with pytest.raises(InterruptedError):
        vit.train([*QUICK, logger, "logger.tensorboard=null", f"run_dir={tmp_path}"])
    monkeypatch.setattr(MLFlowLogger, "runs", ["others"])
    again = [f"resume={tmp_path}", logger]
    with pytest.raises(ConfigError, match=r"logger.mlflow.run_id=run1: the tracker cannot continue this run \(OSError: "
                                          r"no run run1\); \+\+logger.mlflow.run_id=null begins another one"):
        vit.train(again)
    with pytest.raises(InterruptedError):
        vit.train([*again, "++logger.mlflow.run_id=null"])
    monkeypatch.setattr(MLFlowLogger, "runs", ["others", "second", "run1"])
    monkeypatch.setattr(MLFlowLogger, "stopped", False)
    vit.train(again)
    assert MLFlowLogger.runs == ["others", "second", "run1"]
    assert yaml.safe_load((tmp_path / "config.yaml").read_text())["logger"]["mlflow"]["run_id"] == "run1"


def test_values_are_those_of_overrides():
    node = {"a": {"b": None, "c": {}, 3: [1, "x"]}, "d": True, "e": "text", "f": 1e-3}
    assert dict(flat(node)) == {"a.b": "null", "a.c": "{}", "a.3": "[1, 'x']", "d": True, "e": "text", "f": 0.001}
