"""The command of a run in `environment.json` is the one that was typed, without the folder of the program."""

import pytest

from vit.run.records.environment import started_as


@pytest.mark.parametrize(("argv", "command"), [
    (["/home/me/vit/__main__.py", "--config-name=train", "seed=1"], "python -m vit train seed=1"),
    (["/home/me/vit/__main__.py", "--config-name=own", "seed=1"], "python -m vit train --config-name=own seed=1"),
    (["/home/me/bin/vit", "--config-name=train", "data.root=a b"], "vit train 'data.root=a b'"),
    (["/home/me/vit/__main__.py", "cross-validate", "folds=2"], "python -m vit cross-validate folds=2"),
])
def test_the_command_of_the_module_and_of_the_script(argv, command):
    assert started_as(argv) == command


def test_another_program_is_named_as_it_was_started():
    assert started_as(["train.py", "--config-name=train", "seed=1"]).endswith(" train.py seed=1")
