"""Newer Python versions, as far as an older one can imitate them."""

import argparse

import pytest
import yaml
from hydra._internal.utils import get_args_parser

from vit.run import main


@pytest.fixture
def checked_help(monkeypatch):
    """The argparse of Python 3.14, which checks the help of an option when it is declared."""
    if hasattr(argparse.ArgumentParser, "_check_help"):
        return
    declare = argparse._ActionsContainer.add_argument

    def check_help(parser, action):
        if "%" in (action.help or ""):
            parser._get_formatter()._expand_help(action)

    def add_argument(parser, *names, **options):
        action = declare(parser, *names, **options)
        parser._check_help(action)
        return action

    monkeypatch.setattr(argparse._ActionsContainer, "_check_help", check_help, raising=False)
    monkeypatch.setattr(argparse._ActionsContainer, "add_argument", add_argument)


def test_hydra_declares_its_options(checked_help, capsys):
    assert main(["--cfg", "job", "seed=3"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["seed"] == 3
    with pytest.raises(SystemExit) as end:
        main(["--hydra-help"])
    assert end.value.code == 0
    assert "--shell-completion" in capsys.readouterr().out
    assert "add_argument" not in vars(argparse.ArgumentParser)
    with pytest.raises((TypeError, ValueError)):  # argparse as before, outside `deferred_option_help`
        get_args_parser()
