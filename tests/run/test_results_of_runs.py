"""The results of a finished run are recorded, so that each command that reads them notices a changed digit."""

import json
import re
import shutil

import pytest

from tests.run.conftest import QUICK, SMALL, table, write_photos
from vit.bundle import load_bundle
from vit.cli import main as vit
from vit.exchange.run_records import read_records
from vit.files.atomic import RESULTS, Manifest
from vit.report.sections.run_record import read_run
from vit.run import main
from vit.run.multirun.compare import compared_model
from vit.run.records.listing import list_runs
from vit.run.records.reading import read_config, read_metrics


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    photos = write_photos(folder / "photos", {"cat": 16, "dog": 14, "emu": 12})
    command = ["data=folder", f"data.root={photos}", *SMALL, *QUICK, f"run_dir={folder / 'run'}"]
    assert main(command) == 0
    return folder / "run"


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def change_a_digit(file):
    """The last digit of a file becomes another one."""
    text = file.read_text()
    position = re.search(r"\d(?=\D*$)", text).start()
    file.write_text(text[:position] + str((int(text[position]) + 1) % 10) + text[position + 1 :])


READERS = {  # file -> what reads it
    "metrics.json": [read_metrics, read_run, lambda run: read_records(load_bundle(run / "model"))],
    "environment.json": [read_run, lambda run: read_records(load_bundle(run / "model"))],
    "metrics.csv": [read_run, lambda run: compared_model(run, "one", read_metrics(run), "test", "accuracy")],
}


@pytest.mark.parametrize("name", READERS)
def test_a_changed_digit_is_noticed(run, name):
    assert Manifest.read(run).files.keys() >= set(RESULTS)
    for read in READERS[name]:
        read(run)
    change_a_digit(run / name)
    for read in READERS[name]:
        with pytest.raises(ValueError, match=rf"{name} is damaged \(it is not the file that the run wrote"):
            read(run)
    assert read_config(run)  # the run itself can be used
    (listed,) = list_runs(run.parent)
    assert listed.state == ("finished" if name == "environment.json" else "damaged")
    assert name == "environment.json" or listed.remark.startswith(f"{name}: it is not the file that the run wrote")


def test_changed_predictions_are_noticed_and_the_model_can_be_evaluated_again(run, finished, tmp_path, capsys):
    compare = ["compare", str(finished)]
    assert vit([*compare, str(run)]) == 0
    change_a_digit(run / "predictions.csv")
    assert vit([*compare, str(run)]) == 1
    assert f"{run / 'predictions.csv'} is damaged (it is not the file that the run wrote" in capsys.readouterr().err
    assert vit(["evaluate", str(run), "--output", str(tmp_path / "again"), "--batch-size", "5"]) == 0
    assert vit([*compare, str(tmp_path / "again")]) == 0


def test_results_of_an_earlier_version_are_not_recorded(run):
    (run / "manifest.json").unlink()
    for name in READERS:
        change_a_digit(run / name)
    assert read_metrics(run) and read_run(run).curves and list_runs(run.parent)[0].state == "finished"


def test_a_resumed_run_records_its_results_again(run, capsys):
    metrics = json.loads((run / "metrics.json").read_text())
    (run / "metrics.json").write_text(json.dumps({**metrics, "ended": "max_time"}))
    change_a_digit(run / "metrics.csv")  # the rows are in the checkpoint
    more = ["trainer.max_time=1h", "recipe.epochs=3", "allow_change=recipe.epochs"]
    assert main([f"resume={run}", *more]) == 0, capsys.readouterr().err
    assert len(table(run / "metrics.csv")) == 3 and read_run(run).metrics["epochs"] == 3
    assert [listed.state for listed in list_runs(run.parent)] == ["finished"]


def test_a_run_that_ends_before_its_metrics_are_written_can_be_resumed(run):
    (run / "metrics.json").unlink()  # after the manifest was written
    assert main([f"resume={run}"]) == 0
    assert read_metrics(run) and Manifest.read(run).files.keys() >= set(RESULTS)
