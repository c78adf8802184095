"""`vit report`: the page is complete, self-contained and safe, and its numbers are those of the evaluation."""

import base64
import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import vit
from vit.bundle import save_bundle
from vit.cli import main
from vit.data import BadImage, Preprocessing, folder
from vit.data.augment.corruptions import CORRUPTIONS, corrupt
from vit.data.quality.audit_report import AuditReport
from vit.evaluation.robustness import accuracy_under_corruptions
from vit.report.pages import model_report
from vit.report.sections import robustness
from vit.report.sections.training_and_data import data_audit

CLASSES = ["<script>alert(1)", "b & \"b'", "z"]
SECTIONS = ["header", "accuracy", "confusion", "calibration", "errors", "attention", "training", "data", "robustness"]
TITLES = {"Model and data", "Accuracy", "Generated texts", "Labels", "Length", "Characters", "Confusion", "Calibration",
          "Most confident errors", "Worst texts", "Wrong labels", "Attention", "Training", "Data", "Robustness"}
VOID = {"meta", "img", "br", "input", "link"}


class Page(HTMLParser):
    """The elements of a page as (tag, attributes), its text, and whether each element is closed in order."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.texts, self.open = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def all(self, tag):
        return [attributes for found, attributes in self.elements if found == tag]

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Photos in folders and files with names that would be markup."""
    root, random = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for number, name in enumerate(CLASSES):
        (root / name).mkdir()
        for i in range(20):
            pixels = random.integers(0, 90, (20, 24, 3)) + np.roll([150, 60, 0], number)
            Image.fromarray(pixels.astype(np.uint8)).save(root / name / f"'\"><img src=x onerror=alert({i})>&.png")
    return root


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.manual_seed(0)
    network = vit.create_model("vit_tiny", image_size=16, patch_size=8, num_classes=3, depth=2, dim=12, num_heads=2)
    for parameter in network.parameters():
        parameter.data.mul_(3)
    return save_bundle(tmp_path_factory.mktemp("model") / "model", network, CLASSES, Preprocessing((16, 16)))


@pytest.fixture(scope="module")
def written(model, photos, tmp_path_factory):
    """The page and the JSON file of a model that is not in a run folder."""
    page = tmp_path_factory.mktemp("report") / "page.html"
    assert main(["report", str(model), "data=folder", f"data.root={photos}", "--split", "train", "-o", str(page)]) == 0
    return page, json.loads(page.with_suffix(".json").read_text())


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "digits"
    vit.train(["recipe.epochs=1", f"run_dir={path}"])
    return path


def check_page(path, sections=SECTIONS):
    """The page, after the checks that every page passes."""
    content = path.read_bytes()
    assert len(content) < 10_000_000
    page = Page(content.decode())
    links = [value for _, attributes in page.elements for key, value in attributes.items() if key in ("src", "href")]
    assert all(link.startswith(("data:image/", "#")) for link in links)
    assert not re.search(rb"https?://|url\(|@import|<script|<link", content)
    policy = next(each["content"] for each in page.all("meta") if each.get("http-equiv"))
    assert policy.startswith("default-src 'none'; img-src data:") and "script" not in policy
    for image in page.all("img"):
        assert image["alt"].strip()
        with Image.open(io.BytesIO(base64.b64decode(image["src"].partition(",")[2], validate=True))) as opened:
            opened.load()
            assert min(opened.size) >= 8
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(set(ids)) == len(ids)
    assert [link["href"] for link in page.all("a")] == [f"#{key}" for key in sections]
    assert [section["id"] for section in page.all("section")] == sections
    for attributes in page.all("div"):
        if attributes["class"] == "scroll":  # reached and named without a mouse
            assert attributes["tabindex"] == "0" and attributes["role"] == "region" and attributes["aria-label"]
    titles = re.findall(rb"<h2[^>]*>(.*?)</h2>", content)
    assert len(titles) == len(sections) and {title.decode() for title in titles} <= TITLES  # no name of a sample
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and all(after <= before + 1 for before, after in zip(levels, levels[1:], strict=False))
    assert page.all("th") and all(cell["scope"] == "col" for cell in page.all("th"))
    assert len(page.all("table")) == len(page.all("caption"))
    assert page.all("html")[0]["lang"] == "en" and len(page.all("h1")) == len(page.all("main")) == 1
    return page


def test_the_page_is_complete_and_self_contained(written):
    page = check_page(written[0])
    style = written[0].read_text().partition("<style>")[2].partition("</style>")[0]
    assert "prefers-color-scheme: dark" in style and "@media print" in style and "max-width: 500px" in style
    assert page.all("html")[0]["lang"] == "en" and "width=device-width" in str(page.all("meta"))
    assert len(page.all("img")) > 20 and len(page.all("h1")) == 1


def test_names_of_classes_and_files_are_text(written, photos):
    page = Page(written[0].read_text())
    assert not page.all("script") and all("onerror" not in attributes for attributes in page.all("img"))
    for name in CLASSES:
        assert name in page.text
    file = next(iter(written[1]["errors"]["samples"]))["file"]
    assert "<img src=x onerror=" in file and file in page.text
    assert any(file in image["alt"] for image in page.all("img"))


def test_the_part_of_other_data_that_is_evaluated_is_reported(model, photos, caplog):
    data = ["data=folder", f"data.root={photos}", "data.fractions=[0.5,0.2,0.3]"]
    assert main(["evaluate", str(model), *data]) == 0
    count = int(re.search(r"(\d+) of the 60 samples of .* are evaluated \(its test split\); --split", caplog.text)[1])
    assert 9 <= count <= 27
    caplog.clear()
    assert main(["evaluate", str(model), *data, "--split", "all"]) == 0 and "are evaluated" not in caplog.text


def test_the_numbers_are_those_of_the_evaluation(written, model, photos, tmp_path):
    numbers = tmp_path / "n.json"
    assert main(["evaluate", str(model), "data=folder", f"data.root={photos}", "--split", "train", "--json",
                 str(numbers)]) == 0
    expected, found = json.loads(numbers.read_text()), written[1]
    assert list(found) == SECTIONS
    assert found["accuracy"]["accuracy"]["value"] == expected["train/accuracy"]
    assert found["accuracy"]["loss"] == expected["train/loss"]
    assert found["calibration"]["ece"] == expected["train/ece"]
    assert found["confusion"]["confusion"] == expected["confusion"]
    recalls = [each["accuracy"] for each in expected["classes"]]
    assert [each["accuracy"] for each in found["accuracy"]["classes"]] == recalls
    assert found["accuracy"]["macro"]["value"] == pytest.approx(np.mean(recalls))
    assert found["accuracy"]["accuracy"]["low"] < expected["train/accuracy"] < found["accuracy"]["accuracy"]["high"]
    wrong = np.array(expected["confusion"])
    np.fill_diagonal(wrong, 0)
    assert found["errors"]["wrong"] == wrong.sum() and found["confusion"]["most_frequent"][0]["images"] == wrong.max()
    certain = [each["probability"] for each in found["errors"]["samples"]]
    assert certain == sorted(certain, reverse=True) and len(certain) == min(24, wrong.sum())
    assert found["calibration"]["risk"][0]["wrong"] == pytest.approx(1 - expected["train/accuracy"])
    page = Page(written[0].read_text())
    assert f"{expected['train/accuracy']:.2%}" in page.text and f"{expected['train/ece']:.4f}" in page.text


def test_the_header_has_the_command(written, model, photos):
    header = written[1]["header"]
    assert f"-m vit report {model} data=folder" in header["command"] and header["model"] == str(model)
    assert "torch" in header["versions"] and re.match(r"\d{4}-\d\d-\d\d", header["date"])


def test_what_is_missing_is_named(written):
    page = Page(written[0].read_text())
    assert "the model is not in a run folder" in page.text and "The model is not calibrated" in page.text


def test_a_run_has_its_training_in_the_report_and_stays_as_it_was(run, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    page = tmp_path / "digits.html"
    assert main(["report", str(run), "-o", str(page), "--attention", "2"]) == 0
    found, text = json.loads(page.with_suffix(".json").read_text()), check_page(page).text
    metrics = json.loads((run / "metrics.json").read_text())
    assert found["training"]["metrics"] == metrics
    assert found["accuracy"]["accuracy"]["value"] == metrics["test/accuracy"]
    assert found["accuracy"]["top5"]["value"] == metrics["test/top5"]
    assert found["calibration"]["temperature"] > 0 and "The model is not calibrated" not in text
    assert f"{metrics['images_per_second']:,.1f}" in text and "peak memory" in text
    assert len(found["attention"]["samples"]) == 2
    assert found["data"]["counts"]["test"]["0"] == 36 and found["data"]["complete"]
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


@pytest.mark.parametrize(("severities", "last"), [((3,), "severity 3"), ((1, 5), "mean")])
def test_a_single_severity_has_no_column_of_means(severities, last, monkeypatch):
    accuracies = {kind: [severity / 10 for severity in severities] for kind in CORRUPTIONS}
    monkeypatch.setattr(robustness, "accuracies", lambda subject: accuracies)
    monkeypatch.setattr(robustness, "examples", lambda subject: [])
    subject = SimpleNamespace(severities=severities, evaluation=SimpleNamespace(metrics={"accuracy": 0.9}))
    html = robustness.robustness(subject).html
    assert re.findall("<th[^>]*>(.*?)</th>", html)[-1] == last
    assert re.findall("<td[^>]*>(.*?)</td>", html)[len(severities)] == f"{severities[-1] / 10:.1%}"


def test_the_robustness_is_that_of_an_evaluation_of_corrupted_images(model, photos, written, tmp_path):
    page = tmp_path / "page.html"
    assert main(["report", str(model), "data=folder", f"data.root={photos}", "--split", "train", "-o", str(page),
                 "--corruptions", "--severity", "4", "--severity", "1", "--attention", "0"]) == 0
    found, text = json.loads(page.with_suffix(".json").read_text())["robustness"], check_page(page).text
    assert found["severities"] == [1, 4] and list(found["accuracy"]) == list(CORRUPTIONS)
    assert found["mean"] == pytest.approx(np.mean(list(found["accuracy"].values())))
    assert "motion blur" in text and f"{found['mean']:.2%}" in text
    assert "add --corruptions" in Page(written[0].read_text()).text
    predictor, split = vit.load(model), folder(root=photos).splits["train"]
    inputs = [predictor.preprocessing.image(split.read(i)).permute(1, 2, 0).numpy() for i in range(len(split))]
    predictions = predictor.predict([corrupt(each, "fog", 4, 0, i) for i, each in enumerate(inputs)])
    right = [prediction.label == CLASSES[label] for prediction, label in zip(predictions, split.labels, strict=True)]
    assert found["accuracy"]["fog"][1] == pytest.approx(np.mean(right))


def test_an_unreadable_image_does_not_count_as_a_wrong_prediction(model, photos):
    predictor, split = vit.load(model), folder(root=photos).splits["train"]
    damaged = replace(split, read=lambda i: b"no image" if i == 3 else split.read(i))
    with pytest.raises(BadImage, match=re.escape(split.names[3])):
        accuracy_under_corruptions(predictor.model, predictor.preprocessing, damaged, (1,))


@pytest.mark.parametrize(("name", "content", "message"), [
    ("metrics.json", b'{"epochs": 1', "metrics.json is damaged"),
    ("metrics.json", b"[]", "it holds list"),
    ("environment.json", b"\xff\xfe", "environment.json is damaged"),
    ("metrics.csv", b"epoch,step\n\xff\xfe\n", "metrics.csv is damaged"),
    ("config.yaml", b"data: [", "config.yaml"),
    ("model/config.json", b"{", "config.json"),
])
def test_a_damaged_run_is_one_line_before_the_computation(run, tmp_path, capsys, name, content, message):
    file, page = run / name, tmp_path / "page.html"
    whole = file.read_bytes()
    try:
        file.write_bytes(content)
        assert main(["report", str(run), "-o", str(page)]) != 0
    finally:
        file.write_bytes(whole)
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and error.startswith("error: ") and not page.exists()


def test_the_report_of_an_unfinished_run_states_it(run, tmp_path):
    page = tmp_path / "page.html"
    (run / "metrics.json").rename(run / "hidden.json")
    (run / "metrics.csv").rename(run / "hidden.csv")
    try:
        assert main(["report", str(run), "-o", str(page), "--attention", "0"]) == 0
    finally:
        (run / "hidden.json").rename(run / "metrics.json")
        (run / "hidden.csv").rename(run / "metrics.csv")
    text = check_page(page).text
    assert "metrics.json is missing: the run has not finished" in text and "there are no learning curves" in text


@pytest.mark.parametrize(("arguments", "message"), [
    (["data=digits", "-o", "page.txt"], "page.txt must end with .html"),
    (["data=digits", "-o", "none/page.html"], "none is not a folder"),
    (["data=digits", "--severity", "3"], "--severity belongs to --corruptions"),
    (["data=digits"], "the model has no class '0'"),
    (["data=spelled_numbers"], "holds pairs of texts, but the model is for labelled images"),
])
def test_bad_input_is_one_line(model, arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(model), *arguments]) != 0
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error and not list(tmp_path.glob("*.html"))


def test_the_json_file_of_another_program_is_not_overwritten(run, capsys):
    before = (run / "metrics.json").read_bytes()
    assert main(["report", str(run), "-o", str(run / "metrics.html")]) == 1
    assert "metrics.json would overwrite a file of a model or run" in capsys.readouterr().err
    assert (run / "metrics.json").read_bytes() == before and not (run / "metrics.html").exists()


def test_a_report_is_replaced_and_the_audit_counts_each_image_once(model, photos, tmp_path):
    page = tmp_path / "page.html"
    arguments = ["report", str(model), "data=folder", f"data.root={photos}", "--split", "all", "-o", str(page)]
    assert main(arguments) == 0 and main(arguments) == 0
    found = json.loads(page.with_suffix(".json").read_text())
    assert found["header"]["images"] == 60 == found["data"]["total"] and found["data"]["duplicates"] == []


def test_a_page_above_the_limit_is_not_written(model, photos, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(model_report, "LIMIT", 1000)
    page = tmp_path / "page.html"
    assert main(["report", str(model), "data=folder", f"data.root={photos}", "-o", str(page)]) == 1
    assert "more than 1,000" in capsys.readouterr().err and not page.exists()


def test_a_group_of_many_equal_files_is_one_short_row_of_the_page():
    report = AuditReport("photos", ["a"], {"train": {"a": 300}}, total=300, decoded=300)
    report.duplicates = [[("train", f"{i}.png") for i in range(200)], [("train", "x.png"), ("val", "y.png")]]
    report.contradictions = [[(f"{i}.png", "a") for i in range(12)]]
    subject = SimpleNamespace(audit=report, audit_seconds=None)
    section = data_audit(subject)
    text = Page(section.html).text
    listed = ", ".join(f"train: {i}.png" for i in range(1, 11))
    assert f"train: 0.png {listed} and 189 more train: x.png val: y.png" in text and "11.png" not in text
    assert f"0.png (a) {', '.join(f'{i}.png (a)' for i in range(1, 11))} and 1 more" in text
    assert "Same content in different splits (2)" in text
    assert len(section.values["duplicates"][0]) == 200
