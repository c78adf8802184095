"""A config file of the user that lacks keys is an error of one line, before the data is read."""

import pytest

import vit
from vit.run.config.composing import ConfigError, compose, resolve
from vit.run.config.hydra_interface import with_config_dir
from vit.run.config.needed_keys import TOP_LEVEL, check_complete, missing_top_level_keys
from vit.run.config.without_effect import without_effect

DATA = "_target_: vit.data.image_folder\nname: mine\nroot: x\nworkers: 0\n"


@pytest.mark.parametrize("overrides, texts", [
    (["recipe=mine"], ["recipe has no accumulate, average_epochs, batch_size", "list scratch before _self_"]),
    (["callbacks=mine"], ["callbacks has no monitor, mode, every_steps", "list default before _self_"]),
    (["data=mine"], ["data has no audit_seconds, balance", "loading before _self_", "task=classification"]),
    (["data=unnamed"], ["data.name", "add that key to the file of its node"]),
    (["model=mine"], ["model has no name", "add it to the node"]),
    (["recipe.crop={ratio:[1,1]}"], ["recipe.crop has no scale"]),
    (["task=seq2seq", "recipe=mine"], ["list sequence before _self_"]),
])
def test_missing_keys(tmp_path, overrides, texts):
    files = {"recipe": "epochs: 2\n", "callbacks": "patience: 2\n", "data": DATA, "model": "dim: 8\n"}
    for group, text in files.items():
        (tmp_path / group).mkdir()
        (tmp_path / group / "mine.yaml").write_text(text)
    (tmp_path / "data/unnamed.yaml").write_text("workers: 0\n")
    config = compose(with_config_dir(overrides, tmp_path))
    with pytest.raises(ConfigError) as error:
        check_complete(resolve(config))
    for text in texts:
        assert text in str(error.value)


def test_comet_without_a_connection_is_named():
    """Lightning disables its experiment."""
    overrides = ["++logger.comet._target_=pytorch_lightning.loggers.CometLogger", "++logger.comet.online=false"]
    assert without_effect(resolve(compose(overrides)), overrides) == (
        "logger.comet.online=false: Lightning's CometLogger then records nothing",)
    overrides[1] = "++logger.comet.online=true"
    assert without_effect(resolve(compose(overrides)), overrides) == ()


@pytest.mark.parametrize("resume", [[], ["resume=auto"]])
def test_a_trainer_without_its_keys_is_an_error_of_a_new_run(tmp_path, resume):
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer/mine.yaml").write_text("devices: 1\n")
    with pytest.raises(ConfigError, match="trainer has no accelerator, num_nodes"):
        vit.train(with_config_dir(["trainer=mine", f"runs={tmp_path}", *resume], tmp_path))


def test_an_unknown_option_of_a_trainer_of_the_user_is_named(tmp_path):
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer/mine.yaml").write_text("defaults: [default, _self_]\nlimit_train_batches: 2\n")
    config = resolve(compose(with_config_dir(["trainer=mine"], tmp_path)))
    assert without_effect(config, ["trainer=mine"]) == (
        "trainer.limit_train_batches=2 has no effect: the trainer has no such option; did you mean debug?",)
    assert without_effect(resolve(compose([])), []) == ()


def test_trackers_get_no_checkpoints():
    """Those of Lightning wait for the checkpoints of its own callback."""
    overrides = ["logger=[default,wandb]", "+logger.wandb.log_model=all"]
    assert without_effect(resolve(compose(overrides)), overrides) == (
        "logger.wandb.log_model=all has no effect: checkpoints and model stay in the run folder",)
    overrides[1] = "+logger.wandb.log_model=false"
    assert without_effect(resolve(compose(overrides)), overrides) == ()


@pytest.mark.parametrize("resume", [[], ["resume=auto"]])
def test_new_runs_are_checked_before_the_data_is_read(tmp_path, resume):
    """Also with resume=auto where there is no run to resume; a resumed run has a config of its own."""
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe/mine.yaml").write_text("epochs: 2\n")
    with pytest.raises(ConfigError, match="recipe has no accumulate"):
        vit.train(with_config_dir(["recipe=mine", f"runs={tmp_path}", "data=folder", "data.root=.", *resume],
                                  tmp_path))


@pytest.mark.parametrize("overrides, name", [(["recipe=latin"], "recipe/latin.yaml"),
                                             (["hydra.job.config_name=latin"], "latin.yaml")])
def test_files_that_are_not_utf8_are_named(tmp_path, overrides, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(b"defaults: [train]\nname: caf\xe9\n")
    with pytest.raises(ConfigError, match=f"{name}: is not UTF-8 text at byte 27; save it as UTF-8"):
        compose(with_config_dir(overrides, tmp_path))


def test_data_of_another_task():
    """The error that names both kinds of data is more helpful."""
    config = resolve(compose(["data=multi30k", "data.root=x", "task=classification", "recipe=scratch", "model=small"]))
    check_complete(config)


def test_keys_of_the_top_level(tmp_path):
    """A primary config that does not list train lacks most of them; this is checked before values are resolved."""
    (tmp_path / "alone.yaml").write_text("defaults: [_self_, task: classification]\nseed: 3\nname: ${unknown}\n")
    config = compose(with_config_dir(["hydra.job.config_name=alone"], tmp_path))
    with pytest.raises(ConfigError, match="the config has no model, recipe, .*; do not remove them with ~, and list"):
        resolve(config)
    assert missing_top_level_keys([key for key in TOP_LEVEL if key != "seed"]).startswith(
        "the config has no seed; do not remove it with ~")
