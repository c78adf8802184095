"""The film of a training run: its frames against predictions, a run with and without it, resuming, and its GIF."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image, ImageColor
from safetensors.torch import load_file

import vit
from tests.run.conftest import table
from vit.bundle import save_bundle
from vit.data import Preprocessing, Split
from vit.data.sets.spelled_numbers import spell_out
from vit.data.text.tokenizers import BOS, EOS
from vit.report.attention.recording import image_attention, teacher_forced_attention
from vit.report.figures.film import GAP, SIDE, TOP, WIDEST, FilmSample, film_frame, stacked_frame, write_film
from vit.report.figures.style import BLUE, ORANGE
from vit.run.config.composing import ConfigError
from vit.run.film import Film, ImageFilm, MultiLabelFilm, Seq2SeqFilm, TextFilm
from vit.run.jobs.seq2seq import Seq2SeqJob
from vit.run.records.folder import RunFolder

QUICK = ["recipe.epochs=2", "precision=32-true", "logger=csv", "report=false", "calibrate=none"]
QUICK += ["data.patch_size=4", "recipe.batch_size=256", "model.dim=16", "model.num_heads=2", "model.depth=1"]


@pytest.fixture(scope="module", autouse=True)
def blank_pictures():
    """Figures are drawn."""


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


def test_a_film_has_one_number_of_samples_and_no_epochs_after_the_last(tmp_path):
    film = SilentFilm(tmp_path, "val/loss")
    assert film.frames() == []
    for epoch, width in {1: 8, 2: 16, 9999: 16, 10000: 16, 10001: 16}.items():
        (tmp_path / "film").mkdir(exist_ok=True)
        Image.new("RGB", (width, 8)).save(tmp_path / "film" / f"epoch_{epoch:04d}.png")
    assert [path.stem for path in film.frames()][-2:] == ["epoch_10000", "epoch_10001"]
    film.last = tmp_path / "film" / "epoch_10000.png"
    assert [path.stem for path in film.frames()] == ["epoch_0002", "epoch_9999", "epoch_10000"]


class SilentFilm(Film):
    def record(self, task):
        return ()

    def draw(self, recorded, title):
        raise AssertionError


def test_shots_are_the_predictions_and_the_rollout_of_the_model(tmp_path):
    torch.manual_seed(0)
    model = vit.create_model("vit_tiny", image_size=8, patch_size=4, num_classes=3, dim=12, num_heads=2, depth=2)
    save_bundle(tmp_path / "model", model, list("abc"), Preprocessing((8, 8)))
    predictor = vit.load(tmp_path / "model")
    images = np.random.default_rng(0).integers(0, 255, (4, 8, 8, 3), np.uint8)
    shots = film_of(images, predictor).record(predictor)
    for image, shot, expected in zip(images, shots, predictor.predict(list(images)), strict=True):
        assert shot.predicted == expected.label and shot.probability == pytest.approx(expected.probability, abs=1e-6)
        np.testing.assert_array_equal(shot.image, image)
        np.testing.assert_allclose(shot.rollout, image_attention(predictor, image).pooled_rollout(), atol=1e-6)
    assert [shot.label for shot in shots] == ["a", "b", "c", "a"]


def film_of(images, predictor) -> ImageFilm:
    split = Split(np.arange(len(images)) % 3, [f"{i}.png" for i in range(len(images))], lambda i: images[i])
    return ImageFilm("folder", "val/accuracy", split, list("abc"), predictor.preprocessing, len(images))


@pytest.mark.parametrize(("name", "options"), [
    ("timm:resnet10t", {}), ("vit_tiny", {"mixer": "lstm", "pool": "attention", "patch_size": 4})])
def test_a_model_without_attention_between_patches_is_filmed_without_a_rollout(name, options):
    model = vit.create_model(name, num_classes=3, image_size=8, **options).eval()
    images = np.zeros((2, 8, 8, 3), np.uint8)
    split = Split(np.zeros(2, int), ["a", "b"], lambda i: images[i])
    shots = ImageFilm("folder", "val/accuracy", split, list("abc"), Preprocessing((8, 8)), 2).record(
        SimpleNamespace(model=model))
    assert [shot.rollout for shot in shots] == [None, None] and 1 / 3 <= shots[0].probability <= 1


def test_the_bar_of_a_frame_is_as_long_as_the_probability_and_orange_where_it_is_wrong():
    picture = np.full((8, 8, 1), 90, np.uint8)
    right, wrong = FilmSample(picture, None, "a", "a", 0.75), FilmSample(picture, np.eye(2), "a", "b" * 40, 0.25)
    pixels = np.asarray(film_frame([right, wrong], "epoch 1")).astype(int)
    bar = pixels[TOP + SIDE + 7]
    blue, orange = (bar[:, 2] > bar[:, 0] + 60).sum(), (bar[:, 0] > bar[:, 2] + 60).sum()
    assert (blue, orange) == (round(0.75 * SIDE), round(0.25 * SIDE))
    assert (pixels[TOP + 5, GAP + 5] == 90).all()  # the image without a map as it is
    first, second = pixels[TOP + 5, 2 * GAP + SIDE + 5], pixels[TOP + 5, 2 * GAP + 2 * SIDE - 5]
    assert first[0] > first[2] + 60 and second[0] == second[2]  # the map on the diagonal


@pytest.mark.parametrize("name", ["w" * 40, "قطة سوداء كبيرة جدا في البيت القديم", "<b>" * 20])
def test_names_below_an_image_end_before_the_next_one(name):
    picture = np.full((8, 8, 1), 90, np.uint8)
    pixels = np.asarray(film_frame([FilmSample(picture, None, name, name[::-1], 1.0)] * 2, "epoch 1"))
    below = pixels[TOP + SIDE + 12 :]
    assert (below[:, GAP : GAP + SIDE] < 200).any() and (below[:, GAP + SIDE + 2 : 2 * GAP + SIDE - 2] == 255).all()


def test_the_gif_has_the_colours_of_the_bars(tmp_path):
    """They cover a small area, so that a palette of the most frequent colours has others in their place."""
    picture = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    samples = [FilmSample(picture, np.eye(4), "a", predicted, 0.1) for predicted in "ab"]
    frame = tmp_path / "frame.png"
    film_frame(samples, "epoch 1").save(frame)
    with Image.open(write_film(tmp_path / "film.gif", [frame])) as film:
        shown = film.convert("RGB")
    assert len(shown.getcolors()) > 20  # the pictures too
    for sample, colour in enumerate((BLUE, ORANGE)):
        assert shown.getpixel((GAP + 3 + sample * (SIDE + GAP), TOP + SIDE + 7)) == ImageColor.getrgb(colour)


def test_a_film_repeats_and_pauses_on_its_last_frame(tmp_path):
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


def test_the_probability_of_several_labels_is_that_of_the_whole_set():
    split = Split(np.array([[1, 0, 1], [0, 0, 0]]), ["a", "b"], lambda i: np.zeros((8, 8, 3), np.uint8))
    film = MultiLabelFilm("folder", "val/map", split, ["cat", "dog", "owl"], Preprocessing((8, 8)), 2)
    assert film.labels == ["cat, owl", "no label"]
    text, probability = film.prediction(torch.tensor([0.8, 0.25, 0.5]).logit())
    assert text == "cat, owl" and probability == pytest.approx(0.8 * 0.75 * 0.5)
    assert film.prediction(torch.tensor([-1.0, -1.0, -1.0]))[0] == "no label"


def test_stacked_pictures_have_one_scale_and_at_most_the_width_of_a_frame():
    wide, narrow = Image.new("RGB", (2 * WIDEST, 400), (200, 0, 0)), Image.new("RGB", (WIDEST, 200), (0, 0, 200))
    frame = stacked_frame([wide, narrow], "epoch 1")
    assert frame.size == (WIDEST, TOP + 200 + 100)
    assert frame.getpixel((WIDEST - 5, TOP + 100)) == (200, 0, 0)
    assert frame.getpixel((WIDEST // 2 - 5, TOP + 250)) == (0, 0, 200)
    assert frame.getpixel((WIDEST // 2 + 5, TOP + 250)) == (255, 255, 255)
    assert stacked_frame([narrow.resize((20, 10))], "epoch 1").size == (20, TOP + 10)  # not enlarged


SMALL = ["model.dim=16", "model.num_heads=2", "model.depth=1", "recipe.epochs=2", "precision=32-true", "logger=csv",
         "report=false"]


@pytest.mark.slow
def test_texts_are_filmed_with_their_predictions(tmp_path, monkeypatch):
    headings = recorded_headings(monkeypatch, TextFilm)
    rows = [f"a {word} and a {word},{word},{split}" for split in ("train", "val", "test")
            for word in ("cat", "dog", "owl", "fox") * 4]
    (tmp_path / "table.csv").write_text("\n".join(["text,label,split", *rows]))
    run = vit.train(["data=text_table", f"data.path={tmp_path / 'table.csv'}", *SMALL, "recipe.batch_size=16",
                     "calibrate=none", "callbacks.film=2", f"run_dir={tmp_path / 'run'}"])
    frames = frame_sizes(run.path)
    assert len(frames) == 2 and len(set(frames)) == 1
    found = vit.load(run.path).predict(["a cat and a cat"])[0]
    best = vit.load(run.path).bundle.metrics["best_epoch"]
    wrong = "" if found.label == "cat" else ", not cat"
    assert headings[best - 1][0] == f"a cat and a cat → {found.label} {found.probability:.1%}{wrong}"
    with pytest.raises(ConfigError, match="callbacks.film=2 shows the attention between tokens, but model.mixer=lstm"):
        vit.train(["data=text_table", f"data.path={tmp_path / 'table.csv'}", *SMALL, "recipe.batch_size=16",
                   "model.mixer=lstm", "model.pool=mean", "callbacks.film=2", f"run_dir={tmp_path / 'refused'}"])


NUMBERS = ["data=spelled_numbers", "data.limit=300", "data.train=64", "data.val=8", "data.test=8",
           "model.decoder_depth=1", "recipe.batch_size=32", "task.decode.beam=1", "task.decode.max_len=40"]


@pytest.mark.slow
def test_translations_are_filmed_with_what_greedy_search_generates(tmp_path, monkeypatch):
    headings = recorded_headings(monkeypatch, Seq2SeqFilm)
    plain, filmed = (vit.train([*NUMBERS, *SMALL, *film, f"run_dir={tmp_path / name}"])
                     for name, film in (("plain", []), ("filmed", ["callbacks.film=2"])))
    weights = [load_file(run.path / "model" / "model.safetensors") for run in (plain, filmed)]
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())
    frames = frame_sizes(filmed.path)
    assert len(frames) == 2 and len(set(frames)) == 1
    predictor = vit.load(filmed.path)
    source = headings[-1][0].partition(" → ")[0]
    assert source.isdigit() and len(headings[-1]) == 2
    best = headings[predictor.bundle.metrics["best_epoch"] - 1][0]
    assert best == f"{source} → {predictor.predict([source])[0].text}"


def test_a_frame_of_generated_texts_has_the_metric_of_its_epoch(tmp_path, monkeypatch):
    titles = []
    monkeypatch.setattr(Seq2SeqFilm, "draw", lambda self, found, title: titles.append(title) or
                        Image.new("RGB", (9, 9)))
    run = vit.train([*NUMBERS, *SMALL, "callbacks.film=1", "callbacks.monitor=val/cer", "callbacks.mode=min",
                     f"run_dir={tmp_path / 'run'}"])
    assert titles == [f"epoch {epoch}   val/cer {float(row['val/cer']):.4f}"
                      for epoch, row in enumerate(table(run.path / "metrics.csv"), 1)]


def test_the_cross_attention_of_a_frame_is_that_of_predicting_the_reference(tmp_path, monkeypatch):
    recorded = {}
    monkeypatch.setattr(Seq2SeqFilm, "draw", lambda self, found, title: recorded.update(
        {title: found}) or Image.new("RGB", (9, 9)))
    run = vit.train([*NUMBERS, *SMALL, "recipe.epochs=1", "callbacks.film=1", f"run_dir={tmp_path / 'run'}"])
    [(attention, heading)] = next(iter(recorded.values()))
    [(kind, maps)] = attention.maps.items()
    source = heading.partition(" → ")[0]
    assert kind == "target to source"
    assert "".join(maps.keys[:-1]) == source and "".join(maps.queries[:-1]) == spell_out(int(source)).replace(" ", "␣")
    predictor = vit.load(run.path)
    ids = torch.tensor([[BOS, *predictor.tokenizer.encode(spell_out(int(source))), EOS]])
    inputs, mask = predictor.collate([predictor.encode(source, "a number")])
    expected = teacher_forced_attention(predictor.model, inputs, mask, ids, maps.keys, ["", *maps.queries])
    for name, weights in maps.layers.items():
        np.testing.assert_allclose(weights, expected["target to source"].layers[name], atol=1e-6)


@pytest.mark.slow
def test_images_of_text_and_masked_images_are_filmed(tmp_path):
    run = vit.train(["data=digit_strips", "data.train=16", "data.val=4", "data.test=4", *SMALL, "recipe.epochs=2",
                     "model.decoder_depth=1", "recipe.batch_size=8", "task.decode.beam=1", "task.decode.max_len=8",
                     "callbacks.film=2", f"run_dir={tmp_path / 'strips'}"])
    assert len(frame_sizes(run.path)) == 2 and len(set(frame_sizes(run.path))) == 1
    run = vit.train(["experiment=mae", "data=digits", "data.patch_size=2", "task.examples=0", "recipe.epochs=2",
                     "recipe.batch_size=256", "precision=32-true", "logger=csv", "report=false", "model.dim=16",
                     "model.depth=1",
                     "model.num_heads=2", "model.decoder_dim=16", "model.decoder_depth=1", "model.decoder_num_heads=2",
                     "callbacks.film=3", f"run_dir={tmp_path / 'masked'}"])
    assert len(frame_sizes(run.path)) == 2 and len(set(frame_sizes(run.path))) == 1
    with Image.open(run.path / "film.gif") as film:
        assert film.n_frames == 2


def frame_sizes(run: Path) -> list[tuple[int, int]]:
    return [Image.open(path).size for path in sorted((run / "film").glob("epoch_*.png"))]


def recorded_headings(monkeypatch, kind: type) -> list[list[str]]:
    """The headings of the samples of each frame, filled while a run is filmed."""
    headings, draw = [], kind.draw
    monkeypatch.setattr(kind, "draw", lambda self, recorded, title: (
        headings.append([heading for _, heading in recorded]), draw(self, recorded, title))[1])
    return headings


def test_what_cannot_be_filmed_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="callbacks.film=4 records images, texts with labels, and pairs, but task="
                                          "masked_text"):
        vit.train(["data=corpus", "model=bert", "callbacks.film=4", f"run_dir={tmp_path / 'run'}"])
    sharded = SimpleNamespace(config={"strategy": {"name": "fsdp"}})
    with pytest.raises(ConfigError, match="callbacks.film=4 generates texts, but strategy=fsdp"):
        Seq2SeqJob.film(sharded, RunFolder(tmp_path, main=False), 4)
    with pytest.raises(ConfigError, match="callbacks.film"):
        vit.train([*QUICK, "callbacks.film=0", f"run_dir={tmp_path / 'run'}"])
