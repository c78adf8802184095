"""The paths that several runs read are checked before the first one starts."""

import pytest

import vit
from vit.run import main
from vit.run.config.composing import compose, resolve
from vit.run.config.paths import check_paths_of_runs


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "photos").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_sweep_over_a_missing_path_starts_no_run(folder, capsys):
    assert main(["-m", "data=folder", "data.root=photos,photoz"]) == 1
    assert capsys.readouterr().err.startswith("error: data.root: photoz does not exist; did you mean photos?")
    assert main(["-m", "init_from=photos,photoz"]) == 2
    assert "init_from=photoz: no such file or folder" in capsys.readouterr().err
    assert [each.name for each in folder.iterdir()] == ["photos"]


def test_a_comparison_of_a_missing_path_starts_no_run(folder):
    runs = "compare={a: ['init_from=photos'], b: ['init_from=photoz']}"
    with pytest.raises(ValueError, match="init_from=photoz: no such file or folder"):
        vit.train([runs])
    assert [each.name for each in folder.iterdir()] == ["photos"]


def test_the_output_of_an_earlier_run_may_be_missing(folder):
    first = resolve(compose(["run_dir=first"]))
    for path in ("first/model", "runs/digits/x", str(folder / "sweep" / "0")):
        check_paths_of_runs([first, resolve(compose([f"init_from={path}"]))], ["sweep"])
    with pytest.raises(ValueError, match="init_from=second/model: no such file"):
        check_paths_of_runs([first, resolve(compose(["init_from=second/model"]))], ["sweep"])
