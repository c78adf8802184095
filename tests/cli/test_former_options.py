"""Options under their former names still work, and print the new name. `--views` of predict: test_predicting.py."""

import pytest

from vit.cli import main


@pytest.mark.parametrize(("command", "old", "new"), [
    (["convert", "{folder}", "{folder}/new", "--to", "timm", "--act", "relu"], "--act", "--activation"),
    (["compare-finetuning", "data=digits", "init_from=x", "--ways", "full,haed"], "--ways", "--methods"),
])
def test_a_former_option_prints_the_new_name(tmp_path, capsys, command, old, new):
    assert main([argument.format(folder=tmp_path) for argument in command]) in (1, 2)
    printed = capsys.readouterr()
    assert f"{old} is now called {new}\n" in printed.err + printed.out
    assert "--methods haed" in printed.err or f"{tmp_path}: the folder holds" in printed.err  # the value arrives
    assert main([argument.format(folder=tmp_path) for argument in (*command, new, "full")]) == 2
    assert f"{old} is the former name of {new}; give one of them" in " ".join(capsys.readouterr().err.split())
    assert main([command[0], "--help"]) == 0
    shown = capsys.readouterr().out
    assert new in shown and f"{old} " not in shown
