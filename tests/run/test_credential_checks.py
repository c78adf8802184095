"""Credentials of a command: the run uses them, nothing that it saves has them, and resuming asks for them again."""

import json

import pytest
from pytorch_lightning.loggers import CSVLogger

from tests.run.conftest import QUICK
from vit.cli import main as vit
from vit.data import digits
from vit.run import ConfigError, main, train
from vit.run.records.environment import started_as

SECRETS = ("sesame", "key-of-own", "hunter2")
TARGETS = ["data._target_=tests.run.test_credential_checks.guarded",
           "++logger.own._target_=tests.run.test_credential_checks.Tracker"]
GIVEN = ["++data.token=sesame", "++logger.own.api_key=key-of-own", "++logger.own.uri=https://me:hunter2@host/x"]
SMALL = [*(each for each in QUICK if not each.startswith("recipe.epochs")), "recipe.epochs=1", "model=micro",
         "model.depth=1", "trainer.accelerator=cpu"]


def guarded(token=None):
    if token != "sesame":
        raise ValueError(f"token={token}")
    return digits()


class Tracker(CSVLogger):
    def __init__(self, api_key=None, uri=None):
        super().__init__("tracked")
        if (api_key, uri) != ("key-of-own", "https://me:hunter2@host/x"):
            raise ValueError(f"api_key={api_key}")


def leaking(folder):
    """The files below a folder that have a credential."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return [path for path in files if any(secret.encode() in path.read_bytes() for secret in SECRETS)]


def test_a_run_uses_credentials_and_does_not_save_them(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    run = train([*TARGETS, *GIVEN, *SMALL, "run_dir=run", "report=true"]).path
    assert not leaking(tmp_path)
    assert "'***'" in (run / "config.yaml").read_text() and "https://***@host/x" in (run / "config.yaml").read_text()
    assert vit(["evaluate", str(run), *TARGETS[:1]]) == 2
    assert "data.token is a credential, which" in capfd.readouterr().err
    assert vit(["evaluate", str(run), *TARGETS[:1], GIVEN[0]]) == 0

    (run / "metrics.json").unlink()  # as of a run that was stopped
    with pytest.raises(ConfigError, match=r"^logger\.own\.api_key is a credential, .* add \+\+logger\.own\.api_key="):
        train([*TARGETS, GIVEN[0], GIVEN[2], "resume=run"])
    with pytest.raises(ConfigError, match=r"^logger\.own\.api_key and data\.token are credentials"):
        train([*TARGETS, GIVEN[2], "resume=run"])
    with pytest.raises(ConfigError, match="lets a logger write outside the run folder"):
        train([*TARGETS, *GIVEN[:2], "resume=run"])
    monkeypatch.setenv("DOOR", "sesame")
    train([*TARGETS, *GIVEN[1:], "++data.token=${oc.env:DOOR}", "resume=run", "recipe.epochs=2"])
    assert not leaking(tmp_path)
    assert "changed on resuming: recipe.epochs from 1 to 2" in (log := (run / "log.txt").read_text())
    assert "changed on resuming: data.token" not in log and "changed on resuming: logger" not in log


def test_a_reference_to_the_environment_is_recorded_and_used_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOOR", "sesame")
    train([TARGETS[0], "++data.token=${oc.env:DOOR}", *SMALL, "run_dir=run"])
    assert not leaking(tmp_path)
    (tmp_path / "run" / "metrics.json").unlink()
    train([TARGETS[0], "resume=run", "recipe.epochs=2"])


def test_resume_auto_finds_a_run_with_credentials(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = train([TARGETS[0], GIVEN[0], *SMALL]).path
    (run / "metrics.json").unlink()
    assert train([TARGETS[0], GIVEN[0], *SMALL, "resume=auto"]).path == run


@pytest.mark.slow
def test_a_sweep_saves_no_credentials(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    sweep = ["-m", "hydra.sweep.dir=out", TARGETS[0], GIVEN[0], *SMALL, "seed=0,1"]
    assert main(sweep) == 0
    assert not leaking(tmp_path) and (tmp_path / "out" / "multirun.yaml").is_file()
    assert json.loads((tmp_path / "out" / "sweep.json").read_text())["runs"][1]["settings"] == {"seed": "1"}
    assert not any(secret in capfd.readouterr().out for secret in SECRETS)
    assert main([*sweep, "resume=auto"]) == 0
    assert "out/1 is finished" in capfd.readouterr().out


@pytest.mark.slow
def test_a_comparison_saves_no_credentials_and_asks_for_them(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    runs = '++compare={one:["seed=0"],two:["seed=1"]}'
    assert main([runs, TARGETS[0], GIVEN[0], *SMALL, "run_dir=out"]) == 0
    assert not leaking(tmp_path)
    (tmp_path / "out" / "two" / "metrics.json").unlink()
    assert main([TARGETS[0], "resume=out"]) == 2
    assert "data.token is a credential, which out has not recorded" in capfd.readouterr().err
    assert main([TARGETS[0], GIVEN[0], "resume=out"]) == 0
    assert not leaking(tmp_path)


def test_the_recorded_command_has_no_credentials():
    assert "key-of-own" not in started_as(["train.py", "seed=1", "++logger.own.api_key=key-of-own"])


@pytest.mark.parametrize("mode", [[], ["-m"]])
def test_hydra_does_not_write_credentials_into_its_output_subdir(tmp_path, monkeypatch, capsys, mode):
    """Hydra writes the config of each run there by itself."""
    monkeypatch.chdir(tmp_path)
    subdir = "hydra.output_subdir=.hydra"
    assert main([*mode, *TARGETS, *GIVEN, *SMALL, subdir]) == 2
    assert ("hydra.output_subdir=.hydra: Hydra would write data.token, logger.own.api_key, logger.own.uri there"
            in capsys.readouterr().err) and not list(tmp_path.iterdir())
    own = tmp_path / "conf" / "logger" / "own.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("own:\n  _target_: tests.run.test_credential_checks.Tracker\n  api_key: key-of-own\n")
    assert main([*mode, f"--config-dir={own.parent.parent}", *SMALL, "logger=own", subdir]) == 2
    assert "Hydra would write logger.own.api_key there" in capsys.readouterr().err


def test_the_command_can_turn_off_the_output_subdir_of_a_config(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("defaults:\n  - train\n  - _self_\nhydra:\n  output_subdir: .hydra\n")
    command = ["--config-dir=.", "--config-name=mine", *TARGETS, *GIVEN, *SMALL, "--cfg=job"]
    assert main(command) == 2
    assert "or hydra.output_subdir=null" in capsys.readouterr().err
    assert main([*command, "hydra.output_subdir=null"]) == 0
    assert not leaking(tmp_path)
