"""Nothing is executed from a third-party run folder, bundle or comparison; commands may name the user's own classes."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
import yaml

import vit
from tests.run.conftest import SMALL
from vit.bundle import save_bundle
from vit.cli import main
from vit.data import Preprocessing
from vit.data.images.image_cache import SUFFIX
from vit.files.atomic import MANIFEST, Manifest
from vit.files.untrusted import file_sha256
from vit.run import main as train_command
from vit.run.config.composing import ConfigError
from vit.run.config.hydra_interface import config_folder
from vit.run.config.targets import TARGETS, check_overrides, check_stored, targets_of_conf
from vit.run.records.reading import read_config

TINY = [*SMALL, "recipe.epochs=2", "precision=32-true", "logger=csv", "report=false", "debug=true", "model.depth=1"]
SET = "import vit.data\ndef flowers(split_seed=0):\n    return vit.data.digits()\n"
CALLS = {"_target_": "os.mkdir", "path": "marker"}


@pytest.fixture
def flowers(tmp_path, monkeypatch):
    """A data set of the user's own in an importable module."""
    (tmp_path / "flowers_of_mine.py").write_text(SET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "data._target_=flowers_of_mine.flowers"
    sys.modules.pop("flowers_of_mine", None)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A run folder that was stopped before its first checkpoint."""
    folder = vit.train([*TINY, f"run_dir={tmp_path_factory.mktemp('stopped') / 'run'}"]).path
    (folder / "metrics.json").unlink()
    for checkpoint in (folder / "checkpoints").iterdir():
        checkpoint.unlink()
    return folder


@pytest.fixture
def stopped(run_folder, tmp_path, monkeypatch):
    """A copy of it, `run` in the current folder, whose config may be changed."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(run_folder, tmp_path / "run"))


def changed(folder, *keys):
    """Puts a call into the stored config at the given keys; its SHA-256 in the manifest is still that of the run's."""
    config = yaml.safe_load((folder / "config.yaml").read_text())
    node = config
    for key in keys[:-1]:
        node = node.setdefault(key, {}) if isinstance(node, dict) else node[key]
    node[keys[-1]] = CALLS
    (folder / "config.yaml").write_text(yaml.safe_dump(config))


def forge_manifest(folder):
    """Records the changed config in the manifest, as whoever changed it can."""
    manifest = Manifest.read(folder)
    manifest.files["config.yaml"] = {"sha256": file_sha256(folder / "config.yaml")}
    manifest.write()


def test_a_config_that_the_run_did_not_write_is_refused(stopped, capsys):
    changed(stopped, "data")
    assert main(["train", "resume=run"]) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1 and "config.yaml is not the file that this run wrote" in printed, printed
    assert not Path("marker").exists()


@pytest.mark.parametrize("tamper", [forge_manifest, lambda folder: (folder / MANIFEST).unlink()],
                         ids=["forged_manifest", "no_manifest"])
@pytest.mark.parametrize("keys", [
    ("data",), ("recipe", "augment", "blur"), ("recipe", "augment", "affine", "scale"), ("logger", "mine"),
    ("callbacks", "mine"), ("trainer", "devices"), ("model", "a", "b", "c", "d", "e"), ("strategy", "name"),
])
def test_resuming_runs_nothing_that_the_run_folder_names(stopped, keys, tamper, capsys):
    changed(stopped, *keys)
    tamper(stopped)
    assert main(["train", "resume=run"]) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1, printed
    assert "os.mkdir" in printed and "config.yaml" in printed and "_target_=os.mkdir" in printed, printed
    assert not Path("marker").exists()


@pytest.mark.parametrize("value", [
    {"_target_": ["os.mkdir"]}, {"_target_": {"a": "os.mkdir"}}, [[{"_target_": "os.mkdir"}]],
    "${oc.create:'{_target_: os.mkdir, path: marker}'}", {"_target_": "vit.data.digits"},
    {"_target_": "pytorch_lightning.loggers.TensorBoardLogger"},
])
def test_no_other_form_of_a_target_passes(value):
    with pytest.raises(ConfigError, match="x.yaml: recipe.augment"):
        check_stored({"recipe": {"augment": {"a": value}}}, "x.yaml")


def test_a_stored_logger_stays_in_the_run_folder():
    stored = {"logger": {"t": {"_target_": "pytorch_lightning.loggers.TensorBoardLogger", "save_dir": "/home/ann"}}}
    with pytest.raises(ConfigError, match=r"logger.t.save_dir=/home/ann.*add logger.t.save_dir=/home/ann"):
        check_stored(stored, "x.yaml")
    check_stored(stored, "x.yaml", ["+logger.t.save_dir=/home/ann"])


def test_a_stored_logger_with_a_folder_of_one_name():
    stored = {"logger": {"t": {"_target_": "pytorch_lightning.loggers.TensorBoardLogger", "save_dir": "mine"}}}
    with pytest.raises(ConfigError, match=r"logger.t.save_dir=mine.*add logger.t.save_dir=mine"):
        check_stored(stored, "x.yaml")
    check_stored(stored, "x.yaml", ["+logger.t.save_dir=mine"])


def test_a_stored_cache_is_in_a_folder_that_has_one_or_that_the_command_names(tmp_path):
    stored = {"data": {"_target_": "vit.data.digits", "cache": "disk", "cache_dir": str(tmp_path)}}
    with pytest.raises(ConfigError, match=r"x.yaml: data.cache_dir=.* has no cache yet"):
        check_stored(stored, "x.yaml")
    for override in (f"data.cache_dir={tmp_path}", "data.cache_dir=null", "data.cache=memory"):
        check_stored(stored, "x.yaml", [override])
    (tmp_path / f"0{SUFFIX}").touch()
    check_stored(stored, "x.yaml")


def test_everything_that_the_project_names_is_in_the_table():
    assert set(targets_of_conf([config_folder()])) <= frozenset().union(*TARGETS.values())
    for name in frozenset().union(*TARGETS.values()):
        module, _, leaf = name.rpartition(".")
        assert module == "pytorch_lightning.loggers" or hasattr(vit.data, leaf), name


def test_a_data_set_of_the_user_resumes_when_the_command_names_it(flowers, tmp_path):
    vit.train([*TINY, flowers, "run_dir=run"])
    (tmp_path / "run" / "metrics.json").unlink()
    with pytest.raises(ConfigError, match=r"flowers_of_mine.*add data._target_=flowers_of_mine.flowers"):
        vit.train(["resume=run"])
    assert vit.train(["resume=run", flowers]).path == Path("run")


def test_a_module_of_the_user_that_is_not_found(tmp_path, monkeypatch, capsys):
    """Only `python -m vit` searches the current folder, `vit` and `python train.py` that of their file."""
    monkeypatch.chdir(tmp_path)
    for override in ("data._target_=roses.roses", "+callbacks.mine={_target_: roses.Part}"):
        (tmp_path / "roses.py").unlink(missing_ok=True)
        assert train_command([override]) == 2
        assert "(No module named 'roses'); save it in the current folder and start python -m vit" in (
            capsys.readouterr().err)
        (tmp_path / "roses.py").write_text("import no_such_package\n")
        assert train_command([override]) == 2
        assert "roses.py is in the current folder, which only python -m vit searches" in capsys.readouterr().err
    monkeypatch.syspath_prepend(str(tmp_path))
    assert train_command(["data._target_=roses.roses"]) == 2
    assert capsys.readouterr().err.endswith("data._target_=roses.roses: its module imports no_such_package, which is "
                                            "not installed: pip install no_such_package\n")
    (tmp_path / "garden").mkdir()
    (tmp_path / "garden" / "beds.py").write_text("import no_such_package.parts\n")
    assert train_command(["+callbacks.mine={_target_: garden.beds.Part}"]) == 2
    assert "callbacks.mine._target_=garden.beds.Part: its module imports no_such_package, which is not installed: " in (
        capsys.readouterr().err)


@pytest.mark.parametrize("key", ["data", "+callbacks.mine", "+strategy", "+logger.mine", "+recipe.augment.mine"])
@pytest.mark.parametrize(("code", "text"), [
    ("import torch\ndef flowers(:\n", "SyntaxError: invalid syntax (wrong_module.py, line 2)"),
    ("import torch\n\nsize = 1 / 0\n", "ZeroDivisionError: division by zero ({}, line 3)"),
    ("def read():\n    return {}['a']\nread()\n", "KeyError: 'a' ({}, line 3)"),
    ("import sys\nsys.exit('usage: flowers')\n", "SystemExit: usage: flowers ({}, line 2)"),
    ("from json import flowers\n", "flowers' from 'json' ("),
], ids=["syntax", "zero", "function", "exit", "import"])
def test_a_module_of_the_user_that_fails_is_named_with_the_key_and_the_line(tmp_path, monkeypatch, capsys, key, code,
                                                                            text):
    """It is not mistaken for a missing class, and the data is not read before."""
    path = tmp_path / "wrong_module.py"
    path.write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert train_command([*TINY, f"{key}._target_=wrong_module.flowers", f"run_dir={tmp_path / 'run'}"]) == 2
    printed = capsys.readouterr().err
    start = f"error: {key.removeprefix('+')}._target_=wrong_module.flowers: its module cannot be imported: "
    assert start in printed and text.format(path) in printed and "data:" not in printed, printed


def test_a_stop_signal_while_a_module_is_imported_is_no_fault_of_it(tmp_path, monkeypatch):
    (tmp_path / "slow_module.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SystemExit) as stopped:
        train_command([*TINY, "+callbacks.mine._target_=slow_module.Part", f"run_dir={tmp_path / 'run'}"])
    assert stopped.value.code == 143


@pytest.mark.parametrize(("body", "text"), [
    ("pass", "data: wrong_set.flowers returned None; it must return an instance of vit.data.Source"),
    ("return {}['label']", "data: KeyError: 'label' (add --debug for the traceback)"),
    ("raise ValueError('no labels')", "data: no labels"),
])
def test_a_function_of_the_user_that_fails(tmp_path, monkeypatch, body, text):
    (tmp_path / "wrong_set.py").write_text(f"def flowers():\n    {body}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError) as caught:
        vit.train([*TINY, "data._target_=wrong_set.flowers", f"run_dir={tmp_path / 'run'}"])
    sys.modules.pop("wrong_set")
    assert str(caught.value) == text
    assert (caught.value.__cause__ is None) == (body == "pass")  # its traceback has the line of the function


@pytest.mark.slow
def test_a_data_set_of_the_conf_folder_resumes_as_it_is(flowers, tmp_path, monkeypatch):
    conf = tmp_path / "conf"
    shutil.copytree(config_folder(), conf)
    (conf / "data" / "flowers.yaml").write_text("defaults: [digits, _self_]\n_target_: flowers_of_mine.flowers\n")
    for module in ("groups", "hydra_interface", "own_keys", "targets"):
        monkeypatch.setattr(f"vit.run.config.{module}.config_folder", lambda: conf)
    vit.train([*TINY, "data=flowers", "run_dir=run"])
    (tmp_path / "run" / "metrics.json").unlink()
    assert vit.train(["resume=run"]).path == Path("run")


def bundle(folder, data):
    torch.manual_seed(0)
    network = vit.create_model("vit_tiny", image_size=8, patch_size=4, num_classes=10, depth=1)
    return save_bundle(folder / "model", network, [str(i) for i in range(10)], Preprocessing(size=(8, 8)),
                       extra={"data": data})


@pytest.mark.parametrize("command", ["evaluate", "probe"])
@pytest.mark.parametrize("data", [
    ["data=digits", "data._target_=os.mkdir", "+data.path=marker", "+data.mode=0"], ["data._target_=os.getcwd"],
    ["data=digits", "hydra.searchpath=[file:///x]"], ["+recipe.augment.a={_target_: os.mkdir, path: marker}"],
    ["experiment=[../../x]"], ["data@recipe=digits"], "data=digits", [1],
])
def test_a_bundle_runs_nothing_that_it_records(tmp_path, monkeypatch, capsys, command, data):
    monkeypatch.chdir(tmp_path)
    folder = bundle(tmp_path, data)
    assert main([command, str(folder)]) != 0
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1 and str(folder) in printed, printed
    assert not Path("marker").exists()


@pytest.mark.parametrize("override", ["data.name=${oc.env:TOKEN}", "data.repo=ann/${oc.env:TOKEN}",
                                      "data={name: '${oc.env:TOKEN}'}"])
def test_recorded_overrides_do_not_read_the_environment(override):
    check_overrides(["data=folder", "data.root=${oc.env:PHOTOS}/cats", "data.image_size=${data.patch_size}"], "x.json")
    with pytest.raises(ConfigError, match="x.json records the override .*, whose interpolation could read the environ"):
        check_overrides(["data=hub", override], "x.json")


@pytest.mark.parametrize("override", ["trainer.accelerator=cpu", "logger=csv", "data@model=digits", "data={name: a}",
                                      "database=x"])
def test_recorded_overrides_concern_data(override):
    check_overrides(["data=digits", "+data.val=0.2", "experiment=digits"], "config.json")
    with pytest.raises(ConfigError, match="config.json records the override .*, which does not concern data"):
        check_overrides(["data=digits", override], "config.json")


def test_a_recorded_data_set_of_the_user_is_evaluated_when_the_command_names_it(flowers, tmp_path, capsys):
    folder = bundle(tmp_path, [flowers])
    assert main(["evaluate", str(folder)]) == 2
    assert f"add {flowers} to the command" in capsys.readouterr().err
    assert main(["evaluate", str(folder), flowers]) == 0


@pytest.mark.parametrize("runs", [
    {"a": ["data._target_=os.mkdir", "+data.path=marker"]}, {"../a": ["data=digits"]}, {"a": ["run_dir=/tmp/x"]},
    {"a": ["hydra.run.dir=/tmp/x"]}, {"a": "data=digits"}, {"/a": []},
])
def test_a_comparison_runs_nothing_that_it_records(tmp_path, monkeypatch, runs):
    monkeypatch.chdir(tmp_path)
    Path("all").mkdir()
    plan = {"name": "x", "overrides": [], "runs": {**runs, "b": ["data=digits"]}}
    Path("all", "comparison.yaml").write_text(json.dumps(plan))
    with pytest.raises(ConfigError, match=r"comparison\.yaml"):
        vit.train(["resume=all"])
    assert sorted(item.name for item in Path("all").iterdir()) == ["comparison.yaml"]


@pytest.mark.parametrize("text", ["[" * 100_000, "a: " + "{a: " * 5000, "a: &a [1,2]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(12)), "5", "a: [", "\x00"])
def test_a_config_that_would_fill_the_memory_is_an_error_in_one_sentence(tmp_path, text):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"config\.yaml"):
        read_config(tmp_path)


@pytest.mark.parametrize("name", ["checkpoints", "log.txt", "metrics.csv", ".lock", "splits", "model", "deep/er/link"])
def test_a_run_writes_nothing_through_a_link_out_of_its_folder(stopped, tmp_path, name):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "last.ckpt").write_text("precious")
    path = stopped / name
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(mine if "." not in name else mine / "new")
    with pytest.raises(ConfigError, match="is a link to .*mine.*, outside the run folder"):
        vit.train(["resume=run"])
    assert [(item.name, item.read_text()) for item in mine.iterdir()] == [("last.ckpt", "precious")]


@pytest.mark.parametrize("name", ["log.txt", "metrics.csv", ".lock", "config.yaml", "checkpoints/last.ckpt"])
def test_a_run_does_not_wait_for_a_fifo(stopped, name):
    (stopped / name).unlink(missing_ok=True)
    os.mkfifo(stopped / name)
    with pytest.raises(ConfigError, match=Path(name).name):
        vit.train(["resume=run"])


def test_links_inside_a_run_folder_are_fine(stopped):
    (stopped / "latest").symlink_to("checkpoints")
    assert vit.train(["resume=run"]).path == Path("run")


def test_a_callback_of_the_user_is_resumed_when_the_command_names_it(stopped, tmp_path, monkeypatch, capsys):
    (tmp_path / "my_callbacks.py").write_text("import pytorch_lightning as pl\nclass Mine(pl.Callback): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = yaml.safe_load((stopped / "config.yaml").read_text())
    config["callbacks"]["mine"] = {"_target_": "my_callbacks.Mine"}
    (stopped / "config.yaml").write_text(yaml.safe_dump(config))
    forge_manifest(stopped)
    assert train_command(["resume=run"]) == 2
    printed = capsys.readouterr().err
    override = printed.partition("if you trust it, add ")[2].partition(" to the command")[0]
    assert override == "++callbacks.mine._target_=my_callbacks.Mine"
    assert train_command(["resume=run", override]) == 0, capsys.readouterr().err
    sys.modules.pop("my_callbacks", None)
