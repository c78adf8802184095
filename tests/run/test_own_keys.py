"""Misspelled keys in the user's own config files."""

import pytest

from vit.run.config.checked_keys import FREE
from vit.run.config.composing import ConfigError, compose, resolve
from vit.run.config.hydra_interface import config_folder
from vit.run.config.own_keys import keys_of, known_keys, log_once, unknown_keys

GLOBAL, OWN = "# @package _global_\n", "defaults: [scratch, _self_]\n"


@pytest.fixture
def composed(tmp_path):
    """A function that writes a file of the user and composes a config with it."""
    def compose_with(file, text, *overrides):
        path = tmp_path / "my" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        group, _, option = file.removesuffix(".yaml").rpartition("/")
        chosen = f"{group}={option}" if group else f"hydra.job.config_name={option}"
        return resolve(compose([f"hydra.searchpath=[{tmp_path / 'my'}]", chosen, *overrides]))

    log_once.cache_clear()
    return compose_with


@pytest.mark.parametrize(("file", "text", "message"), [
    ("experiment/a.yaml", f"{GLOBAL}sed: 3", "sed=3 has no effect, because there is no such key; did you mean seed?"),
    ("experiment/a.yaml", f"{GLOBAL}learning_rate: 3", "did you mean recipe.optimizer.lr?"),
    ("experiment/a.yaml", f"{GLOBAL}recpie: {{epochs: 3}}", "recpie has no effect, because there is no such key; did "),
    ("own.yaml", "defaults: [train, _self_]\nsed: 3", "did you mean seed?"),
    ("recipe/a.yaml", f"{OWN}epoch: 3", "recipe.epoch=3 has no effect, because there is no such key; did you mean "
                                        "recipe.epochs?"),
    ("recipe/a.yaml", f"{OWN}optimizer: {{learning_rate: 3}}", "did you mean recipe.optimizer.lr?"),
    ("recipe/a.yaml", f"{OWN}seed: 3", "recipe.seed=3 has no effect, because there is no such key; did you mean seed?"),
    ("experiment/a.yaml", "seed: 3", "Hydra places the keys of this file below experiment, where nothing reads them; "
                                     "begin the file with the line '# @package _global_'"),
    ("augment/a.yaml", "flip: null", "below augment, where nothing reads them; begin the file with the line "
                                     "'# @package recipe.augment'"),
])
def test_a_misspelled_key_is_an_error_that_names_the_file(composed, tmp_path, file, text, message):
    with pytest.raises(ConfigError) as error:
        composed(file, text)
    assert str(error.value).startswith(f"{tmp_path / 'my' / file}: ") and message in str(error.value)


def test_keys_that_are_used_or_unlike_all_others_are_no_errors(composed, caplog):
    text = f"{GLOBAL}dims: 32\nnotes: text\nmodel: {{dim: '${{dims}}', own: 1}}\nrecipe: {{mixup: {{more: 1}}}}\n"
    assert composed("experiment/a.yaml", text)["model"]["dim"] == 32
    assert [record.message.partition(": ")[2] for record in caplog.records] == [
        "notes=text has no effect, because there is no such key"]
    assert composed("experiment/a.yaml", f"{GLOBAL}sed: 3", "seed=${sed}")["seed"] == 3


def test_a_key_of_an_earlier_version_is_logged(composed, caplog):
    composed("experiment/a.yaml", f"{GLOBAL}task: {{mode: max}}")
    assert "task.mode=max has no effect, because there is no such key; whether higher or lower is " in caplog.text


def test_an_option_of_another_library_is_named_with_what_does_the_same(composed, caplog):
    composed("experiment/a.yaml", f"{GLOBAL}max_steps: 100")
    assert "max_steps=100 has no effect, because there is no such key; the length of a run is recipe.epo" in caplog.text


def test_a_resumed_run_keeps_its_config(composed, caplog):
    composed("experiment/a.yaml", f"{GLOBAL}sed: 3", "resume=run")
    assert "sed=3 has no effect" in caplog.text


def test_the_keys_of_all_files_of_the_project_are_known():
    folder = config_folder()
    known = known_keys(folder)
    for file in folder.rglob("*.yaml"):
        assert unknown_keys(sorted(keys_of(file, folder)), known, FREE) == [], file


def test_an_option_that_the_command_adds_where_nothing_reads_it_is_logged(caplog):
    log_once.cache_clear()
    compose(["+model@teacher=tiny"])
    assert "+model@teacher=tiny has no effect, because nothing reads a node teacher" in caplog.text
    caplog.clear()
    log_once.cache_clear()
    compose(["+model@teacher=tiny", "model.name=${teacher.name}"])
    compose(["augment@recipe.augment=flip"])
    compose(["+model@callbacks.mine=tiny"])
    assert not caplog.text
