"""Likely label errors: ranked by cleanlab, shown with pictures, corrected only by an edited file."""

import csv
import json
import re

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import PredefinedSplit, cross_val_predict

import vit
from tests.run.conftest import SMALL, table, write_photos
from tests.run.test_multi_label import overrides, write_shapes
from vit.bundle import save_bundle
from vit.cli import main
from vit.cli.data.audit import error_line
from vit.data import DataError, Preprocessing
from vit.data.splits.folds import assign_folds
from vit.data.splits.recorded import read_rows
from vit.evaluation.labelling.feature_folds import FOLDS, REPEATS, held_out_by_features
from vit.evaluation.labelling.label_errors import LabelError, find_label_errors
from vit.evaluation.out_of_fold import HeldOut, read_held_out
from vit.run.config.composing import ConfigError, compose, resolve
from vit.run.multirun.label_audit import audit_labels
from vit.run.parts.data_source import build_source

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


def label_sets(seed=0, samples=500, changes=40):
    """Good probabilities for several labels per sample, some of which are added or removed."""
    rng = np.random.default_rng(seed)
    truth = rng.random((samples, 4)) < (0.5, 0.3, 0.2, 0.1)
    probabilities = 1 / (1 + np.exp(-(8 * truth - 4 + rng.normal(size=truth.shape))))
    labels = truth.copy()
    rows, columns = rng.choice(samples, changes, replace=False), rng.integers(0, 4, changes)
    labels[rows, columns] ^= True
    names = [f"{i}.png" for i in range(samples)]
    return HeldOut(names, ["1/2"] * samples, labels, probabilities, ["a", "b|c", "d", "e"]), truth, set(rows.tolist())


def test_errors_among_several_labels_are_those_of_cleanlab():
    from cleanlab.multilabel_classification import get_label_quality_scores
    from cleanlab.multilabel_classification.filter import find_label_issues, find_multilabel_issues_per_class

    whole, truth, changed = label_sets()
    lists = [np.flatnonzero(row).tolist() for row in whole.labels]
    ranked = find_label_issues(lists, whole.probabilities, return_indices_ranked_by="self_confidence", n_jobs=1)
    per_class = find_multilabel_issues_per_class(lists, whole.probabilities, n_jobs=1)
    quality = get_label_quality_scores(lists, whole.probabilities)
    found = find_label_errors(whole)
    assert [error.name for error in found] == [whole.names[i] for i in ranked]
    right = 0
    for error, i in zip(found, ranked, strict=True):
        wrong = {whole.classes[c] for c in np.flatnonzero(per_class[i])}
        assert set(error.add) | set(error.remove) == wrong and not set(error.add) & set(error.remove)
        assert set(error.add).isdisjoint(error.label.split(";")) and error.quality == quality[i]
        expected = whole.labels[i] ^ per_class[i]
        assert error.suggested == ";".join(np.array(whole.classes)[expected]) or (error.suggested, expected.any()) == (
            ";", False)
        right += bool((expected == truth[i]).all())
    assert len(changed & set(ranked.tolist())) >= 0.8 * len(changed) and right >= 0.9 * len(found)
    ranked = find_label_errors(whole, limit=100)
    assert len(ranked) == 100 and [error.quality for error in ranked] == sorted(quality)[:100]
    assert "no change suggested" in {error.proposal for error in ranked}


def test_labels_of_all_or_no_samples_are_not_audited(caplog):
    whole, _, _ = label_sets()
    whole.labels[:, 1], whole.labels[:, 3] = True, False
    found = find_label_errors(whole)
    assert "none or all of the 500 held-out samples have them: b|c, e" in caplog.text
    assert found and all(not {"b|c", "e"} & (set(error.add) | set(error.remove)) for error in found)
    whole.labels[:] = True
    with pytest.raises(DataError, match="on all or on none of the 500"):
        find_label_errors(whole)


def test_a_table_of_label_sets_is_read_as_it_was_written(tmp_path):
    whole, _, _ = label_sets()
    one_each = HeldOut(whole.names, whole.folds, np.eye(4, dtype=bool)[np.arange(500) % 4], whole.probabilities,
                       whole.classes)
    for each in (whole, one_each):
        each.save(tmp_path / "table.csv")
        found = read_held_out(tmp_path / "table.csv")
        assert found.multi_label and (found.labels == each.labels).all() and found.classes == whole.classes
    text = (tmp_path / "table.csv").read_text().replace(",d,", ",x,", 1)
    (tmp_path / "table.csv").write_text(text)
    with pytest.raises(DataError, match="the label 'x' of .*png is not one of its 4 classes"):
        read_held_out(tmp_path / "table.csv")


@pytest.mark.parametrize(("text", "message"), [
    ("", "is not a table of held-out predictions"),
    ("name,fold,label,prediction,p:a,p:b\n", "the table has no rows"),
    ("name,fold,label,prediction,p:a,p:b\nx,1,a,a,nan,0.5\n", "a probability of x is not between 0 and 1"),
    ("name,fold,label,prediction,p:a,p:b\nx,1,a,a,0.5,0.5\ny,1,a,a,0.5\n", "the row of y has 5 cells"),
])
def test_a_damaged_table_of_held_out_predictions_is_named(tmp_path, text, message):
    (tmp_path / "table.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        read_held_out(tmp_path / "table.csv")


def test_names_that_are_not_utf8_are_saved_as_parquet(tmp_path):
    HeldOut(["a\udce9.png"], ["1/2"], np.array([0]), np.array([[0.5, 0.5]]), ["a", "b"]).save(tmp_path / "t.parquet")
    assert read_held_out(tmp_path / "t.parquet").names == ["a\\udce9.png"]


def test_printed_errors_have_no_invisible_marks():
    error = LabelError("قطط/1.png", "1/2", "قطة", "כלב", 0.1, 0.2, 0.3)
    assert "\u200e" in error.given + error.proposal  # of the page
    assert error_line(error) == "قطط/1.png: قطة (0.200), suggested כלב (0.300)"


def test_several_labels_from_a_run_to_corrected_training(tmp_path, capsys):
    path = write_shapes(tmp_path / "photos")
    common = overrides(path, "data.fractions=[0.6,0.2,0.2]")
    run = vit.train([*common, "recipe.epochs=3", f"run_dir={tmp_path / 'run'}"]).path
    assert main(["audit", "--labels", str(run), "--limit", "20"]) == 0
    out = capsys.readouterr().out
    rows = table(run / "label_errors.csv")
    assert re.search(r"20 of \d+ samples have labels", out) and len(rows) == 20
    assert list(rows[0]) == ["name", "label", "new_label", "suggested", "add", "remove", "quality", "fold"]
    page, changed = (run / "label_errors.html").read_text(), {}
    for row in rows:
        before, after = (set(filter(None, row[key].split("|"))) for key in ("label", "suggested"))
        assert set(re.findall(r"(\w+) \(", row["add"])) == after - before
        assert set(re.findall(r"(\w+) \(", row["remove"])) == before - after
        assert row["suggested"] == ("|".join(sorted(after)) or "|")
        assert f"</strong><br>{'add' if row['add'] else 'remove' if row['remove'] else 'no change suggested'}" in page
        if before != after:
            changed[row["name"]] = [row["label"], row["suggested"]]
        row["new_label"] = row["suggested"]
    assert changed and any(f"{name}: {before or 'no label'}, " in out for name, (before, _) in changed.items())
    with open(run / "label_errors.csv", "w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    again = vit.train([*common, "recipe.epochs=1", f"data.corrections={run / 'label_errors.csv'}",
                       f"run_dir={tmp_path / 'again'}"]).path
    assert {name: rest for name, *rest in read_rows(again / "splits" / "corrected.tsv")} == changed
    recorded = {name: label for split in ("train", "val", "test")
                for name, label, _ in read_rows(again / "splits" / f"{split}.tsv")}
    assert all(recorded[name] == after.strip("|") for name, (_, after) in changed.items())


def test_a_class_without_predictions_is_an_error():
    whole, _ = predictions()
    whole.labels[whole.labels == 2] = 1
    with pytest.raises(DataError, match="class 'c' has no sample"):
        find_label_errors(whole)


@pytest.mark.slow
def test_from_a_run_to_corrected_training(tmp_path, capsys):
    root = write_photos(tmp_path / "photos", {"cat": 60, "dog": 60}, size=(16, 16))
    common = ["data=folder", f"data.root={root}", *SMALL, "logger=csv", "report=false",
              "data.fractions=[0.5,0.25,0.25]"]
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

    root.rename(tmp_path / "moved")
    assert main(["audit", "--labels", str(run), "--csv", str(tmp_path / "none.csv")]) == 1
    assert str(root) in capsys.readouterr().err and not (tmp_path / "none.csv").exists()
    assert main(["audit", "--labels", str(run), f"data.root={tmp_path / 'moved'}", "--limit", "5",
                 "--csv", str(tmp_path / "moved.csv"), "--html", str(tmp_path / "moved.html")]) == 0
    assert table(tmp_path / "moved.csv") == rows
    assert main(["audit", "--labels", str(run), "data.path=x", "--csv", str(tmp_path / "none.csv")]) == 2
    assert "only data.root of data that has moved" in capsys.readouterr().err
    assert main(["audit", "--labels", str(run), "data=digits", "--csv", str(tmp_path / "none.csv")]) == 2
    assert "data=digits has no effect" in capsys.readouterr().err
    (tmp_path / "moved").rename(root)

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


def test_a_second_cross_validation_tests_on_but_does_not_train_on_suspicious_samples(tmp_path):
    root = write_photos(tmp_path / "photos", {"cat": 20, "dog": 20}, size=(8, 8))
    listed = {"cat/003.png", "dog/010.png"}
    (tmp_path / "label_errors.csv").write_text("name,label,new_label\n" + "".join(f"{x},,\n" for x in sorted(listed)))
    tested = []
    for fold in (1, 2, 3):
        config = resolve(compose(["data=folder", f"data.root={root}", f"data.fold={fold}/3",
                                  f"data.leave_out={tmp_path / 'label_errors.csv'}"]))
        splits = build_source(config["data"]).splits
        assert not listed & {*splits["train"].names, *splits["val"].names}
        tested += splits["test"].names
    assert len(tested) == 40 and listed <= set(tested)


def test_an_edited_file_of_corrections_is_kept_and_found_before_predictions(tmp_path):
    with pytest.raises(ConfigError, match="neither a run nor a finished cross-validation"):
        audit_labels(tmp_path, tmp_path / "a.csv")
    for file, chosen in ((tmp_path / "label_errors.csv", None), (tmp_path / "a.csv", tmp_path / "a.csv")):
        file.write_text("edited")
        with pytest.raises(DataError, match=f"{file} exists and may have been edited"):
            audit_labels(tmp_path, chosen)
        assert file.read_text() == "edited"


def test_options_that_do_not_belong_together(tmp_path, capsys):
    assert main(["audit", "data=digits", "--limit", "3"]) == 2 and "belong to --labels" in capsys.readouterr().err
    assert main(["audit", "--labels", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "neither a run nor a finished cross-validation" in error and "a model needs the data" in error


def noisy_digits():
    """The features and labels of 600 digits, of whose labels 48 became that of the next class, and which ones."""
    images, labels = load_digits(return_X_y=True)
    wrong = np.random.default_rng(0).choice(600, 48, replace=False)
    flipped = labels[:600].copy()
    flipped[wrong] = (flipped[wrong] + 1) % 10
    return images[:600].astype(np.float32), flipped, set(map(str, wrong))


def test_feature_folds_are_those_of_scikit_learn():
    features, labels, _ = noisy_digits()
    names = [str(i) for i in range(600)]
    keys = [str(i // 3) for i in range(600)]
    found = held_out_by_features(names, features, labels, list("0123456789"), keys, seed=4, c=0.01, rounds=1)
    expected = []
    for repeat in range(REPEATS):
        folds = assign_folds(keys, labels, FOLDS, 4 * REPEATS + repeat)
        assert all(len(set(folds[start : start + 3])) == 1 for start in range(0, 600, 3))
        standardized = (features - features.mean(0)) / np.where(features.std(0) > 0, features.std(0), 1)
        expected.append(cross_val_predict(LogisticRegression(C=0.01, max_iter=300), standardized, labels,
                                          cv=PredefinedSplit(folds), method="predict_proba"))
    np.testing.assert_allclose(found.probabilities, np.mean(expected, 0), atol=2e-3)
    assert (found.labels == labels).all() and list(found.names) == names


def test_a_second_round_without_suspicious_samples_finds_more_errors():
    features, labels, wrong = noisy_digits()
    names = [str(i) for i in range(600)]
    hits, seen = [], {}  # seen: stage -> the last (done, total)
    for rounds in (1, 2):
        found = held_out_by_features(names, features, labels, list("0123456789"), c=0.01, rounds=rounds,
                                     progress=lambda stage, *counts: seen.update({stage: counts}))
        assert seen[f"round {rounds} of {rounds}"] == (REPEATS * FOLDS,) * 2
        np.testing.assert_allclose(found.probabilities.sum(1), 1, rtol=1e-5)
        hits.append(len({error.name for error in find_label_errors(found, limit=48)} & wrong))
    assert hits[1] >= hits[0] and hits[1] >= 40
    with pytest.raises(ValueError, match="rounds is 0, but must be at least 1"):
        held_out_by_features(names, features, labels, list("0123456789"), rounds=0)


def test_a_rare_class_whose_other_samples_are_all_suspicious_is_learnt_from_them():
    rng = np.random.default_rng(3)
    features, labels = rng.normal(size=(80, 4)).astype(np.float32), np.repeat([1, 0], [5, 75])
    found = held_out_by_features([f"n{i}" for i in range(80)], features, labels, ["a", "b"], seed=3)
    np.testing.assert_allclose(found.probabilities.sum(1), 1)


def test_labels_of_a_data_set_are_audited_by_a_model(tmp_path, capsys, monkeypatch):
    root = write_photos(tmp_path / "photos", {"cat": 20, "dog": 20}, size=(16, 16))
    (root / "dog" / "003.png").rename(root / "cat" / "d3.png")
    torch.manual_seed(0)
    network = vit.create_model("vit_tiny", image_size=8, patch_size=4, num_classes=2, depth=1, dim=16, num_heads=2)
    model = save_bundle(tmp_path / "model", network, ["a", "b"], Preprocessing((8, 8), resize="squash"))
    monkeypatch.chdir(tmp_path)
    command = ["audit", "--labels", str(model), "data=folder", f"data.root={root}"]
    assert main([*command, "--limit", "1"]) == 0
    out = capsys.readouterr().out
    assert "1 of 40 samples" in out and "predictions agree with 97.5% of the labels" in out
    assert "cat/d3.png: cat (" in out and "suggested dog (" in out
    (row,) = table(tmp_path / "label_errors.csv")
    assert (row["name"], row["label"], row["suggested"]) == ("cat/d3.png", "cat", "dog")
    assert (tmp_path / "label_errors.html").read_text().count("<img ") == 1
    assert main(command) == 1 and "may have been edited" in capsys.readouterr().err
    (tmp_path / "label_errors.csv").unlink()
    assert main(["audit", "--labels", str(model), "data=spelled_numbers"]) == 1
    assert "does not have one class per sample" in capsys.readouterr().err
    for image in sorted((root / "dog").iterdir())[3:]:
        image.unlink()
    assert main(command) == 1 and "class 'dog' has 3 samples, fewer than the 5 folds" in capsys.readouterr().err
    assert not (tmp_path / "label_errors.csv").exists()


def test_a_model_does_not_audit_labels_that_it_was_trained_on(tmp_path, capsys):
    root = write_photos(tmp_path / "photos", {"cat": 20, "dog": 20}, size=(16, 16))
    data = ["data=folder", f"data.root={root}"]
    run = vit.train([*data, *SMALL, "recipe.epochs=1", f"run_dir={tmp_path / 'run'}"]).path
    assert main(["audit", "--labels", str(run / "model"), *data]) == 1
    assert "was trained on these labels" in capsys.readouterr().err
