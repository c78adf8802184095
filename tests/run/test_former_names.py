"""Former names of keys and options keep working in commands, users' configs, run folders, checkpoints and plans."""

import copy
import json
import shutil

import pytest
import torch
import yaml

import vit
from tests.run.conftest import QUICK, write_stories
from tests.run.test_resume import StopAfter, assert_same
from vit.cli import main
from vit.run.config import groups
from vit.run.config import overrides as override_module
from vit.run.config.composing import compose, resolve, stated
from vit.run.config.groups import FORMER_OPTIONS, options
from vit.run.config.hydra_interface import with_config_dir
from vit.run.config.overrides import FORMER_KEYS
from vit.run.records.reading import read_config

NEWER = {  # node -> keys that the runs of the first versions did not have
    "": ("allow_change", "on_leakage", "calibrate", "report", "compile_mode"),
    "callbacks": ("start_margin", "film"),
    "data": ("fold", "group", "corrections", "leave_out", "pack", "max_patches", "min_patches", "decoder", "resampling",
             "cache", "cache_side", "cache_limit", "cache_dir"),
    "finetune": ("head_init", "batch_norm"),
    "recipe": ("drop_last", "progressive", "repeats"),
    "trainer": ("timeout", "deterministic"),
}
FORMER = [(group, former, name) for group, names in FORMER_OPTIONS.items() for former, name in names.items()]
NEEDED = {"data": ["data.root=x"]}


@pytest.fixture
def log_lines(caplog, monkeypatch):
    monkeypatch.setattr(groups.log, "propagate", True)
    groups.log_former_name.cache_clear()
    return caplog


@pytest.mark.parametrize(("group", "former", "name"), FORMER)
def test_a_former_option_is_its_new_one_and_logs_it_once(log_lines, group, former, name):
    needed = NEEDED.get(group, [])
    assert resolve(compose([f"{group}={former}", *needed])) == resolve(compose([f"{group}={name}", *needed]))
    compose([f"{group}={former}", *needed])
    assert log_lines.text.count(f"{group}={former} is the former name of {group}={name}") == 1
    assert former not in options(group) and name in options(group)


def test_a_former_option_works_in_a_defaults_list_of_the_user(log_lines, tmp_path):
    (tmp_path / "experiment").mkdir()
    content = {"defaults": [{"override /data": "digit_strips"}, {"override /model": "reader"}], "seed": 5}
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\n" + yaml.safe_dump(content))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "strips.yaml").write_text("defaults: [_lines, _self_]\n_target_: vit.data.digit_strips\n")
    config = compose(with_config_dir(["experiment=mine"], tmp_path))
    assert (config.seed, config.model) == (5, compose(["data=digit_strips"]).model)
    assert "model=reader is the former name of model=image_to_text" in log_lines.text
    own = compose(with_config_dir(["data=strips", "name=x"], tmp_path))
    assert own.data.preprocessing == compose(["data=image_text", "data.path=x"]).data.preprocessing


@pytest.fixture
def log_keys(caplog, monkeypatch):
    monkeypatch.setattr(override_module.log, "propagate", True)
    override_module.log_former_key.cache_clear()
    return caplog


@pytest.mark.parametrize("former", FORMER_KEYS)
def test_a_former_key_is_its_new_one_and_logs_it_once(log_keys, former):
    values = {"data.masked": 0.2, "finetune.always": "[head]", "finetune.trains": "head"}
    name, value = FORMER_KEYS[former], values.get(former, 3)
    data = ["data=corpus"] if former == "data.masked" else ["data=digit_strips"]
    assert resolve(compose([*data, f"{former}={value}"])) == resolve(compose([*data, f"{name}={value}"]))
    compose([*data, f"{former}={value}"])
    assert log_keys.text.count(f"{former} is the former name of {name}") == 1
    assert stated([f"{former}={value}"], former.rpartition(".")[0]) == {name.rpartition(".")[2]}


def test_a_former_key_works_in_an_experiment_of_the_user(log_keys, tmp_path):
    (tmp_path / "experiment").mkdir()
    content = {"defaults": [{"override /data": "digit_strips"}]}
    (tmp_path / "experiment" / "mine.yaml").write_text(
        "# @package _global_\n" + yaml.safe_dump(content) + "task: {decode: {views: 3}}\n")
    own = resolve(compose(with_config_dir(["experiment=mine"], tmp_path)))
    assert own["task"] == resolve(compose(["data=digit_strips", "task.decode.tta=3"]))["task"]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that was stopped, with the key `words` of earlier versions, and without newer keys, in its config and
    checkpoints.
    """
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.MonkeyPatch.context() as patch:
        StopAfter(patch, 12)
        with pytest.raises(SystemExit):
            vit.train([*QUICK, "recipe.batch_size=128", "model.depth=1", f"run_dir={folder}"])
    config = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "config.yaml").write_text(yaml.safe_dump(former(config), sort_keys=False))
    for file in (folder / "checkpoints").glob("*.ckpt"):
        content = torch.load(file, weights_only=True)
        torch.save(content | {"config": former(content["config"])}, file)
    for manifest in folder.rglob("manifest.json"):  # which runs of those versions did not have
        manifest.unlink()
    return folder


def former(config):
    config = copy.deepcopy(config)
    for node, keys in NEWER.items():
        for key in keys:
            (config[node] if node else config).pop(key, None)
    if "overrides" in config:  # best.ckpt may be a link to a file that has been changed already
        config["words"] = config.pop("overrides")
    return config


@pytest.fixture
def run(stopped, tmp_path):
    return shutil.copytree(stopped, tmp_path / "run")


def test_a_config_with_the_former_key_is_read(run):
    overrides = read_config(run)["overrides"]
    assert "recipe.epochs=2" in overrides
    (run / "config.yaml").unlink()
    assert read_config(run)["overrides"] == overrides


def test_a_run_with_the_former_key_is_resumed(run):
    finished = vit.train([f"resume={run}"])
    assert finished.metrics["epochs"] == 2
    assert yaml.safe_load((run / "config.yaml").read_text())["overrides"] == read_config(run)["overrides"] != []


def test_texts_whose_checkpoint_has_no_tokenizers_are_resumed(tmp_path, capsys, monkeypatch):
    texts = [f"the {one} and the {other},{'ab'[one == other]}" for one in ("cat", "dog", "emu") for other in
             ("cat", "hen", "emu")]
    (tmp_path / "texts.csv").write_text("\n".join(["text,label", *texts * 10]))
    overrides = ["data=text_table", f"data.path={tmp_path / 'texts.csv'}", "data.tokenizer.vocab_size=270", *QUICK,
                 "recipe.batch_size=8", "model.dim=16", "model.num_heads=2", "model.depth=1"]
    whole = vit.train([*overrides, f"run_dir={tmp_path / 'whole'}"]).path
    with monkeypatch.context() as patch:
        StopAfter(patch, 12)
        with pytest.raises(SystemExit):
            vit.train([*overrides, f"run_dir={tmp_path / 'run'}"])
    for file in (tmp_path / "run" / "checkpoints").glob("*.ckpt"):  # as the first versions saved it
        content = torch.load(file, weights_only=True)
        config = {key: value for key, value in content["config"].items() if key not in ("tokenizers", "use")}
        torch.save(content | {"config": config}, file)
    for manifest in (tmp_path / "run").rglob("manifest.json"):
        manifest.unlink()
    assert_same(whole, vit.train([f"resume={tmp_path / 'run'}"]).path)
    printed = " ".join(capsys.readouterr().out.split())
    assert "last.ckpt has no tokenizers; they are trained again on the training texts" in printed


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A masked pre-training that was stopped in its second epoch, as the first versions recorded it: without weights of
    the losses, of which val/loss had that of masked tokens only, and with keys that are gone.
    """
    folder = tmp_path_factory.mktemp("bert")
    with pytest.MonkeyPatch.context() as patch:
        StopAfter(patch, 130)
        with pytest.raises(SystemExit):
            vit.train(["data=corpus", write_stories(folder), *QUICK, "model.dim=16", "model.num_heads=2", "seed=3",
                       "model.depth=1", "recipe.batch_size=16", f"run_dir={folder / 'run'}"])
    change_records(folder / "run", with_former_task)
    return folder / "run"


def change_records(run, change):
    """Replace the config of a run and those in its checkpoints, whose best score is made unbeatable."""
    config = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump(change(config), sort_keys=False))
    for file in {each.resolve() for each in (run / "checkpoints").glob("*.ckpt")}:
        content = torch.load(file, weights_only=True)
        content["callbacks"]["Checkpoints"] |= {"best_score": 0.01, "best_loss": 0.01}
        torch.save(content | {"config": change(content["config"])}, file)
    for manifest in run.rglob("manifest.json"):
        manifest.unlink()


def with_former_task(config):
    task = {"name": "masked_text", "monitor": "val/loss", "mode": "min"}
    former_overrides = [*config["overrides"], "recipe.word_dropout=0.3", "task.mode=min"]
    recipe = {**config["recipe"], "word_dropout": 0.3}
    return {**config, "task": task, "recipe": recipe, "overrides": former_overrides}


def test_keys_that_are_gone_and_scores_of_another_definition_are_named_on_resuming(bert, tmp_path, capsys):
    run = shutil.copytree(bert, tmp_path / "run")
    finished = vit.train([f"resume={run}"])
    assert finished.metrics["best_epoch"] == 2 and finished.metrics["val/loss"] > 0.01
    log = (run / "log.txt").read_text()
    assert log.count("the run has keys of an earlier version without effect in this one: recipe.word_dropout=0.3 (the "
                     "decoder is trained on all target tokens); task.mode=min (whether higher or lower is better ") == 1
    assert log.count("val/loss of the epochs so far is not comparable with that of the next ones (task.pair_loss from "
                     "0.0 to 1.0); the best epoch is chosen among those that follow") == 1
    assert read_config(run)["task"]["pair_loss"] == 1.0
    capsys.readouterr()
    config = json.loads((run / "model" / "config.json").read_text())
    (run / "model" / "config.json").write_text(json.dumps(without_keys(config, {"seed", "config_sha256"})))
    for model, same in ((run, True), (shutil.copytree(run / "model", tmp_path / "model"), False)):
        assert main(["evaluate", str(model), "--json", str(tmp_path / "again.json")]) == 0
        again = json.loads((tmp_path / "again.json").read_text())
        assert (again["test/loss"] == finished.metrics["test/loss"]) is same
        assert ("those of seed 0 are evaluated" in capsys.readouterr().err) is not same


def without_keys(config, keys):
    """A config without some keys of any of its nodes."""
    if not isinstance(config, dict):
        return config
    return {key: without_keys(value, keys) for key, value in config.items() if key not in keys}


def test_scores_that_are_comparable_are_kept_on_resuming(bert, tmp_path):
    run = shutil.copytree(bert, tmp_path / "run")
    change_records(run, lambda config: {**config, "task": {**config["task"], "token_loss": 1.0, "pair_loss": 1.0}})
    other = shutil.copytree(run, tmp_path / "other")
    assert vit.train([f"resume={run}"]).metrics["best_epoch"] == 1
    assert "not comparable" not in (run / "log.txt").read_text()
    vit.train([f"resume={other}", "callbacks.monitor=val/token_accuracy", "allow_change=callbacks.monitor"])
    assert "not comparable with that of the next ones (callbacks.monitor from" in (other / "log.txt").read_text()


def test_scores_of_another_definition_are_kept_where_no_epoch_follows(bert, tmp_path):
    run = shutil.copytree(bert, tmp_path / "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vit.run.finish.finish", lambda *_: {})
        vit.train([f"resume={run}", "recipe.epochs=3"])  # without the test and the model, which a stop prevented
    (run / "metrics.json").unlink(missing_ok=True)
    change_records(run, lambda config: with_former_task(config) | {"overrides": config["overrides"]})
    assert vit.train([f"resume={run}"]).metrics["val/loss"] == 0.01


def test_resume_auto_finds_a_run_with_the_former_key(stopped, tmp_path):
    shutil.copytree(stopped, tmp_path / "runs" / "digits" / "2026-01-01_00-00-00")
    overrides = [*QUICK, "recipe.batch_size=128", "model.depth=1", f"runs={tmp_path / 'runs'}", "resume=auto"]
    assert vit.train(overrides).path.name == "2026-01-01_00-00-00"


def test_a_comparison_with_the_former_key_is_resumed(tmp_path):
    runs = {name: [*QUICK, "recipe.epochs=1", f"model.depth={depth}", f"name=x/{name}"] for name, depth in
            (("a", 1), ("b", 2))}
    plan = {"name": "x", "words": list(QUICK), "runs": runs}
    (tmp_path / "comparison.yaml").write_text(yaml.safe_dump(plan))
    vit.train([f"resume={tmp_path}"])
    assert json.loads((tmp_path / "comparison.json").read_text())["overrides"] == QUICK
