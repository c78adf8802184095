"""`vit next`: the choice against BADGE with explicit gradients, and the files of images, several labels and texts."""

import codecs
import csv
import json
import os
from urllib.parse import unquote
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image

import vit
from tests.data.test_near_copies import drawing
from tests.inference.tiny_models import save_classifier
from vit.bundle import save_bundle
from vit.cli import main
from vit.cli.data.next import earlier_choice
from vit.counters import hash_counters, to_unit_interval
from vit.data import Preprocessing
from vit.evaluation.labelling.next_to_label import ChosenSample, NextToLabel, next_to_label
from vit.evaluation.labelling.selection import (
    SEED,
    choose_diverse,
    directions,
    most_uncertain,
    residuals,
    uncertainty,
)
from vit.models import create_model
from vit.report.pages.next_to_label import save_next

PREPROCESSING = Preprocessing((16, 16), mean=[0.5] * 3, std=[0.25] * 3)


def simulated(count=60, classes=4, width=6):
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, width)), rng.dirichlet(np.ones(classes), count)


def test_the_choice_is_that_of_explicit_gradients():
    features, probabilities = simulated()
    residual = residuals(probabilities)
    gradients = np.einsum("nc,nd->ncd", residual, features).reshape(len(features), -1)
    chosen = [int((gradients**2).sum(1).argmax())]
    for draw in to_unit_interval(hash_counters(SEED, 3, torch.arange(12))).numpy()[1:]:
        distance = ((gradients[:, None] - gradients[chosen]) ** 2).sum(-1).min(1)
        chosen.append(int(np.searchsorted(distance.cumsum(), draw * distance.sum(), side="right")))
    assert choose_diverse(features, residual, 12, 3).tolist() == chosen
    assert choose_diverse(features, residual, 5, 3).tolist() == chosen[:5]


def test_copies_are_chosen_last():
    features, probabilities = simulated(8)
    twice = np.concatenate([features] * 2), np.concatenate([residuals(probabilities)] * 2)
    chosen = choose_diverse(*twice, 16)
    assert sorted(chosen.tolist()) == list(range(16))
    assert len({i % 8 for i in chosen[:8].tolist()}) == 8


def test_uncertainty():
    assert uncertainty(np.array([[0.5, 0.5, 0], [1, 0, 0], [0.6, 0.3, 0.1]])) == pytest.approx([1, 0, 0.7])
    several = uncertainty(np.array([[0.5, 0.5], [1, 0], [0.5, 1]]), np.array([0.5, 0.5]))
    assert several == pytest.approx([1, 0, 0.5], abs=1e-6)
    assert np.linalg.norm(directions(simulated()[0]), axis=1) == pytest.approx(1)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("new") / "my photos & more"
    folder.mkdir()
    for seed in range(30):
        drawing(seed).save(folder / f"{seed:02}.png")
    drawing(3).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(folder / "03 mirrored.png")
    (folder / "broken.png").write_bytes(b"no image")
    return folder


def save_images_model(folder, thresholds=()):
    torch.manual_seed(0)
    model = create_model("vit_tiny_patch16_224", image_size=16, patch_size=8, depth=1, num_classes=3)
    return save_bundle(folder, model, ["a|b", "c", "<d>"], PREPROCESSING, thresholds=thresholds)


@pytest.mark.parametrize("thresholds", [(), (0.4, 0.4, 0.4)], ids=["one label", "several labels"])
def test_images(photos, tmp_path, capfd, thresholds):
    model, out = save_images_model(tmp_path / "model", thresholds), tmp_path / "out"
    assert main(["next", str(model), str(photos), "--count", "31", "-o", str(out)]) == 0
    printed = capfd.readouterr()
    assert "30 of 31 to label next; 1 near copy left out" in printed.out
    assert "broken.png" in printed.err
    rows = list(csv.DictReader((out / "next.csv").read_text().splitlines()))
    tasks = json.loads((out / "label_studio.json").read_text())
    assert [row["rank"] for row in rows] == [str(k) for k in range(1, 31)] and len(tasks) == 30
    interface = ElementTree.parse(out / "label_studio.xml").getroot()
    choices = interface.find("Choices")
    names = {choice.get("value") for choice in choices}
    assert choices.get("choice") == ("multiple" if thresholds else "single") and names == {"a|b", "c", "<d>"}
    for row, task in zip(rows, tasks, strict=True):
        address = task["data"]["image"].removeprefix("/data/local-files/?d=")
        assert "&" not in address and (photos.parent / unquote(address)).samefile(row["path"])
        for result in task["predictions"][0]["result"]:
            assert result["from_name"] == choices.get("name")
            assert result["to_name"] == choices.get("toName") == interface.find("Image").get("name")
            assert set(result["value"]["choices"]) <= names
    page = (out / "next.html").read_text()
    assert page.count("<img") == 30 and "&lt;d&gt;" in page
    left = tmp_path / "left"
    few = ["next", str(model), str(photos), "--count", "5", "-o"]
    assert main([*few, str(tmp_path / "few")]) == 0
    assert main([*few, str(left), "--exclude", str(tmp_path / "few" / "next.csv")]) == 0
    first, second = ({row["path"] for row in csv.DictReader((tmp_path / name / "next.csv").read_text().splitlines())}
                     for name in ("few", "left"))
    assert len(first) == len(second) == 5 and not first & second


def test_file_names_that_are_not_utf8(tmp_path):
    path = tmp_path / "photos" / os.fsdecode(b"caf\xe9.png")
    found = NextToLabel([ChosenSample(str(path), ("a",), (0.5,), 0.5, 1)], 1, 0, [])
    save_next(tmp_path / "out", found, ["a", "b"], "model", False, path.parent, lambda path: Image.new("L", (8, 8)))
    table = tmp_path / "out" / "next.csv"
    assert earlier_choice(table) == [str(path)]
    table.write_bytes(codecs.BOM_UTF8 + table.read_bytes())  # as a spreadsheet saves it
    assert earlier_choice(table) == [str(path)]
    address = json.loads((tmp_path / "out" / "label_studio.json").read_text())[0]["data"]["image"]
    assert address.endswith("photos/caf%E9.png")


def test_texts_from_the_command_line_and_from_python(tmp_path, capfd):
    model, file = save_classifier(tmp_path / "model"), tmp_path / "lines.txt"
    texts = [f"text {i}" for i in range(9)]
    file.write_text("\n".join([*texts, "", "far too long a text"]) + "\n")
    assert main(["next", str(model), str(file), "--count", "4", "-o", str(tmp_path / "out")]) == 0
    assert "1 of 10 texts could not be read" in capfd.readouterr().err
    rows = list(csv.DictReader((tmp_path / "out" / "next.csv").read_text().splitlines()))
    found = next_to_label(vit.load(model), texts, count=4)
    assert [row["text"] for row in rows] == [each.source for each in found.chosen]
    assert found.samples == 9 and {each.labels[0] for each in found.chosen} <= {"no", "yes"}


def test_names_that_are_not_utf8_and_the_parent_as_folder(tmp_path, monkeypatch):
    model, odd = save_images_model(tmp_path / "model"), tmp_path / "odd"
    (odd / "inner").mkdir(parents=True)
    for seed in range(3):
        drawing(seed).save(odd / f"{seed}.png")
    os.rename(odd / "0.png", os.fsencode(odd) + b"/=<\xff>.png")
    monkeypatch.chdir(odd / "inner")
    for out, exclude, left in (("one", [], 1), ("two", ["--exclude", str(tmp_path / "one" / "next.csv")], 2)):
        assert main(["next", str(model), "..", "--count", str(left), "-o", str(tmp_path / out), *exclude]) == 0
    tasks = [json.loads((tmp_path / out / "label_studio.json").read_text()) for out in ("one", "two")]
    addresses = {task["data"]["image"].removeprefix("/data/local-files/?d=") for task in sum(tasks, [])}
    assert addresses == {"odd/%3D%3C%FF%3E.png", "odd/1.png", "odd/2.png"}


def test_of_all_inputs_excluded_none_is_left(tmp_path):
    predictor = vit.load(save_classifier(tmp_path / "model"))
    with pytest.raises(ValueError, match="0 of 2 inputs are left to choose from, with 3 excluded; add inputs"):
        next_to_label(predictor, ["a", "b"], exclude=["a", "b", "c"])


def test_bad_input(photos, tmp_path, capfd):
    model = save_images_model(tmp_path / "model")
    other = tmp_path / "other.csv"
    other.write_text("name,label\na,b\n")
    none = tmp_path / "none.csv"
    none.write_text("path,label\nelsewhere/a.png,b\n")
    for arguments, message in (
        ([str(photos / "00.png")], "is not a folder; pass the folder of the images"),
        ([str(photos), "--exclude", str(other)], "the first column must be path or text"),
        ([str(photos), "--exclude", str(none)], "none of the 1 sample to exclude is among the 32 inputs"),
        ([str(photos), "-o", str(tmp_path)], "exists and is not overwritten"),
    ):
        assert main(["next", str(model), "-o", str(tmp_path / "out"), *arguments]) == 1
        assert message in capfd.readouterr().err


def test_residuals_are_the_gradients_of_the_loss_of_the_predicted_labels():
    logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    loss = torch.nn.functional.cross_entropy(logits, logits.argmax(1), reduction="sum")
    (expected,) = torch.autograd.grad(loss, logits)
    np.testing.assert_allclose(residuals(logits.detach().softmax(1).numpy()), expected.numpy(), atol=1e-6)
    thresholds = np.array([0.3, 0.5, 0.6, 0.9])
    predicted = torch.from_numpy(logits.detach().sigmoid().numpy() >= thresholds).float()
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, predicted, reduction="sum")
    (expected,) = torch.autograd.grad(loss, logits)
    np.testing.assert_allclose(residuals(logits.detach().sigmoid().numpy(), thresholds), expected.numpy(), atol=1e-6)


def test_directions_are_unit_vectors_from_the_mean_of_the_features():
    features = np.random.default_rng(0).normal(size=(9, 4)) + 50
    found = directions(features)
    centred = features - features.mean(0)
    np.testing.assert_allclose(found, centred / np.linalg.norm(centred, axis=1)[:, None])
    assert (directions(np.ones((3, 2))) == 0).all()


def test_the_most_uncertain_come_first_and_equal_ones_in_their_order():
    assert most_uncertain(np.array([0.2, 0.9, 0.5, 0.9, 0.1]), 3).tolist() == [1, 3, 2]
