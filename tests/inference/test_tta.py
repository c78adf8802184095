"""Test-time augmentation of image classifiers."""

import csv
import io
import json

import numpy as np
import pytest
import torch
from PIL import Image

import vit
from vit.bundle import save_bundle
from vit.cli import main
from vit.data import Preprocessing
from vit.inference.tta import averaged

CLASSES = ["ant", "bee", "cow"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    model = vit.create_model("vit_tiny", image_size=16, patch_size=8, dim=24, num_heads=2, num_classes=3, depth=1)
    rng = np.random.default_rng(3)  # torch initializes other weights in other versions
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.from_numpy(rng.normal(scale=0.2, size=parameter.shape)))
    return save_bundle(tmp_path_factory.mktemp("run") / "model", model, CLASSES, Preprocessing(size=(16, 16)))


@pytest.fixture(scope="module")
def pictures():
    return np.random.default_rng(0).integers(0, 255, (12, 16, 16, 3), np.uint8)


def probabilities(predictor, images, **options):
    """(N,classes), in the order of the classes"""
    found = predictor.predict(images, top_k=3, **options)
    return np.array([[dict(zip(p.names, p.probabilities, strict=True))[name] for name in CLASSES] for p in found])


def test_an_image_and_its_mirror_image_have_the_same_prediction(saved, pictures):
    predictor = vit.load(saved)
    mirrored = pictures[:, :, ::-1].copy()
    plain, other = (np.log(probabilities(predictor, each)) for each in (pictures, mirrored))
    assert np.abs(plain - other).max() > 0.01
    both = probabilities(predictor, pictures, tta=2)
    np.testing.assert_allclose(both, probabilities(predictor, mirrored, tta=2), rtol=1e-4)
    geometric = np.exp((plain + other) / 2)  # the mean of logits
    np.testing.assert_allclose(both, geometric / geometric.sum(1, keepdims=True), rtol=1e-4)
    np.testing.assert_array_equal(np.log(probabilities(predictor, pictures)), plain)


def test_other_numbers_are_refused(saved, pictures):
    with pytest.raises(ValueError, match="tta=3: a classifier of images averages.*use tta=2"):
        vit.load(saved).predict(pictures, tta=3)
    with pytest.raises(ValueError, match="tta=0: a classifier of images averages"):
        averaged(torch.nn.Identity(), 0)


def test_predict_and_evaluate_average_over_mirror_images(saved, pictures, tmp_path, capfd):
    predictor = vit.load(saved)
    for name in CLASSES:
        (tmp_path / "photos" / name).mkdir(parents=True)
    expected = [prediction.label for prediction in predictor.predict(pictures, tta=2)]
    plain = [prediction.label for prediction in predictor.predict(pictures)]
    assert expected != plain
    for number, (pixels, label) in enumerate(zip(pictures, expected, strict=True)):  # labels that are right with both
        Image.fromarray(pixels).save(tmp_path / "photos" / label / f"{number:02}.png")
    assert main(["predict", str(saved), str(tmp_path / "photos"), "--tta", "2"]) == 0
    rows = list(csv.DictReader(io.StringIO(capfd.readouterr().out)))
    assert [row["label"] for row in rows] == sorted(expected)
    assert main(["predict", str(saved), str(tmp_path / "photos"), "--tta", "3"]) == 2
    assert "--tta 3: a classifier of images" in capfd.readouterr().err
    accuracy = {}
    for tta in ("1", "2"):
        command = ["evaluate", str(saved), "data=folder", f"data.root={tmp_path / 'photos'}", "--split", "all",
                   "--tta", tta, "--json", str(tmp_path / "found.json")]
        assert main(command) == 0
        assert ("mirror images" in capfd.readouterr().out) == (tta == "2")
        accuracy[tta] = json.loads((tmp_path / "found.json").read_text())["all/accuracy"]
    assert accuracy["2"] == 1.0
    assert accuracy["1"] == np.mean(np.array(plain) == np.array(expected))
