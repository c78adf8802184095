"""Where generated texts differ from their references."""

import csv
import json
import re
from types import SimpleNamespace

import pytest

from vit.data import DataError
from vit.evaluation.intervals.paired import read_texts
from vit.report import seq2seq
from vit.report.seq2seq import different_parts, marked_differences, write_seq2seq_evaluation

PAIRS = [("kitten", "sitting"), ("old print", "old prlnt."), ("", "a"), ("a", ""), ("abc", "abd"),
         ("Straße", "Strasse")]


@pytest.mark.parametrize(("reference", "text"), PAIRS)
def test_marks_are_edits_from_the_reference_to_the_text(reference, text):
    marked = marked_differences(reference, text)
    edit = re.compile(r"\[([^>\]]*)>([^\]]*)\]")
    assert edit.sub(r"\1", marked) == reference and edit.sub(r"\2", marked) == text and edit.search(marked)


def test_equal_texts_have_no_marks():
    assert marked_differences("same", "same") == ""


def test_pictures_show_the_texts_around_the_first_difference():
    assert different_parts("short", "shart") == ("short", "shart")
    assert different_parts("fourteen signs", "fourteen sign") == ("fourteen signs", "fourteen sign")
    assert different_parts("fifteen letters", "fifteen letter") == ("…tters", "…tter")
    reference = "a long line of old print with an error at its end"
    assert different_parts(reference, reference[:-1] + "t") == ("…s end", "…s ent")
    assert different_parts(reference, reference[:-3]) == ("…its end", "…its ")
    assert different_parts(reference[:-3], reference) == ("…its ", "…its end")
    assert different_parts(reference, "b" + reference[1:]) == (reference, "b" + reference[1:])


@pytest.fixture
def evaluation():
    """Three pairs in another order than in the split: one right, two wrong with different scores."""
    texts = [("c", "abcd", -0.5), ("a", "right", -0.1), ("b", "x", -0.2)]
    predictions = [SimpleNamespace(source=name, text=text, score=score, certainty=0.5) for name, text, score in texts]
    references = ["ab", "right", "wxyz"]
    return SimpleNamespace(rows=[2, 0, 1], predictions=predictions, references=references, has_several_references=False,
                           all_references=[[each] for each in references])


def test_character_errors_are_relative_to_the_reference(evaluation, tmp_path):
    split = SimpleNamespace(sources=["s0", "s1", "s2"])
    write_seq2seq_evaluation(tmp_path, evaluation, split, None)
    rows = list(csv.DictReader((tmp_path / "predictions.csv").open()))
    assert [(row["name"], row["source"], float(row["cer"]), row["right"]) for row in rows] == [
        ("c", "s2", 1.0, "0"), ("a", "s0", 0.0, "1"), ("b", "s1", 0.75, "0")]


def test_all_of_several_references_are_in_the_table_and_read_by_compare(evaluation, tmp_path):
    evaluation.has_several_references, evaluation.all_references[2] = True, ["wxyz", 'a "b", ü']
    write_seq2seq_evaluation(tmp_path, evaluation, SimpleNamespace(sources=None), None)
    rows = list(csv.DictReader((tmp_path / "predictions.csv").open(encoding="utf-8")))
    assert [row["reference"] for row in rows] == ["ab", "right", "wxyz"]
    assert json.loads(rows[2]["references"]) == ["wxyz", 'a "b", ü'] and "ü" in rows[2]["references"]
    assert read_texts(tmp_path) == [(["ab"], "abcd"), (["right"], "right"), (["wxyz", 'a "b", ü'], "x")]
    table = (tmp_path / "predictions.csv").read_text(encoding="utf-8")
    (tmp_path / "predictions.csv").write_text(table.replace('"[""right""]"', "[right"), encoding="utf-8")
    with pytest.raises(DataError, match="references of row 2 is not a JSON list of texts"):
        read_texts(tmp_path)


def test_the_picture_shows_the_wrong_texts_with_the_highest_scores_first(evaluation, tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr(seq2seq, "misclassified_picture", lambda path, *columns: shown.extend(columns))
    split = SimpleNamespace(names=["n0", "n1", "n2"], read=lambda row: row)
    preprocessing = SimpleNamespace(preview=lambda content, name: (content, name))
    seq2seq.write_wrong_predictions(tmp_path / "mistakes.png", evaluation, split, preprocessing)
    images, truths, texts, _, names = shown
    assert images == [(1, "n1"), (2, "n2")] and names == ["n1", "n2"]
    assert truths == ("wxyz", "ab") and texts == ("x", "abcd")
