"""Likely label errors: ranked by cleanlab, shown with pictures, corrected only by an edited file."""

import csv
import json
import re

import numpy as np
import pytest

import vit
from tests.run.conftest import SMALL, table, write_photos
from vit.cli import main
from vit.data import DataError
from vit.data.splits.files import read_rows
from vit.evaluation.labelling.label_errors import find_label_errors
from vit.evaluation.out_of_fold import HeldOut

cleanlab_filter = pytest.importorskip("cleanlab.filter")


def predictions(seed=0, samples=600, classes=5, flipped=40):
    """Good probabilities, and labels of which some are wrong."""
    rng = np.random.default_rng(seed)
    truth = np.arange(samples) % classes
    logits = 4 * np.eye(classes)[truth] + rng.normal(size=(samples, classes))
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    wrong = rng.choice(samples, flipped, replace=False)
    labels = truth.copy()
    labels[wrong] = (truth[wrong] + 1) % classes
    names = [f"{i}.png" for i in range(samples)]
    return HeldOut(names, ["1/2"] * samples, labels, probabilities, list("abcde")), {names[i] for i in wrong}


def test_errors_are_those_of_cleanlab():
    whole, wrong = predictions()
    expected = cleanlab_filter.find_label_issues(whole.labels, whole.probabilities,
                                                 return_indices_ranked_by="self_confidence", n_jobs=1)
    found = find_label_errors(whole)
    assert [error.name for error in found] == [whole.names[i] for i in expected]
    ranked = {error.name for error in find_label_errors(whole, limit=len(wrong))}
    assert len(ranked & wrong) / len(wrong) > 0.9
    assert all(error.suggested != error.label and error.row()["new_label"] == "" for error in found)


def test_a_class_without_predictions_is_an_error():
    whole, _ = predictions()
    whole.labels[whole.labels == 2] = 1
    with pytest.raises(DataError, match="class 'c' has no sample"):
        find_label_errors(whole)


def test_from_a_run_to_corrected_training(tmp_path, capsys):
    root = write_photos(tmp_path / "photos", {"cat": 60, "dog": 60}, size=(16, 16))
    common = ["data=folder", f"data.root={root}", *SMALL, "logger=csv", "data.fractions=[0.5,0.25,0.25]"]
    run = vit.train([*common, "recipe.epochs=3", f"run_dir={tmp_path / 'run'}"]).path
    report = tmp_path / "report.json"
    assert main(["audit", "--labels", str(run), "--limit", "5", "--json", str(report)]) == 0
    assert "5 of " in capsys.readouterr().out
    file = run / "label_errors.csv"
    rows = table(file)
    assert len(rows) == len(json.loads(report.read_text())["label_errors"]) == 5
    page = (run / "label_errors.html").read_text()
    assert len(re.findall('<img src="data:image/(?:jpeg|png);base64,', page)) == 5 and not re.search("https?:", page)
    assert main(["audit", "--labels", str(run)]) == 1 and "may have been edited" in capsys.readouterr().err

    other = {"cat": "dog", "dog": "cat"}
    rows[0]["new_label"] = other[rows[0]["label"]]
    with open(file, "w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    again = vit.train([*common, "recipe.epochs=1", f"data.corrections={file}", f"run_dir={tmp_path / 'again'}"]).path
    assert read_rows(again / "splits" / "corrected.tsv") == [[rows[0]["name"], rows[0]["label"], rows[0]["new_label"]]]
    recorded = {name: label for split in ("train", "val", "test")
                for name, label, _ in read_rows(again / "splits" / f"{split}.tsv")}
    assert recorded[rows[0]["name"]] == rows[0]["new_label"] and recorded[rows[1]["name"]] == rows[1]["label"]
    assert f"corrected {rows[0]['name']}" in (again / "log.txt").read_text()
    (again / "metrics.json").unlink()
    vit.train([f"resume={again}"])  # the recorded labels are the corrected ones
    assert main(["evaluate", str(again)]) == 0


def test_options_that_do_not_belong_together(tmp_path, capsys):
    assert main(["audit", "data=digits", "--limit", "3"]) == 1 and "belong to --labels" in capsys.readouterr().err
    assert main(["audit", "data=digits", "--labels", str(tmp_path)]) == 1
    assert "changes nothing here" in capsys.readouterr().err
    assert main(["audit", "--labels", str(tmp_path)]) == 2
    assert "neither a run nor a finished cross-validation" in capsys.readouterr().err
