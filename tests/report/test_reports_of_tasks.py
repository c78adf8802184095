"""`vit report` of translators, image-to-text models, text classifiers and multi-label models."""

import csv
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from sacrebleu.metrics import BLEU
from sklearn.metrics import average_precision_score, f1_score

import vit
from tests.inference.tiny_models import save_classifier, save_image_to_text, save_translator
from tests.report.test_model_report import check_page
from vit.bundle import save_bundle
from vit.cli import main
from vit.data import Preprocessing, Split
from vit.evaluation.intervals.bootstrap import resampled_counts
from vit.evaluation.intervals.label_bootstrap import label_intervals, weighted_f1, weighted_precision
from vit.evaluation.intervals.paired_labels import LabelAnswers
from vit.evaluation.intervals.text_bootstrap import TextStatistics
from vit.evaluation.labelling.next_to_label import ChosenSample
from vit.evaluation.multi_label import LabelScore, MultiLabelEvaluation
from vit.report.attention.report import class_title
from vit.report.pages.html_parts import table as html_table
from vit.report.pages.html_parts import text, text_card
from vit.report.pages.next_to_label import caption
from vit.report.sections import generated_texts, labels
from vit.report.sections.generated_texts import buckets, confused_characters, span
from vit.report.sections.labels import score_table
from vit.report.sections.subject import Subject

GENERATED = ["header", "accuracy", "lengths", "errors", "attention", "training", "data"]
NAMES = ["red", "a<b>", "c"]


def report(model, page, *arguments):
    assert main(["report", str(model), *arguments, "-o", str(page)]) == 0
    return json.loads(page.with_suffix(".json").read_text())


def write_table(path, columns, rows):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    return path


def test_a_translator(tmp_path, monkeypatch):
    titles, draw = [], generated_texts.attention_url
    monkeypatch.setattr(generated_texts, "attention_url",
                        lambda found, title: titles.append(title) or draw(found, title))
    model = save_translator(tmp_path / "model")
    pairs = [(f"<b>{i}", f"{i} x" if i % 2 else "y & z") for i in range(20)]
    for name, kept in {"train": pairs[:4], "val": pairs[:4], "test": pairs[4:]}.items():
        for column, side in enumerate("ab"):
            (tmp_path / f"{name}.{side}").write_text("".join(f"{pair[column]}\n" for pair in kept))
    found = report(model, tmp_path / "page.html", "data=parallel", f"data.root={tmp_path}", "data.source=a",
                   "data.target=b", "--attention", "1")
    page = check_page(tmp_path / "page.html", GENERATED)
    assert found["header"]["pairs"] == 16 and sum(each["pairs"] for each in found["lengths"]["buckets"]) == 16
    assert found["accuracy"]["intervals"]["cer"]["value"] == pytest.approx(found["accuracy"]["cer"])
    rates = [each["cer"] for each in found["errors"]["samples"]]
    assert rates == sorted(rates, reverse=True) and "<b>4" in page.text and len(found["attention"]["samples"]) == 1
    shown = found["attention"]["samples"][0]  # named by its source, also where the generated text is empty
    assert titles == [f"{shown['name']} → {shown['generated'] or '(empty)'}"]


def test_references_that_no_spaces_divide_are_measured_in_characters(tmp_path):
    model = save_translator(tmp_path / "model")
    (tmp_path / "pairs.jsonl").write_text("".join(
        f'{{"en": "{i}", "zh": "{"猫在家里" * (i + 1)}", "split": "test"}}\n' for i in range(4)))
    found = report(model, tmp_path / "page.html", "data=parallel", f"data.root={tmp_path}/pairs.jsonl",
                   "data.target=zh", "--attention", "1")
    assert found["lengths"]["unit"] == "characters"
    assert (found["lengths"]["buckets"][0]["shortest"], found["lengths"]["buckets"][-1]["longest"]) == (4, 16)


def test_an_image_to_text_model_names_the_characters_it_confuses(tmp_path):
    model = save_image_to_text(tmp_path / "model")
    for i in range(6):
        Image.fromarray(np.full((8, 16), 40 * i, np.uint8)).save(tmp_path / f"{i}.png")
    table = write_table(tmp_path / "lines.csv", ("file", "text", "split"),
                        [(f"{i}.png", "ab"[: 1 + i % 2], "test" if i else "train") for i in range(6)])
    found = report(model, tmp_path / "page.html", "data=image_text", f"data.path={table}", "--attention", "1")
    check_page(tmp_path / "page.html", [*GENERATED[:3], "confusion", *GENERATED[3:]])
    assert found["lengths"]["unit"] == "characters" and found["confusion"]["confused"]
    assert sum(each["count"] for each in found["confusion"]["confused"]) == round(found["accuracy"]["cer"] * 8)


def test_a_text_classifier(tmp_path):
    model = save_classifier(tmp_path / "model")
    rows = [(f"t<i>\t{i}", "yes" if i % 3 else "no", "test" if i < 30 else "train") for i in range(36)]
    table = write_table(tmp_path / "texts.csv", ("text", "label", "split"), rows)
    found = report(model, tmp_path / "page.html", "data=text_table", f"data.path={table}", "--attention", "1")
    page = check_page(tmp_path / "page.html", ["header", "accuracy", "confusion", "calibration", "errors", "attention",
                                               "training", "data"])
    assert found["header"]["texts"] == 30 and found["data"]["counts"]["test"] == {"no": 10, "yes": 20}
    assert page.all("blockquote") and "t<i>" in page.text
    assert main(["report", str(model), "data=text_table", f"data.path={table}", "--grad-cam", "-o",
                 str(tmp_path / "second.html")]) == 2


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    """A multi-label model with its images."""
    root, random = tmp_path_factory.mktemp("labelled"), np.random.default_rng(0)
    rows = []
    for i in range(60):
        has = random.random(3) < (0.5, 0.3, 0.4)
        Image.fromarray((random.integers(0, 90, (16, 16, 3)) + 150 * has).astype(np.uint8)).save(root / f"{i}.png")
        rows.append((f"{i}.png", "|".join(np.array(NAMES)[has]), "test" if i < 50 else "train"))
    torch.manual_seed(0)
    network = vit.create_model("vit_tiny", image_size=16, patch_size=8, num_classes=3, depth=2, dim=12, num_heads=2)
    network.head.weight.data.mul_(40)
    model = save_bundle(root / "model", network, NAMES, Preprocessing((16, 16)), thresholds=[0.5, 0.4, 0.6])
    return model, write_table(root / "labels.csv", ("file", "label", "split"), rows)


def test_a_multi_label_model(labelled, tmp_path):
    model, table = labelled
    overrides = ["data=table", f"data.path={table}", "data.label_separator='|'"]
    found = report(model, tmp_path / "page.html", *overrides, "--attention", "2")
    page = check_page(tmp_path / "page.html", ["header", "accuracy", "calibration", "errors", "attention", "training",
                                               "data"])
    assert main(["evaluate", str(model), *overrides, "--json", str(tmp_path / "n.json")]) == 0
    expected = json.loads((tmp_path / "n.json").read_text())
    assert found["accuracy"]["map"]["value"] == expected["test/map"] and found["accuracy"]["exact_match"] == \
        expected["test/exact_match"]
    for score, reference in zip(found["accuracy"]["classes"], expected["classes"], strict=True):
        interval = score["average_precision_interval"]
        assert interval["low"] < reference["average_precision"] == score["average_precision"] < interval["high"]
        assert score["threshold"] == reference["threshold"]
    assert set(found["calibration"]["classes"]) == set(NAMES) and "a<b>" in page.text
    assert "evidence for" in page.text and len(found["errors"]["samples"]) <= found["errors"]["wrong"]


def test_the_legend_of_reliability_diagrams_is_above_all_panels(tmp_path, monkeypatch):
    """It covered the points of probable labels in the first one."""
    saved = []
    monkeypatch.setattr(labels, "save_figure", lambda figure, path: saved.append(figure) or figure.savefig(path))
    truth, probabilities = np.eye(40, 5, dtype=bool), np.full((40, 5), 0.5)
    evaluation = SimpleNamespace(classes=[*"abcde"], truth=truth, probabilities=probabilities, uncalibrated=truth / 1)
    labels.reliability_diagrams(tmp_path / "a.png", SimpleNamespace(evaluation=evaluation), np.arange(5))
    (legend,) = saved[0].legends
    assert [text.get_text() for text in legend.get_texts()] == ["as trained", "calibrated"]
    tops = [axes.get_tightbbox().y1 for axes in saved[0].axes if axes.axison]
    assert len(tops) == 5 and legend.get_window_extent().y0 >= max(tops)


def test_weighted_scores_are_those_of_scikit_learn_on_the_drawn_images():
    random = np.random.default_rng(1)
    truth, probabilities = random.random(40) < 0.4, random.integers(0, 12, 40) / 12
    counts = resampled_counts(np.arange(40), 40, 6)
    areas, f1 = weighted_precision(truth, probabilities, counts), weighted_f1(truth, probabilities > 0.5, counts)
    for row, area, score in zip(counts, areas, f1, strict=True):
        drawn = np.repeat(np.arange(40), row)
        assert area == pytest.approx(average_precision_score(truth[drawn], probabilities[drawn]))
        assert score == pytest.approx(f1_score(truth[drawn], (probabilities > 0.5)[drawn]))


def test_a_table_that_is_cut_says_so():
    scores = [LabelScore(str(c), 1, 1.0, 0.5, 1.0, 1.0, 1.0) for c in range(1001)]
    subject = SimpleNamespace(evaluation=SimpleNamespace(scores=scores))
    found = SimpleNamespace(average_precision=[None] * 1001, label_f1=[None] * 1001)
    assert "The first 1,000 of 1,001 labels are shown; the JSON file has all." in score_table(subject, found)
    subject.evaluation.scores, found = scores[:3], SimpleNamespace(average_precision=[None] * 3, label_f1=[None] * 3)
    assert "are shown" not in score_table(subject, found)


def test_a_label_without_images_in_a_resample_is_left_out_of_its_mean_f1():
    truth = np.vstack([np.eye(20, dtype=bool), np.zeros((180, 20), bool)])  # an image per label, all predicted rightly
    scores = [LabelScore(str(c), 1, 1.0, 0.5, 1.0, 1.0, 1.0) for c in range(20)]
    found = label_intervals(MultiLabelEvaluation(
        list("abcdefghijklmnopqrst"), np.full(20, 0.5), {"map": 1.0, "f1": 1.0}, np.arange(200), truth, np.zeros(200),
        truth.astype(float), scores))
    assert (found.f1.low, found.f1.value, found.f1.high) == (1.0, 1.0, 1.0)
    answers = LabelAnswers([str(i) for i in range(200)], list("abcdefghijklmnopqrst"), truth, truth, 1.0 * truth)
    assert set(answers.metrics(resampled_counts(np.arange(200), 200, 20))["f1"]) == {1.0}


def test_resampled_bleu_is_that_of_sacrebleu_on_the_drawn_texts():
    random = np.random.default_rng(2)
    words = np.array(["the", "a", "cat", "dog", "sat", "on", "mat", "home"])
    references = [" ".join(random.choice(words, random.integers(4, 12))) for _ in range(12)]
    texts = [" ".join(word for word in each.split() if random.random() < 0.8) for each in references]
    statistics, counts = TextStatistics(texts, references), resampled_counts(np.arange(12), 12, 4)
    for row, found in zip(counts, statistics.metrics(counts)["bleu"], strict=True):
        drawn = np.repeat(np.arange(12), row)
        expected = BLEU().corpus_score([texts[i] for i in drawn], [[references[i] for i in drawn]]).score
        assert found == pytest.approx(expected / 100)


def test_characters_and_lengths():
    found = confused_characters(["cat", "hat", "at"], ["cot", "hat", "cat"])
    assert found == {("o", "a"): 1, ("c", "(missing)"): 1}
    assert (span(3, 3), span(3, 1200)) == ("3", "3 to 1,200")
    measured = np.array([3, 1, 1, 9, 5, 5, 2])
    parts = buckets(measured)
    assert sorted(np.concatenate(parts)) == list(range(7))
    assert all(measured[a].max() < measured[b].min() for a, b in zip(parts, parts[1:], strict=False))


def test_arabic_names_do_not_change_the_order_of_a_line(tmp_path):
    """`قطة, 32%` without marks has the probability on the left, and of `a/قطة/1.png` the file before the folder."""
    samples = Split(np.array([0, 1]), ["test/قطة/1.png", "test/b/2.png"], lambda i: np.zeros((8, 8, 3), np.uint8))
    subject = SimpleNamespace(
        samples=samples, name=lambda i: samples.names[i], preview=samples.read,
        prediction=lambda i: ("كلب", "قطة", 0.32) if i == 0 else ("a", "b", 0.3))
    shown = Subject.card(subject, 0)
    assert "predicted \u200eقطة\u200e, 32.0%" in shown and "test\u200e/قطة\u200e/1.png" in shown
    assert "\u200e" not in Subject.card(subject, 1)
    assert class_title("قطة", SimpleNamespace(label="كلب", probability=0.5)).endswith("كلب\u200e 50.0%")
    assert "كلب\u200e (0.500)" in caption(ChosenSample("a.png", ("كلب",), (0.5,), 0.1, 1))


def test_texts_of_all_scripts_are_shown_as_they_are():
    """Without escape sequences for spaces and joiners, and from right to left where they begin so."""
    assert text("a\u3000b\u00a0c می\u200cخواهم 👩\u200d💻") == "a\u3000b\u00a0c می\u200cخواهم 👩\u200d💻"
    assert text("a\x1b\u202e<b>") == r"a\x1b\u202e&lt;b&gt;"
    assert "<blockquote dir=auto>" in text_card("هذا", ["a"])
    assert "<td dir=auto>هذا</td><td class=number>1</td>" in html_table(["a", "b"], [("هذا", 1)], "c", (1,))
