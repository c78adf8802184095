"""Near copies of photographs and drawn images; the transform against SciPy's."""

import io
import json
import os

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageFilter
from scipy.fft import dctn

from vit.cli import main
from vit.data import PackedPreprocessing, Preprocessing, unlabelled_images
from vit.data.quality.audit import audit
from vit.data.quality.feature_copies import similar_pairs, whitened
from vit.data.quality.near_copies import (
    GRID,
    NearCopy,
    basis,
    describe_pairs,
    find_pairs,
    read_thumbnails,
    thumbnail,
)

CHANGES = {
    "smaller": lambda image: image.resize((image.width * 2 // 3, image.height // 2)),
    "recompressed": lambda image: recompressed(image),
    "cropped": lambda image: image.crop((image.width // 33, image.height // 20, image.width // 33 +
                                         round(0.9 * image.width), image.height // 20 + round(0.9 * image.height))),
    "mirrored": lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    "darker": lambda image: ImageEnhance.Brightness(image).enhance(0.7),
}


def recompressed(image):
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=40)
    return Image.open(stream).convert("RGB")


def drawing(seed, size=(96, 80)):
    """Smooth noise, in which all low frequencies occur."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1] // 8, size[0] // 8, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC).filter(ImageFilter.GaussianBlur(2))


def test_the_basis_is_that_of_scipy():
    values = np.random.default_rng(0).random((GRID, GRID))
    ours = basis(0, GRID, 12) @ values @ basis(0, GRID, 12).T
    theirs = dctn(values, norm="ortho")[:12, :12] / GRID
    assert np.allclose(ours, theirs, atol=1e-6)


def test_a_mirrored_image_has_other_signs():
    values = np.random.default_rng(0).random((GRID, GRID))
    plain, mirrored = (basis(0, GRID, 8) @ each @ basis(0, GRID, 8).T for each in (values, values[:, ::-1]))
    assert np.allclose(mirrored, plain * np.where(np.arange(8) % 2, -1, 1), atol=1e-5)


@pytest.mark.parametrize("change", CHANGES)
def test_changed_copies_are_found_and_others_are_not(change):
    originals = [drawing(seed) for seed in range(60)]
    copies = [CHANGES[change](image) for image in originals[:20]]
    found = find_pairs(np.stack([thumbnail(image) for image in (*originals, *copies)]))
    assert {(i, j) for i, j, _ in found} == {(i, 60 + i) for i in range(20)}
    assert all(0.92 <= similarity <= 1 for _, _, similarity in found)


def test_the_progress_of_each_stage_reaches_its_total(tmp_path):
    for i in range(21):
        drawing(i % 20).save(tmp_path / f"{i:02}.png")
    source, seen = unlabelled_images(tmp_path), {}
    preprocessing = Preprocessing(size=32)

    def progress(stage, done, total):
        assert done <= total
        seen[stage] = (done, total)

    audit(source, preprocessing, None, progress)
    thumbnails = read_thumbnails(source, preprocessing, progress)
    assert len(find_pairs(thumbnails.pixels, progress)) == 1
    similar_pairs(whitened(thumbnails.pixels.reshape(21, -1)[:, ::64].astype(np.float32)), progress)
    assert list(seen) == ["headers", "decodes", "reads", "compares", "verifies", "compares features"]
    assert all(done == total > 0 for done, total in seen.values()), seen


def test_too_many_similar_images_are_reported(monkeypatch, caplog):
    pixels = np.stack([thumbnail(drawing(seed // 4)) for seed in range(40)])
    assert len(find_pairs(pixels)) == 60 and not caplog.text
    monkeypatch.setattr("vit.data.quality.near_copies.MAX_CANDIDATES", 20)
    assert len(find_pairs(pixels)) == 20 and "more than 20 pairs of images are similar" in caplog.text


def test_names_are_printable():
    pair = NearCopy(("train", os.fsdecode(b"a\xff.png"), "x\ny"), ("val", "b.png", ""), 0.95)
    assert describe_pairs([pair]).splitlines()[1] == "  0.950  train: a\\udcff.png (x\\ny) = val: b.png"


def test_blocks_do_not_matter(monkeypatch):
    originals = [drawing(seed) for seed in range(30)]
    pixels = np.stack([thumbnail(image) for image in (*originals, *map(CHANGES["cropped"], originals[:9]))])
    whole = find_pairs(pixels)
    monkeypatch.setattr("vit.data.quality.near_copies.BLOCK", 7)
    seen = {}  # stage -> the last (done, total)
    blocks = find_pairs(pixels, lambda stage, *counts: seen.update({stage: counts}))
    assert set(seen) == {"compares", "verifies"} and all(done == total for done, total in seen.values())
    assert [pair[:2] for pair in blocks] == [pair[:2] for pair in whole] and len(whole) == 9


def test_the_candidates_of_many_blocks_are_sorted_together(monkeypatch):
    """Sorting all candidates after each pair of blocks would take longer than comparing the images."""
    pixels = np.stack([thumbnail(drawing(seed % 8)) for seed in range(32)])
    monkeypatch.setattr("vit.data.quality.near_copies.BLOCK", 8)
    calls, unique = [], np.unique
    monkeypatch.setattr(np, "unique", lambda *arguments, **options: calls.append(0) or unique(*arguments, **options))
    assert len(find_pairs(pixels)) == 8 * 6
    assert len(calls) == 1


def test_the_number_of_candidates_is_bounded_by_the_best_ones(monkeypatch):
    originals = [drawing(seed) for seed in range(30)]
    pixels = np.stack([thumbnail(image) for image in (*originals, *originals[:9])])
    monkeypatch.setattr("vit.data.quality.near_copies.COARSE_LIMIT", 0.0)
    monkeypatch.setattr("vit.data.quality.near_copies.MAX_CANDIDATES", 9)
    assert [(i, j) for i, j, _ in find_pairs(pixels)] == [(i, 30 + i) for i in range(9)]


def test_large_jpegs_are_decoded_at_a_smaller_scale(tmp_path):
    for number, size in enumerate([(800, 600), (600, 2400), (300, 400)]):
        drawing(number).resize(size, Image.Resampling.BICUBIC).save(tmp_path / f"{number}.jpg", quality=95)
    source = unlabelled_images(tmp_path, fractions=(1, 0, 0))
    seen = []
    found = read_thumbnails(source, Preprocessing(size=32), lambda *counts: seen.append(counts))
    assert seen[-1] == ("reads", 3, 3)
    order = sorted(range(3), key=lambda i: source.splits["train"].names[found.positions[i][1]])
    assert [int(found.sides[i]) for i in order] == [300, 300, 300]  # 600 / 2, 600 / 2 and the whole image
    for i in order:
        whole = thumbnail(Image.open(tmp_path / source.splits["train"].names[found.positions[i][1]]).convert("RGB"))
        assert np.abs(found.pixels[i].astype(int) - whole).mean() < 1


def test_the_command_names_splits_and_classes(tmp_path, capsys):
    for number in range(40):
        folder = tmp_path / "photos" / ("train" if number < 30 else "test") / ("cat" if number % 2 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        drawing(number).save(folder / f"{number}.png")
    CHANGES["mirrored"](drawing(3)).save(tmp_path / "photos" / "test" / "dog" / "copy.png")
    Image.new("RGB", (50, 50), "white").save(tmp_path / "photos" / "train" / "dog" / "white.png")
    Image.new("RGB", (60, 50), "white").save(tmp_path / "photos" / "train" / "dog" / "white2.png")
    report = tmp_path / "audit.json"
    page = tmp_path / "copies.html"
    arguments = ["data=folder", f"data.root={tmp_path / 'photos'}", "--near-copies", "--json", str(report), "--html",
                 str(page)]
    assert main(["audit", *arguments]) == 0
    assert "near copies: 1 pair, 1 across splits, 1 across classes" in capsys.readouterr().out
    (pair,) = json.loads(report.read_text())["near_copies"]
    assert {pair["one"][1], pair["other"][1]} == {"train/cat/3.png", "test/dog/copy.png"}
    text = page.read_text()
    assert text.count("<figure>") == 1 and text.count('<img src="data:image/') == 2
    assert "across splits and classes" in text and "train: train/cat/3.png (cat)" in text
    assert main(["audit", *arguments[:2], "--html", str(page)]) == 2 and "add one of them" in capsys.readouterr().err


def test_nothing_to_compare(tmp_path):
    assert find_pairs(np.zeros((0, GRID, GRID), np.uint8)) == []
    assert find_pairs(np.zeros((1, GRID, GRID), np.uint8)) == []


def test_the_preprocessing_of_packed_images_has_the_same_thumbnails(photos):
    source, plain = unlabelled_images(photos), Preprocessing(32)
    expected, found = (read_thumbnails(source, each) for each in (plain, PackedPreprocessing.of(plain, (8, 8))))
    assert np.array_equal(found.pixels, expected.pixels) and found.positions == expected.positions
