"""Commands that a run prints work where it was started with configs of the user."""

import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from vit.run import main
from vit.run.config.hydra_interface import PRIMARY, with_config_dir
from vit.run.config.own_configs import own_configs
from vit.run.finish import check_samples
from vit.run.multirun import compare as comparing
from vit.run.processes.separate_process import STOPPED
from vit.run.records.folder import RunFolder
from vit.run.training_run import how_to_resume

MAE = ["experiment=mae", "model.dim=16", "model.num_heads=2", "model.depth=1", "model.decoder_dim=16",
       "model.decoder_depth=1", "recipe.batch_size=256", "recipe.epochs=1", "precision=32-true", "logger=csv",
       "report=false", "task.examples=0", "trainer.accelerator=cpu"]


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The user's folder of configs, below the working directory."""
    monkeypatch.chdir(tmp_path)
    files = {
        "data/mine.yaml": {"defaults": ["digits", "_self_"], "name": "my digits", "image_size": 8, "patch_size": 2},
        "own.yaml": {"defaults": ["train", {"override data": "mine"}, "_self_"], "seed": 7},
    }
    for name, content in files.items():
        (tmp_path / "mine" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mine" / name).write_text(yaml.safe_dump(content, sort_keys=False))
    return with_config_dir([], "mine")


def printed_command(text):
    """The arguments after `python -m vit train` in the last line."""
    words = shlex.split(text.strip().splitlines()[-1])
    return words[words.index("train") + 1:]


def test_the_arguments_name_folders_primary_config_and_targets(own):
    stated = [*own, f"{PRIMARY}=own", "data._target_=mine.photos", "+callbacks.beep={_target_: mine.Beep, loud: 2}",
              "logger._target_=pytorch_lightning.loggers.CSVLogger"]
    targets = ["data._target_=mine.photos", "++callbacks.beep._target_=mine.Beep"]
    assert own_configs(stated) == ["--config-dir", "mine", "--config-name", "own", *targets]
    assert own_configs(stated, "cross-validate") == ["--config-dir", "mine", f"{PRIMARY}=own", *targets]
    assert own_configs(stated, "report") == ["--config-dir", "mine", targets[0]]
    assert own_configs(["data=digits", "seed=1"]) == []


def test_the_command_after_masked_pre_training_names_the_folder_of_the_data(own, capsys):
    assert main(["--config-dir", "mine", "data=mine", *MAE, "run_dir=out"]) == 0
    command = printed_command(capsys.readouterr().out)
    assert command[:3] == ["--config-dir", "mine", "data=mine"] and command[-1] == "init_from=out"
    assert main([*command, "--cfg", "job"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["data"]["name"] == "my digits"


def test_commands_that_finish_or_resume_a_run_name_the_configs(own, tmp_path, monkeypatch):
    def changed(source, split, recorded, fix):
        raise ValueError(fix)

    monkeypatch.setattr("vit.run.finish.check_unchanged", changed)
    monkeypatch.setattr("vit.run.finish.read_record", lambda path: SimpleNamespace(splits={"test": ["a"]}))
    folder, overrides = RunFolder(Path("out"), main=False), [*own, f"{PRIMARY}=own"]
    expected = "-m vit train --config-dir mine --config-name own resume=out"
    with pytest.raises(ValueError, match=expected):
        check_samples(SimpleNamespace(source=None, split="test"), folder, overrides)
    for name in ("checkpoints/last.ckpt", "config.yaml"):
        (folder.path / name).parent.mkdir(parents=True, exist_ok=True)
        (folder.path / name).touch()
    assert how_to_resume(folder, overrides).endswith(expected)
    (folder.path / "metrics.json").touch()
    assert how_to_resume(folder, overrides).endswith("-m vit report out --config-dir mine")


@pytest.mark.slow
@pytest.mark.parametrize("subcommand", ["train", "cross-validate"])
def test_a_stopped_comparison_is_resumed_with_its_primary_config(own, capsys, monkeypatch, subcommand):
    """Its runs that have not begun are composed from it."""
    overrides, code = [*own, f"{PRIMARY}=own", "run_dir=out"], next(iter(STOPPED))
    monkeypatch.setattr(comparing, "train_in_new_process", lambda overrides: code)
    config = comparing.resolve(comparing.compose(overrides)) | {"compare": {"one": ["seed=1"], "two": ["seed=2"]}}
    with pytest.raises(SystemExit):
        comparing.train_all(config, overrides, subcommand)
    name = "--config-name own" if subcommand == "train" else f"{PRIMARY}=own"
    assert f"-m vit {subcommand} --config-dir mine {name} resume=out" in capsys.readouterr().out
