"""Hydra's own options and settings work as in its manual."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from omegaconf import OmegaConf

import vit
from tests.run.conftest import QUICK, ROOT, run, start
from tests.run.test_targets import forge_manifest
from tests.slow_values import quick_and_slow
from vit.cli import main as vit_command
from vit.run import ConfigError, main
from vit.run.changes_on_resuming import changed_files
from vit.run.config.composing import compose, data_of_primary, resolve
from vit.run.config.hydra_interface import config_folder, hydra_over
from vit.run.config.overrides import parse, sweep
from vit.run.parts.trainer import own_callbacks
from vit.run.records.folder import RunFolder
from vit.run.training_run import how_to_resume
from vit.training import FollowEpoch

TINY = ["data=mine", "model=flat", "trainer.accelerator=cpu", "calibrate=none", *QUICK, "recipe.epochs=1"]


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The user's folder of configs, its path with a space, beside the working directory."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "my conf"
    files = {
        "data/mine.yaml": {"defaults": ["digits"], "name": "mine", "image_size": 8},
        "model/flat.yaml": {"defaults": ["tiny"], "depth": 1},
        "recipe/brief.yaml": {"defaults": ["scratch", "_self_"], "epochs": 1, "batch_size": 128},
        "own.yaml": {"defaults": ["train", {"override data": "mine"}, {"override recipe": "brief"}, "_self_"],
                     "seed": 7},
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(yaml.safe_dump(content, sort_keys=False))
    return folder


def printed(capsys, *overrides):
    assert main([*map(str, overrides)]) == 0
    return yaml.safe_load(capsys.readouterr().out)


def test_the_command_without_overrides_trains(tmp_path):
    """The first command of the README, stopped after its first checkpoint."""
    process = start([], tmp_path)
    while process.poll() is None and not list(tmp_path.glob("runs/digits/*/checkpoints/last.ckpt")):
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "data: digits, 1,257 train" in output and "Resume with" in output


def test_cfg_prints_what_hydra_composes(capsys):
    overrides = ["data=folder", "data.root=x", "model=small", "recipe.epochs=3"]
    with initialize_config_dir(version_base="1.3", config_dir=str(config_folder())):
        expected = OmegaConf.to_container(hydra_compose("train", overrides=overrides))
    assert printed(capsys, "--cfg", "job", *overrides) == printed(capsys, *overrides, "--cfg") == expected
    assert printed(capsys, "--cfg=job", "--resolve", *overrides)["name"] == "folder"
    assert printed(capsys, *overrides, "-c", "job", "-p", "recipe")["epochs"] == 3
    assert printed(capsys, "--cfg", "hydra", "hydra.job.num=3")["hydra"]["job"]["num"] == 3


def test_folders_and_primary_configs_of_the_user(own, capsys):
    found = printed(capsys, "--config-dir", own, "data=mine", "model=flat", "--cfg", "job")
    assert found["data"]["name"] == "mine" and found["model"]["depth"] == 1
    found = printed(capsys, "-cd", own.name, "--config-name", "own", "model=flat", "--cfg", "job", "--resolve")
    assert (found["seed"], found["name"], found["recipe"]["epochs"]) == (7, "mine", 1)
    assert printed(capsys, "-cd", own, "-cn", "own.yaml", "--cfg", "job")["seed"] == 7
    assert printed(capsys, "-cn", "own", f"hydra.searchpath=['file://{own}']", "--cfg", "job")["seed"] == 7


def test_the_search_path_of_a_primary_config_of_the_user(own, capsys, tmp_path, monkeypatch):
    folder = tmp_path / "primary"
    folder.mkdir()
    monkeypatch.setenv("OWN_CONFIGS", str(own))
    hydra = {"searchpath": ["file://${oc.env:OWN_CONFIGS}"]}
    (folder / "far.yaml").write_text(yaml.safe_dump({"defaults": ["own", "_self_"], "hydra": hydra}))
    found = printed(capsys, "-cd", folder, "-cn", "far", "model=flat", "--cfg", "job")
    assert (found["seed"], found["data"]["name"], found["model"]["depth"]) == (7, "mine", 1)


@pytest.fixture
def started(monkeypatch):
    """The resolved configs of the runs that a command starts, without training."""
    configs = []
    monkeypatch.setattr("vit.run.training_run.train_composed", lambda config, _: configs.append(config))
    return configs


def test_two_folders_of_the_user(own, started, tmp_path, capsys):
    (tmp_path / "more" / "model").mkdir(parents=True)
    (tmp_path / "more" / "model" / "flat.yaml").write_text("defaults: [tiny]\ndepth: 2\n")
    (own / "model" / "flat.yaml").unlink()
    for overrides in (["hydra.searchpath=[more]", "--config-dir", own], [f"hydra.searchpath=['{own}',more]"]):
        command = [*map(str, overrides), "--config-name", "own", "model=flat"]
        assert printed(capsys, *command, "--cfg", "job")["model"]["depth"] == 2
        assert main(command) == 0
        assert started[-1]["model"]["depth"] == 2 and started[-1]["seed"] == 7


def test_settings_of_hydra_apply_to_a_run(own, started, monkeypatch):
    directory = Path.cwd()
    monkeypatch.setattr("vit.run.command.run_here", lambda config, overrides: started.append((Path.cwd(), config)) or 0)
    overrides = ["hydra.run.dir=out/${hydra.job.name}/${hydra.job.override_dirname}", "hydra.job.chdir=true", "seed=3"]
    assert main(overrides) == 0
    (folder, config), = started
    assert folder == directory / "out" / "train" / "seed=3" == Path(config.run_dir)
    assert Path.cwd() == directory
    assert main([*overrides[:1], "seed=4"]) == 0
    folder, config = started[-1]
    assert folder == directory and config.run_dir == "out/train/seed=4"


def test_relative_paths_are_those_of_the_command_in_another_working_directory(own, monkeypatch):
    found = []
    monkeypatch.setattr("vit.run.command.run_here",
                        lambda config, overrides: found.append((resolve(config), overrides)) or 0)
    directory = Path.cwd()
    Path("model").mkdir()
    data = ["data=folder", "data.root=photos", "data.corrections=a b.csv"]
    assert main([*data, "init_from=model", "hydra.run.dir=out", "hydra.job.chdir=true"]) == 0
    (config, overrides), = found
    assert config["data"]["root"] == str(directory / "photos") and config["init_from"] == str(directory / "model")
    assert config["data"]["corrections"] == str(directory / "a b.csv")
    recorded = resolve(compose(overrides))  # what ranks and a resumed run compose
    assert {**recorded, "run_dir": config["run_dir"]} == config
    assert main([*data, "init_from=timm:vit_tiny_patch16_224", "hydra.run.dir=out2", "hydra.job.chdir=true"]) == 0
    assert found[-1][0]["init_from"] == "timm:vit_tiny_patch16_224"
    assert main([*data, "hydra.run.dir=out3"]) == 0
    assert found[-1][0]["data"]["root"] == "photos"


@pytest.mark.slow
def test_relative_paths_in_a_sweep_that_changes_the_working_directory(own, apart):
    settings = ["hydra.job.chdir=true", "hydra.sweep.dir=out"]
    assert main(["-m", "seed=1,2", "data=folder", "data.root=photos", *settings]) == 0
    assert [resolve(compose(each))["data"]["root"] for each in apart] == [str(Path.cwd() / "photos")] * 2
    assert [settings for settings, *_ in swept(Path("out"))] == [{"seed": "1"}, {"seed": "2"}]


def test_a_primary_config_of_the_user_names_the_run_folder(own, started):
    (own / "out.yaml").write_text(yaml.safe_dump({"defaults": ["own", "_self_"], "hydra": {"run": {"dir": "out"}}}))
    assert main(["--config-dir", str(own), "-cn", "out"]) == 0
    assert started[-1]["run_dir"] == "out"


@pytest.mark.parametrize("option", [["--cfg", "job"], ["--info"], ["--run"], ["--resolve"]])
def test_a_sweep_prints_no_config(option, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["-m", "seed=1,2", *option]) == 2
    assert "error: -m starts runs" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_the_config_is_composed_once_for_the_check_and_the_run(started, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hydra_over(config_folder()).config_loader, "composed", {})
    composed, original = [], ConfigLoaderImpl.load_configuration

    def load_configuration(loader, config_name, overrides, **options):
        composed.append(overrides)
        return original(loader, config_name, overrides, **options)

    monkeypatch.setattr(ConfigLoaderImpl, "load_configuration", load_configuration)
    for epochs in (3, 4):
        assert main(["model=small", f"recipe.epochs={epochs}"]) == 0
    assert composed == [["model=small"]]
    assert [config["recipe"]["epochs"] for config in started] == [3, 4]


@pytest.mark.parametrize("overrides", [["~experiment"], ["experiment=[]"], ["~augment"], ["~logger"], ["~finetune"],
                                       ["experiment=[digits,_short_text]"], ["experiment=paper/first"]])
def test_groups_are_removed_listed_and_nested_as_in_hydra(own, capsys, overrides):
    file = own / "experiment" / "paper" / "first.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("# @package _global_\nseed: 11\n")
    overrides = [f"hydra.searchpath=['{own}']", *overrides]
    with initialize_config_dir(version_base="1.3", config_dir=str(config_folder())):
        expected = OmegaConf.to_container(hydra_compose("train", overrides=overrides))
    assert printed(capsys, "--cfg", "job", *overrides) == expected


@pytest.mark.parametrize("overrides", [
    ["+width=96", "model.dim=${width}"], ["++my.width=96", "model.dim=${my.width}"],
    ["+my={width: 96}", "model.dim=${my.width}"],
    ["+sizes.large=384", "size=large"], ["size=tiny"], ["size=3"], ["sizes.small=96"], ["~sizes.small"], ["sizes=3"],
    ["data.speed=fast"], ["~data.speed"], ["callbacks.mine.speed=fast"], ["~callbacks.mine.speed"], ["~callbacks.mine"],
    ["~logger.tensorboard"], ["~recipe.augment.affine"], ["recipe={}"], ["allow_change=sort([seed,name])"],
    ["allow_change=${oc.decode:'[seed]'}"],
])
def test_keys_of_the_user_are_added_changed_and_removed_as_in_hydra(own, capsys, overrides):
    (own / "variables.yaml").write_text(yaml.safe_dump({
        "defaults": ["train", "_self_"], "sizes": {"small": 64}, "size": 1, "model": {"dim": "${sizes[${size}]}"},
        "data": {"speed": 2}, "callbacks": {"mine": {"_target_": "pytorch_lightning.Callback", "speed": 2}}}))
    with initialize_config_dir(version_base="1.3", config_dir=str(own)):
        expected = OmegaConf.to_container(hydra_compose(
            "variables", overrides=[f"hydra.searchpath=['{config_folder()}']", *overrides]))
    assert printed(capsys, "--config-dir", own, "-cn", "variables", "--cfg", "job", *overrides) == expected


@pytest.mark.parametrize(("override", "text"), [
    ("+width=96", "unknown key width; did you mean model.dim?"),
    ("+num_classes=10", "did you mean model.num_classes?"),  # ${data.num_classes} is another key
    ("sizes.large=3", "unknown key sizes.large; write +sizes.large=3 for a new key of sizes"),
    ("~callbacks.monitor", "keys cannot be removed"),
    ("~recipe.optimizer", "keys cannot be removed"),
    ("data.image_size=big", "must be"),
    ("=3", "has no key before ="),
])
def test_keys_of_the_project_are_checked_beside_those_of_the_user(own, capsys, override, text):
    (own / "variables.yaml").write_text(yaml.safe_dump({
        "defaults": ["train", "_self_"], "sizes": {"small": 64}, "data": {"image_size": 8}}))
    assert main(["--config-dir", str(own), "-cn", "variables", "--cfg", "job", override]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(("content", "text"), [("a: [1\nb: 2", "broken.yaml"), ("- 1", "model=[1]: must be a node")])
def test_a_broken_file_of_the_user_is_one_sentence(own, capsys, content, text):
    (own / "model" / "broken.yaml").write_text(content)
    assert main(["--config-dir", str(own), "model=broken"]) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1 and text in printed, printed


@pytest.mark.parametrize("override", ["~data", "~logger=default", "~callbacks", "~trainer", "~model"])
def test_a_run_needs_its_groups(override, capsys):
    assert main([override]) == 2
    assert f"the config has no {override.strip('~').partition('=')[0]};" in capsys.readouterr().err


@pytest.mark.parametrize(("overrides", "texts"), [
    (["experiment=[digits,mnits]"], ["experiment=mnits: no such experiment", "did you mean mnist?"]),
    (["experiment=../data/digits"], ["no such experiment"]),
    (["data=mine"], ["no such data", "folder"]),
    (["--config-dir", "my conf", "data=mien"], ["did you mean mine?"]),
    (["--config-dir", "nowhere", "data=digits"], ["there is no folder", "nowhere"]),
    (["--config-name", "onw"], ["onw"]),
    (["hydra.searchpath=my"], ["hydra.searchpath=my: must be a list, such as hydra.searchpath=['my']"]),
    (["model.dim=${oc.env:NOWHERE}"], ["model.dim: ", "Environment variable 'NOWHERE' not found"]),
    (["model.dim=${nowhere}"], ["model.dim: Interpolation key 'nowhere' not found"]),
    (["hydra.jobs.num=1"], ["hydra.jobs"]),
    (["hydra/launcher=jolib"], ["hydra/launcher/jolib", "basic"]),
    (["hydra/launcher=submitit_slurm"], ["is not installed: pip install hydra-submitit-launcher"]),
    (["-m", "hydra/sweeper=nevergrad"], ["is not installed: pip install hydra-nevergrad-sweeper"]),
    (["--config-path", "x"], ["--config-dir"]),
    (["--experimental-rerun", "config.pickle"], ["--experimental-rerun", "resume=RUN"]),
    (["--package", "model"], ["--package model", "--cfg job"]),
    (["--config-dir"], ["--config-dir"]),
    (["--config-dir", "my conf", "-cn", "nope"], ["there is no nope.yaml in", "my conf; --config-dir FOLDER"]),
    (["+experiment=digits"], ["experiment is chosen already; write experiment=digits without +"]),
    (["-m", "recipe.optimizer.lr=interval(0.1,1)"], ["interval(...) needs a sweeper", "hydra/sweeper=optuna"]),
    (["hydra/job_logging=colorlog"], ["is not installed: pip install hydra-colorlog"]),
    (["hydra.sweeper.params={seed: '0,1'}"], ["hydra.sweeper.params from a config", "as in -m seed=0,1"]),
    (["--resolve"], ["add --cfg job"]),
    (["--cfg", "jobs"], ["invalid choice: 'jobs'"]),
    (["name=${data.nam}"], ["Interpolation key 'data.nam' not found; did you mean data.name?"]),
    (["lr=0.1"], ["recipe.optimizer.lr"]),
])
def test_wrong_options_are_one_sentence(own, capsys, overrides, texts):
    assert main(overrides) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1 and all(text in printed for text in texts), printed


@pytest.mark.parametrize(("content", "text"), [
    ({"override model": "flat"}, "write override /model with a slash"),
    ({"override /model": "flat"}, "begin the file with the line # @package _global_"),
])
def test_the_header_and_the_slash_of_an_experiment_are_named(own, capsys, content, text):
    (own / "experiment").mkdir()
    header = "" if "package" in text else "# @package _global_\n"
    (own / "experiment" / "first.yaml").write_text(header + yaml.safe_dump({"defaults": [content]}))
    assert main(["--config-dir", str(own), "experiment=first", "--cfg", "job"]) == 2
    assert text in capsys.readouterr().err


def test_a_callback_of_a_file_is_switched_off(own, capsys):
    (own / "callbacks").mkdir()
    node = {"_target_": "pytorch_lightning.Callback"}
    (own / "callbacks" / "more.yaml").write_text(yaml.safe_dump({"defaults": ["default", "_self_"], "mine": node}))
    options = ["--config-dir", str(own), "callbacks=more"]
    chosen = resolve(compose([f"hydra.searchpath=['{own}']", "callbacks=more"]))["callbacks"]
    assert len(own_callbacks(chosen)) == 1 and own_callbacks({**chosen, "mine": None}) == []
    assert main([*options, "~callbacks.mine", "--cfg", "job"]) == 0
    assert "mine" not in yaml.safe_load(capsys.readouterr().out)["callbacks"]
    assert main([*options, "~seed"]) == 2 and "write seed=VALUE" in capsys.readouterr().err


def test_a_run_of_user_configs_and_its_resumption(own, capsys, monkeypatch):
    def stops(*_):
        raise KeyboardInterrupt

    overrides = ["--config-dir", str(own), "--config-name", "own", "model=flat", "trainer.accelerator=cpu",
                 "logger=csv", "report=false", "calibrate=none"]
    with monkeypatch.context() as patch, pytest.raises((KeyboardInterrupt, SystemExit)):
        patch.setattr(FollowEpoch, "on_train_epoch_start", stops)
        main([*overrides, "hydra.run.dir=out/a"])
    recorded = yaml.safe_load(Path("out/a/config.yaml").read_text())
    assert recorded["seed"] == 7 and not any("hydra" in override for override in recorded["overrides"])
    text = how_to_resume(RunFolder(Path("out/a"), main=False), [f"hydra.searchpath=['{own}']"])
    assert text.endswith(" -m vit train --config-dir 'my conf' resume=out/a")
    capsys.readouterr()
    assert main(["resume=out/a"]) == 2  # its groups are in no folder that this command names
    printed = capsys.readouterr().err
    assert "data=mine: no such data" in printed and "--config-dir" in printed
    assert main([*overrides, "resume=out/a"]) == 0
    assert json.loads(Path("out/a/metrics.json").read_text())["epochs"] == 1


@pytest.mark.slow
def test_a_run_of_a_primary_config_records_its_data(own):
    primary = yaml.safe_load((own / "own.yaml").read_text())
    values = {"image_size": [8, 12], "cache": "${nope.key}", "more": None}
    (own / "own.yaml").write_text(yaml.safe_dump({**primary, "data": values}))
    overrides = [f"hydra.searchpath=['{own}']", "hydra.job.config_name=own"]
    assert data_of_primary(overrides[:1]) == []
    changed = ["data.image_size=[8, 12]", "data.cache=${nope.key}", "+data.more=null"]
    assert data_of_primary([*overrides, "seed=1"]) == ["data=mine", *changed]
    assert data_of_primary([*overrides, "data=digits", "data.cache=none"]) == [changed[0], changed[2]]
    (own / "own.yaml").write_text(yaml.safe_dump({**primary, "data": {"split_seed": 5}}))
    options = ["--config-dir", str(own)]
    assert main([*options, "-cn", "own", "model=flat", *QUICK, "calibrate=none", "recipe.epochs=1",
                 "trainer.accelerator=cpu", "run_dir=out"]) == 0
    tested = json.loads(Path("out/metrics.json").read_text())["test/accuracy"]
    assert vit_command(["evaluate", "out", *options, "--json", "found.json"]) == 0
    assert json.loads(Path("found.json").read_text())["test/accuracy"] == tested
    shutil.rmtree("out/splits")
    assert vit_command(["evaluate", "out", *options, "--json", "found.json"]) == 0
    assert json.loads(Path("found.json").read_text())["test/accuracy"] == tested


def test_from_python(own, tmp_path):
    run = vit.train([*TINY, f"hydra.searchpath=['{own}']", "recipe=brief", f"run_dir={tmp_path / 'run'}"])
    assert vit.load(run.path).model.config.depth == 1


@pytest.mark.slow
def test_a_comparison_of_user_models(own):
    overrides = ["--config-dir", str(own), "data=mine", "recipe=brief", "trainer.accelerator=cpu", "logger=csv",
                 "report=false", "calibrate=none"]
    runs = 'compare={one: ["model=flat"], two: ["model=flat", "model.mlp_ratio=2"]}'
    assert main([*overrides, runs, "hydra.run.dir=out"]) == 0
    shutil.rmtree("out/two")
    assert main(["resume=out"]) == 2  # without the folder of the model
    assert main([*overrides[:2], "resume=out"]) == 0
    assert vit.load(Path("out/two")).model.config.mlp_ratio == 2


@pytest.mark.parametrize("recorded", ["hydra.searchpath=[file:///x]", "hydra/launcher=joblib", "+hydra.x=1"])
def test_a_run_folder_changes_no_setting_of_hydra(tmp_path, recorded):
    run = vit.train(["data=digits", "model.depth=1", *QUICK, "recipe.epochs=1", f"run_dir={tmp_path}"])
    config = yaml.safe_load((run.path / "config.yaml").read_text())
    (run.path / "config.yaml").write_text(yaml.safe_dump(config | {"overrides": [*config["overrides"], recorded]}))
    forge_manifest(run.path)
    with pytest.raises(ConfigError, match=r"config\.yaml.*hydra"):
        vit.train([f"resume={run.path}", "recipe.epochs=2"])


def swept(folder):
    content = json.loads((folder / "sweep.json").read_text())
    return [(run["settings"], run["exit_code"], Path(run["folder"])) for run in content["runs"]]


@pytest.mark.slow
def test_runs_of_a_sweep_at_the_same_time(own, capfd):
    """A launcher that pickles the job, with options of its own and configs of the user."""
    overrides = ["--config-dir", str(own), "-m", *TINY, "recipe=brief", "seed=1,2"]
    assert main([*overrides, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "hydra.sweep.dir=out"]) == 0
    assert [(settings, code, path) for settings, code, path in swept(Path("out"))] == [
        ({"seed": str(seed)}, 0, Path("out") / str(seed - 1)) for seed in (1, 2)]
    assert {item.name for item in Path("out").iterdir()} == {"0", "1", "multirun.yaml", "sweep.json", "sweep.csv"}


@pytest.fixture
def apart(monkeypatch):
    """The overrides of each run of a sweep, instead of a process that trains."""
    runs = []

    def train_in_new_process(overrides):
        folder = Path(next(each for each in parse(overrides) if each.key_or_group == "run_dir").value())
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "metrics.json").write_text('{"test/accuracy": 0.5, "val/loss": 1}')
        runs.append(overrides)
        return 0

    monkeypatch.setattr("vit.run.multirun.run_of_sweep.train_in_new_process", train_in_new_process)
    return runs


def test_a_sweep_over_a_glob(own, apart, capsys):
    (own / "model" / "flatter.yaml").write_text("defaults: [flat]")
    sweep = ["--config-dir", str(own), "-m", "hydra.sweep.dir=out"]
    assert main([*sweep, "model=glob(fla*)", "data=glob([d*,f*],exclude=[f*,*_strips])"]) == 0
    assert [settings for settings, *_ in swept(Path("out"))] == [{"model": "flat"}, {"model": "flatter"}]
    assert all("data=digits" in overrides for overrides in apart)
    assert main([*sweep, "model=glob(x*)"]) == 2
    assert "model=glob(x*) matches no option (model may be base, bert" in capsys.readouterr().err


def test_a_sweep_over_a_variable_of_the_command(own, apart, capsys):
    """Hydra's sweeper escapes the braces of the interpolation."""
    assert main(["-m", "+width=32,48", "model.dim=${width}", "hydra.sweep.dir=out"]) == 0
    assert [resolve(compose(overrides))["model"]["dim"] for overrides in apart] == [32, 48]


def test_a_shuffled_sweep_has_the_same_order_in_each_command(own, apart):
    """A run then has the same folder in the command that continues the sweep."""
    command = ["--config-dir", str(own), "-m", "seed=shuffle(range(12))"]
    orders = []
    for folder in ("one", "two"):
        assert main([*command, f"hydra.sweep.dir={folder}"]) == 0
        orders.append([settings["seed"] for settings, *_ in swept(Path(folder))])
    assert orders[0] == orders[1] != sorted(orders[0], key=int)


@pytest.mark.parametrize(("command", "chosen"), [
    (["init_from=timm:x,null", "data=folder", "data.root=photos"], [["model=pretrained", "recipe=finetune"], []]),
    (["init_from=null,timm:x", "data=folder", "data.root=photos"], [[], []]),
    (["data=folder,mnist", "data.root=photos", "init_from=timm:x"],
     [["model=pretrained", "recipe=finetune"], ["model=pretrained"]]),
    (["recipe=scratch,three_augment", "recipe.crop.scale=[0.3,1]"], [["recipe=scratch"], ["recipe=three_augment"]]),
    (["model=tiny,timm", "++model.name=resnet18"], [["model=tiny"], ["model=timm"]]),
    (["data=folder", "data.root=my photos (1)", "seed=0,1"], [[], []]),
    (["data=folder", r"data.root=C:\photos\mine", "seed=0,1"], [[], []]),
    (["data=folder", "data.root=${name}/photos", "seed=0,1"], [[], []]),
])
def test_a_run_of_a_sweep_has_the_overrides_that_it_has_alone(command, chosen, own, apart):
    """Also those that `init_from` selects, and those of keys that only the swept options of a group have."""
    for job in sweep(command):
        if root := resolve(compose(job))["data"].get("root"):
            Path(root).mkdir(parents=True, exist_ok=True)
    assert main(["-m", *command, "hydra.sweep.dir=out"]) == 0
    for job, found, options in zip(sweep(command), apart, chosen, strict=True):
        assert [each for each in found if each.startswith(("model=", "recipe="))] == options
        assert resolve(compose(found)) | {"run_dir": None} == resolve(compose(job))


@pytest.mark.parametrize(("settings", "names"), [
    (["hydra.sweep.dir=out", "hydra.sweep.subdir=seed_${seed}"], ["out/seed_1", "out/seed_2"]),
    (["hydra.sweep.dir=out", "hydra.job.chdir=true"], ["out/0", "out/1"]),
    (["hydra.job.chdir=true", "runs=all"], ["all/digits/*", "all/digits/*"]),
    (["hydra.sweep.subdir=${seed}"], ["runs/digits/*_sweep/1", "runs/digits/*_sweep/2"]),
])
def test_the_folders_of_the_runs_of_a_sweep(settings, names, apart, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["-m", "seed=1,2", *settings]) == 0
    sweeps = [file.parent for file in tmp_path.rglob("sweep.json")]
    folders = [tmp_path / path for _, _, path in swept(*sweeps)]
    assert all((folder / "metrics.json").is_file() and folder.match(name)
               for folder, name in zip(folders, names, strict=True)), folders


@pytest.mark.parametrize("config", [
    pytest.param(None, marks=pytest.mark.slow),
    {"hydra": {"sweep": {"dir": "of_${name}_${now:%Y}", "subdir": "s${seed}"}}},
])
def test_interpolations_in_the_folder_of_a_sweep(config, own, apart):
    """They are resolved once, for the results and all runs, also in a primary config of the user."""
    setting, subdir = ["hydra.sweep.dir=of_${name}_${now:%Y}"], "s" if config else ""
    if config:
        (own / "sweep.yaml").write_text(yaml.safe_dump({"defaults": ["own", "_self_"], **config}))
        setting = ["-cn", "sweep"]
    assert main(["--config-dir", str(own), "-m", "data=mine", "seed=0,1", *setting]) == 0
    folder, = Path().glob("of_*")
    assert folder.name == f"of_mine_{time.strftime('%Y')}"
    assert [path for *_, path in swept(folder)] == [folder / f"{subdir}{number}" for number in (0, 1)]
    assert not Path("runs").exists()


SWEEP = """
import json, pathlib, sys
from vit.run import main
from vit.run.multirun import run_of_sweep

def train_in_new_process(overrides):
    folder = pathlib.Path(overrides[-1].removeprefix("run_dir="))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.json").write_text(json.dumps({"test/accuracy": 0.5}))
    return 0

run_of_sweep.train_in_new_process = train_in_new_process
assert main(["-m", "seed=1,2", "hydra.sweep.dir=out"]) == 0
assert not {"torch", "pytorch_lightning"} & sys.modules.keys()
"""


def test_the_process_of_a_sweep_does_not_import_torch(tmp_path):
    """Only its runs, which are processes of their own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    subprocess.run([sys.executable, "-c", SWEEP], cwd=tmp_path, env=environment, check=True)
    assert [code for _, code, _ in swept(tmp_path / "out")] == [0, 0]


@pytest.mark.slow
def test_a_sweep_that_the_config_names(own, capfd):
    sweep = {"defaults": ["own", "_self_"], "hydra": {"sweeper": {"params": {"seed": "3,4"}}}}
    (own / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    overrides = ["--config-dir", str(own), "-cn", "sweep", "-m", "model=flat", "trainer.accelerator=cpu",
                 "logger=csv", "report=false", "calibrate=none"]
    assert main([*overrides, "hydra.sweep.dir=out"]) == 0
    assert [settings for settings, *_ in swept(Path("out"))] == [{"seed": "3"}, {"seed": "4"}]


@pytest.mark.slow
def test_a_sweep_of_comparisons_has_a_mean_for_each_name(own, capfd):
    file = own / "experiment" / "widths.yaml"
    file.parent.mkdir()
    compared = {"narrow": ["model.dim=16", "model.num_heads=2"], "wide": ["model.dim=32", "model.num_heads=2"]}
    file.write_text("# @package _global_\n" + yaml.safe_dump({"compare": compared}))
    overrides = [*TINY, "recipe=brief", "experiment=widths", "seed=1,2", "hydra.sweep.dir=out"]
    assert main(["--config-dir", str(own), "-m", *overrides]) == 0
    rows = json.loads(Path("out/sweep.json").read_text())["settings"]
    assert [(row["setting"], row["runs"]) for row in rows] == [({"compare": "narrow"}, 2), ({"compare": "wide"}, 2)]
    for name, row in zip(compared, rows, strict=True):
        values = [json.loads(Path("out", run, name, "metrics.json").read_text())["test/accuracy"] for run in "01"]
        assert row["mean"]["test/accuracy"] == pytest.approx(sum(values) / 2)
    assert "compare=narrow" in capfd.readouterr().out


@pytest.mark.slow
def test_a_config_can_select_a_sweep(own, capfd):
    sweep = {"defaults": ["own", "_self_"], "hydra": {"mode": "MULTIRUN"}}
    (own / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    overrides = ["--config-dir", str(own), "-cn", "sweep", "model=flat", "trainer.accelerator=cpu", "logger=csv"]
    assert main([*overrides, "hydra.sweep.dir=out"]) == 0
    assert [code for _, code, _ in swept(Path("out"))] == [0]


@pytest.mark.slow
def test_the_mode_of_the_command_or_a_config_is_that_of_m(own, apart, capsys):
    (own / "experiment").mkdir()
    (own / "experiment" / "many.yaml").write_text("# @package _global_\nhydra: {mode: MULTIRUN}")
    for mode, folder in (("hydra.mode=MULTIRUN", "a"), ("experiment=many", "b")):
        assert main(["--config-dir", str(own), mode, "seed=0,1", f"hydra.sweep.dir={folder}"]) == 0
        assert [settings for settings, *_ in swept(Path(folder))] == [{"seed": "0"}, {"seed": "1"}]
    assert main(["seed=0,1"]) == main(["hydra.mode=RUN", "seed=0,1"]) == 2
    assert "seed=0,1 names several values: add -m" in capsys.readouterr().err


def test_a_file_that_was_changed_since_a_run_began_is_reported_on_resuming(own):
    file = own / "experiment" / "mine.yaml"
    file.parent.mkdir()
    written = ("# @package _global_\nseed: {}\ndata: {{image_size: 8}}\n"
               "recipe: {{epochs: {}, batch_size: auto, clip: 2}}\n")
    file.write_text(written.format(1, 4))
    overrides = [f"hydra.searchpath=['{own}']", "experiment=mine"]
    stored = resolve(compose(overrides))
    stored["recipe"]["batch_size"] = 64  # what auto is for the data of the run
    assert list(changed_files(stored, resolve(compose(overrides)), overrides)) == []
    file.write_text(written.format(2, 5))
    epochs, seed = changed_files(stored, resolve(compose(overrides)), overrides)
    assert seed == f"{file}: seed=2 has no effect on this resumed run, which keeps 1; start a new run for it"
    assert epochs.endswith("resumed run, which keeps 4; add recipe.epochs=5 to the command")
    given = [*overrides, "recipe.epochs=6", "seed=1"]
    assert list(changed_files(stored, resolve(compose(given)), given)) == []


def test_a_sweep_is_continued(own, capfd):
    """In its folder: finished runs are not repeated, a stopped one is resumed, others are started."""
    command = ["--config-dir", str(own), "-m", *TINY, "recipe=brief", "hydra.sweep.dir=out"]
    assert main([*command, "seed=1"]) == 0
    trained = Path("out/0/metrics.csv").stat().st_mtime_ns
    assert main([*command, "seed=1,2"]) == 2
    assert "out/0 is of an earlier sweep; choose another folder, or add resume=auto" in capfd.readouterr().err
    assert main([*command, "seed=1,2", "resume=auto", "logger=default"]) == 0  # loggers may change
    assert [(settings, code) for settings, code, _ in swept(Path("out"))] == [({"seed": "1"}, 0), ({"seed": "2"}, 0)]
    assert Path("out/0/metrics.csv").stat().st_mtime_ns == trained
    assert "out/0 is finished" in capfd.readouterr().out
    assert main([*command, "seed=3", "resume=auto"]) == 2  # another run is in its folder


@pytest.mark.slow
def test_a_sweep_resumes_runs_outside_its_folder(own, capfd):
    """Its table has the results of the runs that it continued."""
    command = ["--config-dir", str(own), "-m", *TINY, "recipe=brief", "seed=1", "resume=auto"]
    assert main(command) == 0
    sweep, = Path("runs/mine").glob("*_sweep")
    (_, _, run), = swept(sweep)
    (run / "metrics.json").unlink()  # as of a run that was stopped
    shutil.rmtree(sweep)
    assert main(command) == 0
    assert [path for *_, path in swept(*Path("runs/mine").glob("*_sweep"))] == [run]
    assert (run / "metrics.json").is_file()


SEARCH = ["hydra/sweeper=optuna", "hydra.sweeper.n_trials=2", "hydra.sweeper.n_jobs=1", "hydra.sweeper.sampler.seed=0",
          "hydra.sweep.dir=out", "recipe.optimizer.lr=0.0,0.01"]


@pytest.mark.parametrize(("monitor", "best"), quick_and_slow(
    [("val/accuracy", "0.01"), ("val/loss", "0.0")], ("val/loss", "0.0")
))
def test_a_search_improves_the_monitored_metric(monitor, best, own, monkeypatch, capfd):
    """Optuna minimizes by default. In place of a training, the metrics are the learning rate, which has two values."""
    def train_in_new_process(overrides):
        values = {each.key_or_group: each.value() for each in parse(overrides)}
        Path(values["run_dir"]).mkdir(parents=True, exist_ok=True)
        Path(values["run_dir"], "metrics.json").write_text(json.dumps({monitor: values["recipe.optimizer.lr"]}))
        return 0

    monkeypatch.setattr("vit.run.multirun.run_of_sweep.train_in_new_process", train_in_new_process)
    assert main(["--config-dir", str(own), "-m", *TINY, "recipe=brief", f"callbacks.monitor={monitor}", *SEARCH]) == 0
    runs = json.loads(Path("out/sweep.json").read_text())["runs"]
    assert {run["settings"]["recipe.optimizer.lr"] for run in runs} == {"0.0", "0.01"}
    assert yaml.safe_load(Path("out/optimization_results.yaml").read_text())["best_value"] == float(best)
    rows = [line for line in capfd.readouterr().out.splitlines() if line.lstrip().startswith("recipe.optimizer.lr=")]
    assert rows[0].split()[0] == f"recipe.optimizer.lr={best}" and len(rows) == 2


@pytest.mark.slow
def test_a_search_trains_its_runs(own, capfd):
    assert main(["--config-dir", str(own), "-m", *TINY, "recipe=brief", *SEARCH]) == 0
    runs = json.loads(Path("out/sweep.json").read_text())["runs"]
    best = max(run["metrics"]["val/accuracy"] for run in runs)
    assert yaml.safe_load(Path("out/optimization_results.yaml").read_text())["best_value"] == best


STUDY = ["hydra.sweeper.storage=sqlite:///lr.db", "hydra.sweeper.study_name=lr"]


@pytest.mark.parametrize("killed", quick_and_slow([False, True], True))
def test_a_stopped_trial_is_repeated_by_the_next_search(killed, own, monkeypatch, capfd):
    """Its run is resumed, and the study has its value. A search that was killed leaves its trial running."""
    commands, codes = [], [143, 0]

    def train_in_new_process(overrides):
        commands.append(overrides)
        folder = Path(next(each for each in parse(overrides) if each.key_or_group == "run_dir").value())
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "metrics.json").write_text('{"val/accuracy": 0.5}')
        return codes.pop(0)

    monkeypatch.setattr("vit.run.multirun.run_of_sweep.train_in_new_process", train_in_new_process)
    search = ["--config-dir", str(own), "-m", *TINY, *SEARCH[:3], *STUDY, "hydra.sweeper.n_trials=1",
              "recipe.optimizer.lr=interval(0.001,0.01)", "resume=auto"]
    with monkeypatch.context() as patch:
        if killed:
            ended = subprocess.Popen([sys.executable, "-c", ""])
            ended.wait()
            patch.setattr("vit.run.multirun.stopped_trials.os.getpid", lambda: ended.pid)
            patch.setattr("vit.run.multirun.stopped_trials.is_stopped", lambda process: False)
        with pytest.raises(SystemExit):
            main(search)
    assert [trial.state.name for trial in trials()] == (["RUNNING"] if killed else ["FAIL", "WAITING"])
    assert main(search) == 0
    assert [trial.state.name for trial in trials()] == ["FAIL", "COMPLETE"]
    first, second = ([each for each in parse(one) if each.key_or_group == "recipe.optimizer.lr"] for one in commands)
    assert first[0].value() == second[0].value() and "Warning" not in capfd.readouterr().err


@pytest.mark.slow
def test_a_search_without_the_trials_of_its_runs_is_a_warning(own, apart, monkeypatch, tmp_path, caplog):
    """As from another working directory, whose `sqlite:///lr.db` is another file."""
    monkeypatch.setattr("vit.run.multirun.stopped_trials.log.propagate", True)
    search = ["--config-dir", str(own), "-m", *TINY, *SEARCH[:3], *STUDY, "hydra.sweeper.n_trials=1",
              f"hydra.sweep.dir={tmp_path / 'out'}", "recipe.optimizer.lr=interval(0.001,0.01)", "resume=auto",
              "callbacks.monitor=val/loss"]
    monkeypatch.setattr("vit.run.multirun.sweeping.next_number", lambda folder: len(apart))  # without config.yaml
    for repeated in (False, False, True):
        if repeated:
            Path("elsewhere").mkdir()
            monkeypatch.chdir("elsewhere")
        assert main(search) == 0
        assert ("the study lr in sqlite:///lr.db has no trials, but" in caplog.text) == repeated


def trials():
    import optuna

    return optuna.load_study(study_name="lr", storage="sqlite:///lr.db").trials


@pytest.mark.slow
def test_a_search_for_the_worst_is_an_error(own, capfd):
    direction = "hydra.sweeper.direction=minimize"
    assert main(["--config-dir", str(own), "-m", *TINY, "recipe=brief", *SEARCH, direction]) == 2
    assert "use hydra.sweeper.direction=maximize" in capfd.readouterr().err and not Path("out").exists()
    sweep = {"defaults": ["own", {"override hydra/sweeper": "optuna"}, "_self_"],
             "hydra": {"sweeper": {"direction": "minimize", "n_trials": 2, "n_jobs": 1}}}
    (own / "search.yaml").write_text(yaml.safe_dump(sweep))
    overrides = ["--config-dir", str(own), "-cn", "search", "-m", *TINY, "recipe=brief", *SEARCH[4:]]
    assert main(overrides) == 2
    assert "use hydra.sweeper.direction=maximize" in capfd.readouterr().err


@pytest.mark.slow
def test_a_sweep_of_several_processes_each(own, tmp_path):
    overrides = [*TINY, "recipe=brief", "strategy=ddp", "trainer.devices=2", "seed=1,2", "hydra.sweep.dir=out"]
    code, _, err = run(["--config-dir", own, "-m", *overrides], tmp_path)
    assert code == 0, err
    assert [code for _, code, _ in swept(Path("out"))] == [0, 0]
    assert vit.load(Path("out/1")).model.config.depth == 1


def test_a_run_that_fails_does_not_end_the_sweep(own, capfd):
    overrides = ["--config-dir", str(own), "-m", *TINY, "recipe=brief", "recipe.batch_size=128,1",
                 "hydra.sweep.dir=out",
                 "recipe.accumulate=2"]
    assert main(overrides) == 2
    assert [code for _, code, _ in swept(Path("out"))] == [0, 2]


@pytest.mark.parametrize(("rate", "numbers"), [([], 2), (["hydra.sweeper.max_failure_rate=1"], 3)])
def test_a_run_that_fails_ends_a_search_as_in_the_manual(rate, numbers, own, apart, monkeypatch, capfd):
    """Unless `max_failure_rate` allows it; the runs until then are in the table."""
    def train_in_new_process(overrides):
        failed = next(o.value() for o in parse(overrides) if o.key_or_group == "run_dir").endswith("1")
        folder = Path("out", "1" if failed else "0")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "metrics.json").write_text('{"val/accuracy": 0.5}')
        return int(failed)

    monkeypatch.setattr("vit.run.multirun.run_of_sweep.train_in_new_process", train_in_new_process)
    assert main(["-m", "hydra/sweeper=optuna", "hydra.sweeper.n_trials=3", "hydra.sweeper.n_jobs=1", *rate,
                 "hydra.sweep.dir=out", "recipe.optimizer.lr=interval(0.001,0.01)"]) == 1
    assert [code for _, code, _ in swept(Path("out"))] == [0, 1, 0][:numbers]
    error = "error: run 2 failed with exit code 1, which ended the search; hydra.sweeper.max_failure_rate=1 goes on"
    assert (error in capfd.readouterr().err) == (not rate)


def test_a_stopped_sweep_has_a_table_of_the_runs_before(apart, tmp_path, monkeypatch, capfd):
    from vit.run.multirun import run_of_sweep

    monkeypatch.chdir(tmp_path)
    before = run_of_sweep.train_in_new_process
    monkeypatch.setattr(run_of_sweep, "train_in_new_process",
                        lambda overrides: 130 if "seed=2" in overrides else before(overrides))
    with pytest.raises(SystemExit, match="130"):
        main(["-m", "seed=0,1,2,3", "hydra.sweep.dir=out"])
    assert [settings for settings, *_ in swept(Path("out"))] == [{"seed": "0"}, {"seed": "1"}]
    printed = capfd.readouterr().out
    assert "50.00 ± 0.00 %" in printed
    assert printed.endswith("Continue the sweep: the same command with hydra.sweep.dir=out resume=auto\n")
    monkeypatch.setattr(run_of_sweep, "train_in_new_process",
                        lambda overrides: 130 if "seed=1" in overrides else before(overrides))
    with pytest.raises(SystemExit, match="130"):  # the table of a single run has its settings too
        main(["-m", "recipe.optimizer.lr=0.01,0.02", "seed=0,1", "hydra.sweep.dir=single"])
    assert [settings for settings, *_ in swept(Path("single"))] == [{"recipe.optimizer.lr": "0.01", "seed": "0"}]
    assert "recipe.optimizer.lr=0.01  " in capfd.readouterr().out
    with pytest.raises(SystemExit, match="130"):
        main(["-m", "seed=1"])
    assert "finished runs are trained again, unless hydra.sweep.dir=DIR names" in capfd.readouterr().out


@pytest.mark.slow
def test_a_search_continues_in_its_folder(own, capfd):
    """Its runs have further numbers, those before are in its table, and equal ones are not repeated."""
    search = ["--config-dir", str(own), "-m", *TINY, "recipe=brief", *SEARCH[:1], "hydra.sweeper.n_trials=1",
              "hydra.sweeper.n_jobs=1", "hydra.sweep.dir=out", "recipe.optimizer.lr=interval(0.001,0.01)",
              "+callbacks.own._target_=pytorch_lightning.callbacks.LambdaCallback"]
    assert main([*search, "hydra.sweeper.sampler.seed=0"]) == 0
    assert main([*search, "hydra.sweeper.sampler.seed=1", "resume=auto"]) == 0
    runs = swept(Path("out"))
    assert [(code, path) for _, code, path in runs] == [(0, Path("out/0")), (0, Path("out/1"))]
    assert runs[0][0].keys() == {"recipe.optimizer.lr"} and runs[0][0] != runs[1][0]
    assert main([*search, "hydra.sweeper.sampler.seed=0", "resume=auto"]) == 0
    assert "out/0 is finished" in capfd.readouterr().out
    assert sorted(swept(Path("out")), key=lambda run: run[2]) == runs and not Path("out/2").exists()


def test_a_search_without_the_monitored_metric_fails(own, apart, capfd):
    assert main(["-m", "hydra/sweeper=optuna", "hydra.sweeper.n_trials=2", "hydra.sweeper.n_jobs=1", "seed=range(0,9)",
                 "hydra.sweep.dir=out"]) == 1
    assert [code for _, code, _ in swept(Path("out"))] == [0]
    assert "error: run 1 has no val/accuracy, which ended the search" in capfd.readouterr().err


def test_a_sweep_in_the_folder_of_one_that_was_killed(own, apart):
    """The records that the killed sweep left are not among its results."""
    Path("out").mkdir()
    record = {"folder": "out/7", "overrides": ["seed=7"], "exit_code": 1, "metrics": {}}
    Path("out/.sweep_run_7.json").write_text(json.dumps(record))
    assert main(["-m", "seed=1,2", "hydra.sweep.dir=out"]) == 0
    assert [settings for settings, *_ in swept(Path("out"))] == [{"seed": "1"}, {"seed": "2"}]
    assert {item.name for item in Path("out").iterdir()} == {"0", "1", "multirun.yaml", "sweep.json", "sweep.csv"}


def test_the_folder_of_a_sweep_in_the_home_folder(own, apart, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert main(["-m", "seed=1,2", "hydra.sweep.dir='~/out'"]) == 0
    folder = tmp_path / "home" / "out"
    assert [path for *_, path in swept(folder)] == [folder / "0", folder / "1"]
    assert not Path("~").exists()


def test_a_sweep_over_runs_and_checkpoints_to_resume(own, monkeypatch):
    """The results are those of the folders of these runs."""
    monkeypatch.setattr("vit.run.multirun.run_of_sweep.train_in_new_process", lambda overrides: 0)
    for name in "ab":
        Path(name, "checkpoints").mkdir(parents=True)
        Path(name, "checkpoints", "last.ckpt").touch()
        Path(name, "metrics.json").write_text('{"test/accuracy": 0.5}')
    assert main(["-m", "resume=a,b/checkpoints/last.ckpt", "hydra.sweep.dir=out"]) == 0
    runs = json.loads(Path("out/sweep.json").read_text())["runs"]
    assert [(run["folder"], run["metrics"]) for run in runs] == [(name, {"test/accuracy": 0.5}) for name in "ab"]


def test_the_sweeper_that_a_config_selects_searches(own, apart, capfd):
    """The table of the search is that of the monitored metric, and a wrong direction is an error before the start."""
    sweeper = {"direction": "maximize", "n_trials": 2, "n_jobs": 1, "params": {"seed": "range(0,9)"}}
    (own / "experiment").mkdir()
    for name, change in (("search", {}), ("worst", {"direction": "minimize"})):
        config = {"defaults": [{"override /hydra/sweeper": "optuna"}], "hydra": {"sweeper": {**sweeper, **change}}}
        (own / "experiment" / f"{name}.yaml").write_text("# @package _global_\n" + yaml.safe_dump(config))
    command = ["--config-dir", str(own), "-m", "callbacks.monitor=val/loss"]
    assert main([*command, "experiment=search"]) == 2 and not apart
    assert "use hydra.sweeper.direction=minimize" in capfd.readouterr().err
    assert main([*command, "experiment=worst"]) == 0 and len(apart) == 2
    assert [code for _, code, _ in swept(*Path("runs/digits").glob("*_sweep"))] == [0, 0]


def test_shell_completion_and_info(own, tmp_path):
    train = Path(vit.__file__).parents[1] / "train.py"
    environment = {**os.environ, "COMP_LINE": "python train.py data=di", "COMP_POINT": "80"}
    done = subprocess.run([sys.executable, train, "--shell-completion", "query=bash"], env=environment,
                          capture_output=True, text=True)
    assert {"data=digits", "data=digit_strips"} <= set(done.stdout.split()), done.stderr
    done = subprocess.run([sys.executable, train, "--info", "searchpath", "--config-dir", own], capture_output=True,
                          text=True)
    assert str(own) in done.stdout.replace("\n", ""), done.stdout + done.stderr


def test_hydra_completes_scripts_only(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/vit", "train"])
    assert main(["--shell-completion", "install=bash"]) == 2
    printed = capsys.readouterr()
    assert "use python train.py --shell-completion" in printed.err and not printed.out


@pytest.mark.parametrize("options", [["--info", "config"], ["--cfg", "job"], ["--help"], ["--hydra-help"]])
def test_printing_into_a_closed_pipe_is_silent(options):
    """As in `python train.py --info config | head -3`."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, ROOT / "train.py", *options], stdout=writing, stderr=subprocess.PIPE,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})
    os.close(writing)
    assert done.stderr == b"" and done.returncode == ("--hydra-help" not in options)  # after it Hydra exits itself


def test_composing_does_not_change_a_running_program_of_hydra():
    with initialize_config_dir(version_base="1.3", config_dir=str(config_folder())):
        compose(["data=digits"])
        assert hydra_compose("train", overrides=["seed=5"]).seed == 5
