"""The rows of predictions.csv, the choice of the mistakes that are shown, and the numbers of a cross-validation."""

import csv
import io
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from vit.evaluation import MultiLabelEvaluation
from vit.evaluation.intervals.paired_labels import read_label_sets
from vit.evaluation.multi_label import label_scores
from vit.messages import mega
from vit.report import evaluation, multi_label, seq2seq
from vit.report.cross_validation import print_cross_validation, summary_lines
from vit.report.summary import number

CLASSES = ["cat", "dog", "owl"]
SPLIT = SimpleNamespace(names=["a", "b", "c", "d", "e"], read=lambda row: row, sources=None)
PREVIEW = SimpleNamespace(preview=lambda raw, name: (raw, name))


def rows(path: Path) -> list[list[str]]:
    """The cells, with numbers of six decimals in their shortest form."""
    with open(path, newline="", encoding="utf-8") as file:
        return [[str(float(cell)) if re.fullmatch(r"-?\d+\.\d{6}", cell) else cell for cell in row]
                for row in csv.reader(file)]


@pytest.fixture
def shown(monkeypatch):
    """The arguments of the pictures of mistakes."""
    found = []
    for module in (evaluation, multi_label, seq2seq):
        monkeypatch.setattr(module, "misclassified_picture", lambda path, *values: found.append([*map(list, values)]))
    return found


def classified() -> SimpleNamespace:
    return SimpleNamespace(
        rows=np.array([4, 0, 2, 1]), classes=CLASSES, labels=np.array([1, 2, 0, 0]),
        losses=np.array([0.5, 2.0, 0.25, 3.0]),
        predictions=np.array([[1, 0], [0, 2], [1, 0], [2, 1]]),
        probabilities=np.array([[0.75, 0.125], [0.5, 0.25], [0.625, 0.25], [0.5, 0.25]]))


def labelled() -> SimpleNamespace:
    return SimpleNamespace(
        rows=np.array([3, 1]), classes=CLASSES, losses=np.array([0.5, 1.5]),
        truth=np.array([[True, True, False], [False, False, False]]),
        predicted=np.array([[True, True, False], [True, False, True]]),
        probabilities=np.array([[0.875, 0.75, 0.25], [0.625, 0.125, 0.75]]))


PREDICTIONS = {
    "the best classes": (evaluation, classified, [
        ["file", "true", "right", "loss", "label", "probability", "label_2", "probability_2"],
        ["e", "dog", "1", "0.5", "dog", "0.75", "cat", "0.125"],
        ["a", "owl", "0", "2.0", "cat", "0.5", "owl", "0.25"],
        ["c", "cat", "0", "0.25", "dog", "0.625", "cat", "0.25"],
        ["b", "cat", "0", "3.0", "owl", "0.5", "dog", "0.25"],
    ]),
    "a probability per label": (multi_label, labelled, [
        ["file", "true", "labels", "right", "loss", "p(cat)", "p(dog)", "p(owl)"],
        ["d", "cat|dog", "cat|dog", "1", "0.5", "0.875", "0.75", "0.25"],
        ["b", "", "cat|owl", "0", "1.5", "0.625", "0.125", "0.75"],
    ]),
}


@pytest.mark.parametrize("case", PREDICTIONS)
def test_predictions_have_a_row_per_sample(tmp_path, case):
    module, values, expected = PREDICTIONS[case]
    module.write_predictions(tmp_path / "new" / "p.csv", values(), SPLIT)
    assert rows(tmp_path / "new" / "p.csv") == expected


@pytest.mark.parametrize("limit", [2, 24])
def test_the_surest_wrong_predictions_are_shown_in_the_order_of_the_split_on_a_tie(shown, limit):
    evaluation.write_misclassified("x", classified(), SPLIT, PREVIEW, limit)
    images, truths, labels, probabilities, names, classes = shown[0]
    assert classes == ["cat", "dog", "owl"]
    assert names == ["c", "a", "b"][:limit] and images == [(2, "c"), (0, "a"), (1, "b")][:limit]
    assert truths == ["cat", "owl", "cat"][:limit] and labels == ["dog", "cat", "owl"][:limit]
    assert probabilities == [0.625, 0.5, 0.5][:limit]


def test_false_and_missing_labels_are_shown_by_the_probability_of_the_decision(shown):
    values = labelled()
    values.truth[0, 2] = True  # missing, with 1 - 0.25
    multi_label.write_misclassified("x", values, SPLIT, PREVIEW)
    images, truths, labels, probabilities, names = shown[0]
    assert labels == ["no owl", "owl", "cat"] and probabilities == [0.75, 0.75, 0.625]
    assert truths == ["cat, dog, owl", "none", "none"] and names == ["d", "b", "b"]
    multi_label.write_misclassified("x", values, SPLIT, PREVIEW, limit=1)
    assert shown[1][2] == ["no owl"]


def test_a_row_per_text_has_its_character_errors(tmp_path, shown):
    texts = [("abcd", "abxd", -0.5), ("abc", "abc", -0.25), ("", "xy", -0.125)]
    predictions = [SimpleNamespace(source=name, text=text, score=score, certainty=score + 1)
                   for name, (_, text, score) in zip("bda", texts, strict=True)]
    references = [each[0] for each in texts]
    values = SimpleNamespace(rows=[1, 3, 0], predictions=predictions, references=references,
                             all_references=[[each] for each in references], has_several_references=False)
    seq2seq.write_seq2seq_evaluation(tmp_path / "new", values, SPLIT, PREVIEW)
    assert rows(tmp_path / "new" / "predictions.csv") == [
        ["name", "reference", "generated", "right", "cer", "score", "difference"],
        ["b", "abcd", "abxd", "0", "0.25", "-0.5", "ab[c>x]d"],
        ["d", "abc", "abc", "1", "0.0", "-0.25", ""],
        ["a", "", "xy", "0", "2.0", "-0.125", "[>xy]"],
    ]
    images, truths, made, certainties, names = shown[0]
    assert names == ["a", "b"] and truths == ["", "abcd"] and made == ["xy", "abxd"] and certainties == [0.875, 0.5]

    sources = SimpleNamespace(names=SPLIT.names, sources=["s0", "s1", "s2", "s3"])
    seq2seq.write_seq2seq_evaluation(tmp_path, values, sources, None)
    assert [row[:3] for row in rows(tmp_path / "predictions.csv")] == [
        ["name", "source", "reference"], ["b", "s1", "abcd"], ["d", "s3", "abc"], ["a", "s0", ""]]
    assert len(shown) == 1


def crossed(**changes) -> dict:
    runs = {"0": {"test/accuracy": 0.5, "test/images": 10, "val/accuracy": 1.0}, "1": {"test/accuracy": 0.75}}
    return {"runs": runs, "mean": {"test/accuracy": 0.625, "test/images": 10, "val/accuracy": 1.0},
            "deviation": {"test/accuracy": 0.125}, "out_of_fold": {"accuracy": 0.625, "samples": 1200},
            "predictions": "p.csv", "ensemble": None, "soups": [], **changes}


def test_a_cross_validation_has_mean_deviation_and_range_of_each_test_metric():
    console = Console(file=io.StringIO(), width=100)
    print_cross_validation(crossed(), console)
    text = console.file.getvalue()
    assert [line.split() for line in text.splitlines() if "/" in line] == [
        ["test/accuracy", "0.6250", "0.1250", "0.5000", "0.7500"]]
    assert "Cross-validation, 2 runs" in text and "62.50% of 1,200 samples, p.csv" in text
    print_cross_validation(crossed(deviation={"test/accuracy": None}), console)
    assert "0.6250  –" in re.sub("  +", "  ", " ".join(console.file.getvalue().splitlines()[-6:]))


def test_the_metrics_of_a_cross_validation_are_whole_in_a_narrow_terminal():
    """In 55 columns calibrated_loss and calibrated_ece were both test/calib…."""
    metrics = {"test/calibrated_loss": 1.25, "test/calibrated_ece": 0.5}
    console = Console(file=io.StringIO(), width=55)
    print_cross_validation(crossed(runs={"0": metrics, "1": metrics}, mean=metrics, deviation=metrics), console)
    table = console.file.getvalue().partition("out of fold")[0]
    names = "".join(re.sub(r"[\d.]{6,}", "", table).split())
    assert all(name in names for name in metrics) and "…" not in table


def test_the_accuracy_of_several_labels_per_image_is_that_of_decisions():
    several = {"accuracy": 0.95, "samples": 600, "labels": 5}
    ensemble = {"members": 5, "path": "run/ensemble", "test_accuracy": 0.9, "test_samples": 80,
                "member_test_accuracy": 0.85}
    assert summary_lines(crossed(out_of_fold=several, ensemble=ensemble)) == [
        "  out of fold     95.00% of the decisions about 5 labels of 600 images at threshold 0.5, p.csv",
        "  ensemble        5 models, 90.00% of the decisions about 5 labels of 80 test images at threshold 0.5 (its "
        "members: 85.00%), run/ensemble",
    ]


def test_rare_labels_have_the_same_average_precision_in_the_table(tmp_path):
    """With six decimals all probabilities of a rare label are equal."""
    truth = np.array([[True, False], [False, True], [True, False], [False, False]])
    probabilities = np.array([[4e-8, 0.1], [3e-8, 0.9], [2e-8, 0.1], [1e-8, 0.123456789]], np.float32)
    scores = label_scores(["a", "b"], truth, probabilities, [0.5, 0.5])
    values = MultiLabelEvaluation(["a", "b"], np.array([0.5, 0.5]), {}, np.arange(4), truth, np.zeros(4), probabilities,
                                  scores)
    multi_label.write_predictions(tmp_path / "predictions.csv", values, SPLIT)
    found = read_label_sets(tmp_path)
    assert (found.probabilities.astype(np.float32) == probabilities).all()
    assert found.metrics(np.ones((1, 4), np.int64))["map"] == pytest.approx(
        np.mean([score.average_precision for score in scores]))


def test_ensemble_and_soups_are_in_lines_of_their_own():
    assert len(summary_lines(crossed())) == 1
    ensemble = {"members": 5, "path": "run/ensemble"}
    assert summary_lines(crossed(ensemble=ensemble))[1] == "  ensemble        5 models, run/ensemble"
    ensemble |= {"test_accuracy": 0.9, "test_samples": 2000, "member_test_accuracy": 0.85}
    soups = [{"ingredients": [1, 2], "test_accuracy": 0.5, "single_test_accuracy": 0.25},
             {"ingredients": [1], "test_accuracy": 1.0, "single_test_accuracy": 0.75}]
    assert summary_lines(crossed(ensemble=ensemble, soups=soups))[1:] == [
        "  ensemble        5 models, 90.00% of 2,000 test samples (its members: 85.00%), run/ensemble",
        "  soups           1 of 2 folds, 75.00% out of fold (single models: 50.00%)",
    ]


@pytest.mark.parametrize(("value", "text"), [
    (12_345, "0.0123"), (3_500_000, "3.5"), (999_400_000, "999"), (999_600_000, "1,000"),
    (17_582_000_000, "17,582"), (0, "0"),
])
def test_operations_have_three_digits_and_no_exponent(value, text):
    assert mega(value) == text


def test_an_undefined_number_is_a_dash():
    assert [number(value) for value in (None, float("nan"), 0.0, 0.12345)] == ["–", "–", "0.0000", "0.1235"]
    assert number(2, "d") == "2"
