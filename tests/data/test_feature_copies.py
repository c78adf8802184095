"""Near copies by features: against NumPy's products and whitening, and through `vit audit --model`."""

import json
import tracemalloc

import numpy as np
import pytest
import torch
from PIL import Image

import vit
from tests.data.test_near_copies import CHANGES, drawing
from vit.bundle import save_bundle
from vit.cli import main
from vit.data import DataError, Preprocessing
from vit.data.quality.feature_copies import crop_pairs, find_feature_pairs, similar_pairs, whitened
from vit.data.quality.near_copies import thumbnail


def test_without_shrinkage_the_features_are_those_of_the_inverse_covariance(monkeypatch):
    monkeypatch.setattr("vit.data.quality.feature_copies.SHRINKAGE", 0.0)
    rng = np.random.default_rng(0)
    features = rng.normal(size=(200, 8)) @ rng.normal(size=(8, 8)) + 5
    found = whitened(features.astype(np.float32)).numpy()
    centred = features - features.mean(0)
    precision = np.linalg.inv(np.cov(features.T, bias=True))
    products = centred @ precision @ centred.T
    expected = products / np.sqrt(np.outer(np.diag(products), np.diag(products)))
    assert np.allclose(found @ found.T, expected, atol=1e-4)


def test_pairs_are_those_of_all_products_in_every_block(monkeypatch, caplog):
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(60, 6))
    vectors[40:] = vectors[:20] + 0.5 * rng.normal(size=(20, 6))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    products = vectors @ vectors.T
    np.fill_diagonal(products, -1)
    expected = {(i, j) for i, j in zip(*np.nonzero(products >= 0.5), strict=True) if i < j}
    seen = []
    for block in (2048, 7):
        monkeypatch.setattr("vit.data.quality.feature_copies.BLOCK", block)
        pairs, nearest, cosines = similar_pairs(torch.from_numpy(vectors), lambda *counts: seen.append(counts))
        assert seen[-1] == ("compares features", 60, 60)
        assert {(i, j) for i, j, _ in pairs} == expected and len(pairs) == len(expected) > 20
        assert all(value == pytest.approx(products[i, j], abs=1e-5) for i, j, value in pairs)
        assert np.array_equal(nearest, products.argmax(1)) and np.allclose(cosines, products.max(1), atol=1e-5)
    assert not caplog.records
    monkeypatch.setattr("vit.data.quality.feature_copies.MAX_PAIRS", 5)
    best = sorted(products[i, j] for i, j in expected)[-5:]
    assert sorted(value for *_, value in similar_pairs(torch.from_numpy(vectors))[0]) == pytest.approx(best, abs=1e-5)
    assert f"more than 5 pairs have similar features: those with a cosine of {best[0]:.3f}" in caplog.text


def test_pairs_of_a_block_are_truncated_before_they_become_python_objects(monkeypatch):
    monkeypatch.setattr("vit.data.quality.feature_copies.MAX_PAIRS", 5)
    vectors = torch.zeros(700, 4)
    vectors[:, 0] = 1
    tracemalloc.start()
    pairs, _, cosines = similar_pairs(vectors)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert pairs == [(0, j, 1.0) for j in range(1, 6)] and (cosines == 1).all()
    assert peak < 2e6  # 244,650 pairs as tuples are 20 MB or more


def strong_crop(image):
    left, top = image.width // 8, image.height // 5
    return image.crop((left, top, left + round(0.72 * image.width), top + round(0.72 * image.height)))


def test_strong_crops_of_the_most_similar_image_are_found_and_other_images_are_not():
    originals = [drawing(seed) for seed in range(40)]
    pixels = np.stack([thumbnail(image) for image in (*originals, *map(strong_crop, originals[:10]))])
    nearest = np.arange(50)
    nearest[40:] = np.arange(10)
    nearest[:40] = np.roll(np.arange(40), 1)
    found = crop_pairs(pixels, nearest, np.ones(50, bool))
    assert {(i, j) for i, j, _ in found} == {(i, 40 + i) for i in range(10)}
    assert crop_pairs(pixels, nearest, np.zeros(50, bool)) == []


def test_features_that_cannot_be_compared():
    with pytest.raises(DataError, match="30 of 30 feature vectors have values that are not finite"):
        find_feature_pairs(np.full((30, 4), np.nan, np.float32), np.zeros((30, 64, 64), np.uint8))


def test_features_that_are_all_equal_give_no_pair():
    assert find_feature_pairs(np.ones((30, 4), np.float32), np.zeros((30, 64, 64), np.uint8)) == {
        "crop": [], "features": []}


def test_the_command_adds_copies_that_only_the_model_shows(tmp_path, capsys):
    """A copy with its halves exchanged: the model has no positions and pools by the mean."""
    for number in range(40):
        folder = tmp_path / "photos" / ("train" if number < 30 else "test") / ("cat" if number % 2 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        drawing(number).save(folder / f"{number}.png")
    halves = np.roll(np.asarray(drawing(3)), 48, axis=1)
    Image.fromarray(halves).save(tmp_path / "photos" / "test" / "dog" / "copy.png")
    CHANGES["mirrored"](drawing(4)).save(tmp_path / "photos" / "train" / "cat" / "mirror.png")
    torch.manual_seed(0)
    model = vit.create_model("vit_tiny", image_size=32, patch_size=4, num_classes=2, depth=1, dim=64, num_heads=2,
                             pool="mean", class_token=False)
    model.embed.pos_embed.data.zero_()
    folder = save_bundle(tmp_path / "model", model, ["cat", "dog"], Preprocessing((32, 32), resize="squash"))
    report = tmp_path / "audit.json"
    arguments = ["audit", "data=folder", f"data.root={tmp_path / 'photos'}", "--json", str(report)]
    assert main([*arguments, "--near-copies"]) == 0
    assert len(json.loads(report.read_text())["near_copies"]) == 1
    assert main([*arguments, "--model", str(folder)]) == 0
    found = {pair["found_by"]: {pair["one"][1], pair["other"][1]} for pair in
             json.loads(report.read_text())["near_copies"]}
    assert found["pixels"] == {"train/dog/4.png", "train/cat/mirror.png"}
    assert found["features"] == {"train/cat/3.png", "test/dog/copy.png"}
    assert "(features)" in capsys.readouterr().out


def test_models_and_options_that_do_not_fit_are_named(tmp_path, capsys):
    from tests.inference.tiny_models import save_translator

    translator = save_translator(tmp_path / "translator")
    assert main(["audit", "data=digits", "--model", str(translator)]) == 1
    assert "reads texts, but near copies are images" in capsys.readouterr().err
    torch.manual_seed(0)
    model = vit.create_model("vit_tiny", image_size=8, patch_size=4, num_classes=2, depth=1, dim=16, num_heads=2)
    folder = save_bundle(tmp_path / "model", model, ["a", "b"], Preprocessing((8, 8), resize="squash"))
    assert main(["audit", "data=digits", "--seconds", "0", "--model", str(folder)]) == 1
    error = capsys.readouterr().err
    assert "only 0 of 1,797 images are such" in error and "sides of 16 pixels or more" in error
    assert main(["audit", "--labels", str(tmp_path), "--model", str(translator)]) == 2
    assert "run vit audit once for each" in capsys.readouterr().err
