"""`vit compare-finetuning`: a run per method, a table, and resuming after a failure or a stop."""

import contextlib
import csv
import io
import json

import pytest
from PIL import Image

import vit
from tests.run.conftest import QUICK
from vit.cli import main
from vit.run.config.composing import ConfigError
from vit.run.multirun.compare_finetuning import compare_finetuning, default_overrides

DIGITS = ["data=digits", "data.image_size=8", "trainer.accelerator=cpu", "recipe.batch_size=128", *QUICK]
DIGITS += ["recipe.epochs=1"]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return vit.train([*DIGITS, "model.depth=1", f"run_dir={tmp_path_factory.mktemp('source')}"]).path


@pytest.fixture(scope="module")
def compared(source, tmp_path_factory):
    """A folder has the name of a file of the run with lora, so that this method fails."""
    folder = tmp_path_factory.mktemp("here") / "comparison"
    overrides = [*DIGITS, f"init_from={source}", f"run_dir={folder}", "--ways", "full,lora,head"]
    (folder / "lora" / "config.yaml").mkdir(parents=True)
    with contextlib.redirect_stderr(io.StringIO()) as printed:
        code = main(["compare-finetuning", *overrides])
    return folder, code, printed.getvalue()


def table(folder):
    with open(folder / "comparison.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_a_method_that_fails_does_not_stop_the_others(compared):
    folder, code, printed = compared
    assert code == 1 and "lora of the comparison failed" in printed and f"resume={folder} continues it" in printed
    assert (folder / "head" / "metrics.json").exists() and not (folder / "comparison.json").exists()
    assert [row["name"] for row in table(folder)] == ["full", "head"]


def test_resuming_runs_what_is_missing_and_prints_all(compared, capsys):
    folder, *_ = compared
    (folder / "lora" / "config.yaml").rmdir()
    before = (folder / "head" / "metrics.json").stat().st_mtime_ns
    assert main(["compare-finetuning", f"resume={folder}"]) == 0
    assert (folder / "head" / "metrics.json").stat().st_mtime_ns == before
    rows = table(folder)
    assert [row["name"] for row in rows] == ["full", "lora", "head"]
    stored = json.loads((folder / "comparison.json").read_text())["results"]
    for row, line in zip(stored, rows, strict=True):
        metrics = json.loads((folder / row["name"] / "metrics.json").read_text())
        for key in ("test/accuracy", "trained_parameters", "parameters", "seconds", "peak_memory"):
            assert row[key] == metrics[key] and float(line[key]) == metrics[key]
    trained = [row["trained_parameters"] for row in stored]
    assert trained[0] > trained[1] > trained[2] == 650
    with Image.open(folder / "comparison.png") as picture:
        assert picture.width > 1000
    printed = capsys.readouterr().out
    assert "trained parameters" in printed and "peak memory" in printed


def test_the_folder_has_a_default_name():
    assert default_overrides(["data=digits"]) == ["name=compare_finetuning"]
    given = (["data=digits", "name=mine"], ["data=digits", "++name=mine"], ["resume=somewhere"])
    assert [default_overrides(overrides) for overrides in given] == [[], [], []]


@pytest.mark.parametrize(
    ("overrides", "ways", "message"),
    [
        (["data=digits"], ["full", "head"], "add init_from=MODEL"),
        (["data=digits", "init_from=x"], ["full", "haed"], r"--methods haed: no such finetune; did you mean head\?"),
        (["data=digits", "init_from=x"], ["full"], "needs 2 or more"),
        (["data=digits", "init_from=x", "finetune=head"], ["full", "head"], "finetune= selects one option"),
        (["data=digits", "init_from=x", "recipe.epoch=1"], ["full", "head"], "recipe.epochs"),
        (["resume=nowhere"], ["full", "head"], "no comparison.yaml there"),
    ],
)
def test_errors_are_raised_before_the_first_run(tmp_path, monkeypatch, overrides, ways, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message):
        compare_finetuning(overrides, ways)
    assert not list(tmp_path.iterdir())
