"""The config loader: what Hydra's own loader composes, from a copy of an earlier composition."""

import subprocess
import sys
from pathlib import Path

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf

from vit.run.config.hydra_interface import Loader, config_folder, hydra_over


@pytest.fixture(scope="module")
def loaders():
    """The loader and Hydra's, over conf/."""
    path = hydra_over(config_folder()).config_loader.get_search_path()
    return Loader(path), ConfigLoaderImpl(path)


def load(loader, overrides, mode=RunMode.RUN):
    return loader.load_configuration("train", overrides, run_mode=mode, from_shell=False)


def nodes(node):
    """Every node with its key, type and flags, such as that of a struct."""
    yield node._get_full_key(""), type(node), node._metadata.flags, node._metadata.object_type
    if isinstance(node, DictConfig | ListConfig) and not node._is_none() and not node._is_interpolation():
        for key in node if isinstance(node, DictConfig) else range(len(node)):
            yield from nodes(node._get_node(key))


@pytest.mark.parametrize("overrides", [
    [],
    ["model=small", "recipe.epochs=3", "+recipe.optimizer.options.betas=[0.9,0.95]"],
    ["seed=3", "data=digits", "++model.option=4", "run_dir='a b'", "name=${data.name}-${now:%Y}"],
    ["recipe.augment={}", "task=masked_image", "model=mae", "~seed"],
    ["model={dim:8}"],
    ["experiment=mae", "model.depth=3"],
    ["data=digits", "data=mnist"],
    ["~model"],
    ["hydra.job.name=x", "hydra/job_logging=disabled", "seed=1"],
])
def test_the_config_is_that_of_hydra(loaders, overrides, tmp_path, monkeypatch):
    loader, plain = loaders
    for folder in ("first", "second"):  # the second config is a copy of the first one
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        found, expected = load(loader, overrides), load(plain, overrides)
        assert OmegaConf.to_yaml(found) == OmegaConf.to_yaml(expected)
        assert list(nodes(found)) == list(nodes(expected))
        assert Path(found.hydra.runtime.cwd) == tmp_path / folder
        found.name = "another"  # changes no later copy


@pytest.mark.parametrize("overrides", [
    ["data=none"],
    ["recipe.epoch=3"],
    ["seed=1,2"],
    ["~recipe.none"],
    ["+seed=3"],
    ["data@here=digits"],
    ["+experiment=mae"],
])
def test_errors_are_those_of_hydra(loaders, overrides):
    messages = []
    for loader in loaders:
        with pytest.raises(HydraException) as error:
            load(loader, overrides)
        messages.append(str(error.value))
    assert messages[0] == messages[1]


def test_it_is_imported_without_the_function_that_hydra_1_4_removed():
    code = ("import hydra._internal.config_loader_impl as impl; vars(impl).pop('get_overrides_dirname', None); "
            "import vit.run.config.hydra_interface")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_sweep_is_composed_as_hydra_does(loaders):
    found, expected = (load(loader, ["seed=1,2", "data=digits,mnist"], RunMode.MULTIRUN) for loader in loaders)
    assert OmegaConf.to_yaml(found) == OmegaConf.to_yaml(expected)


def test_a_config_file_that_changes_is_read_again(tmp_path):
    folder = tmp_path / "conf"
    folder.mkdir()
    for text in ("epochs: 3", "epochs: 5"):
        (folder / "train.yaml").write_text(text)
        assert compose_config(folder, ["+seed=1"]).epochs == int(text[-1])


def compose_config(folder, overrides):
    return hydra_over(folder).compose_config("train", overrides, RunMode.RUN, from_shell=False)


def test_a_file_that_vanishes_while_it_is_looked_up(loaders, tmp_path):
    """As while git replaces it; here a link to no file."""
    (tmp_path / "vanished.yaml").symlink_to("nowhere")
    path = ConfigSearchPathImpl()
    path.append("main", f"file://{tmp_path}")
    assert Loader(path).file_versions() == ()
