"""The film of a training: its frames against predictions, a run with and without it, resuming, and its GIF."""

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import vit
from tests.run.conftest import table
from vit.bundle import save_bundle
from vit.data import Preprocessing, Split
from vit.report.attention.recording import image_attention
from vit.report.figures.film import GAP, SIDE, TOP, Shot, film_frame, write_film
from vit.run.config.composing import ConfigError
from vit.run.film import Film

QUICK = ["recipe.epochs=2", "precision=32-true", "logger=csv", "report=false", "calibrate=none"]
QUICK += ["data.patch_size=4", "recipe.batch_size=256", "model.dim=16", "model.num_heads=2", "model.depth=1"]


def test_a_film_changes_nothing_and_is_the_same_after_resuming(tmp_path):
    plain, filmed = (vit.train([*QUICK, *film, f"run_dir={tmp_path / name}"])
                     for name, film in (("plain", []), ("filmed", ["callbacks.film=5"])))
    weights = [load_file(run.path / "model" / "model.safetensors") for run in (plain, filmed)]
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())
    assert [row["val/loss"] for row in table(plain.path / "metrics.csv")] == [
        row["val/loss"] for row in table(filmed.path / "metrics.csv")]
    assert not (plain.path / "film").exists() and not (plain.path / "film.gif").exists()
    with Image.open(filmed.path / "film.gif") as film:
        assert film.n_frames == 2 and film.info["loop"] == 0
    frames = {path.name: path.read_bytes() for path in (filmed.path / "film").iterdir()}
    assert sorted(frames) == ["epoch_0001.png", "epoch_0002.png"]
    resumed = vit.train([*QUICK, "recipe.epochs=1", "callbacks.film=5", f"run_dir={tmp_path / 'resumed'}"])
    (resumed.path / "metrics.json").unlink()  # as if it had been stopped
    vit.train([f"resume={resumed.path}", "recipe.epochs=2"])
    assert sorted(path.name for path in (resumed.path / "film").iterdir()) == sorted(frames)
    with Image.open(resumed.path / "film.gif") as film:
        assert film.n_frames == 2


def test_shots_are_the_predictions_and_the_rollout_of_the_model(tmp_path):
    torch.manual_seed(0)
    model = vit.create_model("vit_tiny", image_size=8, patch_size=4, num_classes=3, dim=12, num_heads=2, depth=2)
    save_bundle(tmp_path / "model", model, list("abc"), Preprocessing((8, 8)))
    predictor = vit.load(tmp_path / "model")
    images = np.random.default_rng(0).integers(0, 255, (4, 8, 8, 3), np.uint8)
    shots = film_of(images, predictor).shots(predictor.model)
    for image, shot, expected in zip(images, shots, predictor.predict(list(images)), strict=True):
        assert shot.predicted == expected.label and shot.probability == pytest.approx(expected.probability, abs=1e-6)
        np.testing.assert_array_equal(shot.image, image)
        np.testing.assert_allclose(shot.rollout, image_attention(predictor, image).pooled_rollout(), atol=1e-6)
    assert [shot.label for shot in shots] == ["a", "b", "c", "a"]


def film_of(images, predictor) -> Film:
    split = Split(np.arange(len(images)) % 3, [f"{i}.png" for i in range(len(images))], lambda i: images[i])
    return Film("folder", split, list("abc"), predictor.preprocessing, len(images), "val/accuracy")


def test_a_model_without_attention_is_filmed_without_a_rollout():
    model = vit.create_model("timm:resnet10t", num_classes=3, image_size=8).eval()
    images = np.zeros((2, 8, 8, 3), np.uint8)
    split = Split(np.zeros(2, int), ["a", "b"], lambda i: images[i])
    shots = Film("folder", split, list("abc"), Preprocessing((8, 8)), 2, "val/accuracy").shots(model)
    assert [shot.rollout for shot in shots] == [None, None] and 1 / 3 <= shots[0].probability <= 1


def test_the_bar_of_a_frame_is_as_long_as_the_probability_and_orange_where_it_is_wrong():
    picture = np.full((8, 8, 1), 90, np.uint8)
    right, wrong = Shot(picture, None, "a", "a", 0.75), Shot(picture, np.eye(2), "a", "b" * 40, 0.25)
    pixels = np.asarray(film_frame([right, wrong], "epoch 1")).astype(int)
    bar = pixels[TOP + SIDE + 7]
    blue, orange = (bar[:, 2] > bar[:, 0] + 60).sum(), (bar[:, 0] > bar[:, 2] + 60).sum()
    assert (blue, orange) == (round(0.75 * SIDE), round(0.25 * SIDE))
    assert (pixels[TOP + 5, GAP + 5] == 90).all()  # the image without a map as it is
    first, second = pixels[TOP + 5, 2 * GAP + SIDE + 5], pixels[TOP + 5, 2 * GAP + 2 * SIDE - 5]
    assert first[0] > first[2] + 60 and second[0] == second[2]  # the map on the diagonal


def test_a_film_repeats_and_rests_on_its_last_frame(tmp_path):
    frames = []
    for i in range(3):
        frames.append(tmp_path / f"{i}.png")
        Image.new("RGB", (20, 10), (80 * i, 0, 0)).save(frames[-1])
    with Image.open(write_film(tmp_path / "new" / "film.gif", frames)) as film:
        durations, reds = [], []
        for i in range(film.n_frames):
            film.seek(i)
            durations.append(film.info["duration"])
            reds.append(film.convert("RGB").getpixel((5, 5))[0])
    assert durations == [400, 400, 2500] and reds == [0, 80, 160]
    with pytest.raises(ValueError, match="at least one frame"):
        write_film(tmp_path / "none.gif", [])


def test_only_image_classifiers_are_filmed(tmp_path):
    with pytest.raises(ConfigError, match="callbacks.film=4 shows how images are classified, but task=seq2seq has no"):
        vit.train(["data=spelled_numbers", "data.limit=300", "data.train=64", "data.val=8", "data.test=8",
                   "model.dim=16", "model.num_heads=2", "recipe.batch_size=32", "callbacks.film=4",
                   f"run_dir={tmp_path / 'run'}"])
    with pytest.raises(ConfigError, match="callbacks.film"):
        vit.train([*QUICK, "callbacks.film=0", f"run_dir={tmp_path / 'run'}"])
