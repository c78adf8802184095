"""JPEG decoders and resizing of crops against Pillow and torchvision."""

import csv
import io

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms.functional import pil_to_tensor, resized_crop

from vit.data import BadImage, DataError, ImageDataset, Preprocessing, RandomResizedCrop, folder
from vit.data.decoding import jpeg_decoders
from vit.data.decoding.jpeg_decoders import draft_factor, equals_pillow, select
from vit.data.images.resampling import resize_box

OTHERS = ("simplejpeg", "torchcodec")


def skip_without(name):
    if name == "torchcodec" and tuple(map(int, torch.__version__.split(".")[:2])) < (2, 11):
        pytest.skip("torchcodec requires torch 2.11")
    pytest.importorskip(name)


def jpeg(height=61, width=47, mode="RGB", **options):
    pixels = np.random.default_rng(0).integers(0, 256, (height // 4, width // 4, 3), dtype=np.uint8)
    image, buffer = Image.fromarray(pixels).resize((width, height)).convert(mode), io.BytesIO()
    image.save(buffer, "JPEG", **options)
    return buffer.getvalue()


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_every_pixel_is_that_of_pillow(photos, name, mode):
    skip_without(name)
    statistics = {} if mode == "RGB" else {"mean": (0.5,), "std": (0.5,)}
    preprocessing = Preprocessing(size=8, mode=mode, **statistics)
    files = [path.read_bytes() for path in photos.rglob("*.jpg")]
    made = [jpeg(subsampling=s, progressive=p) for s in (0, 1, 2) for p in (False, True)]
    for raw in (*files, *made, jpeg(mode="L"), jpeg(8, 8), jpeg(9, 5)):
        assert np.array_equal(preprocessing.pixels(raw, decoder=name), np.array(preprocessing.decode(raw)))
    header = Image.open(io.BytesIO(made[0]))
    assert jpeg_decoders.decode(made[0], header, decoder=name) is not None
    assert select(name) is not None and select("pillow") is None


def test_scaled_decoding_is_that_of_pillow():
    pytest.importorskip("simplejpeg")
    for height, width in ((400, 534), (533, 401), (97, 1000), (64, 64)):
        raw = jpeg(height, width)
        for least in ((10, 20), (100, 90), (201, 150), (266, 201), (400, 400)):
            expected = Image.open(io.BytesIO(raw))
            expected.draft(None, least)
            found = jpeg_decoders.decode(raw, Image.open(io.BytesIO(raw)), least, "simplejpeg")
            assert np.array_equal(found, np.array(expected)), (height, width, least)
    assert [draft_factor((800, 400), least) for least in ((100, 50), (101, 50), (400, 1), (401, 1))] == [8, 4, 2, 1]


def test_unusual_files_are_decoded_by_pillow():
    exif = Image.Exif()
    exif[0x0112] = 6
    turned, cmyk, png = jpeg(exif=exif), jpeg(mode="CMYK"), io.BytesIO()
    Image.new("RGB", (9, 9)).save(png, "PNG")
    damaged = jpeg()[:-200]
    preprocessing = Preprocessing(size=8)
    for raw in (turned, cmyk, png.getvalue()):
        assert np.array_equal(preprocessing.pixels(raw), np.array(preprocessing.decode(raw)))
    assert preprocessing.pixels(turned).shape == (47, 61, 3)
    with pytest.raises(BadImage, match="x.jpg: cannot be decoded .*truncated"):
        preprocessing.pixels(damaged, "x.jpg")
    with pytest.raises(BadImage, match="more than max_pixels=100"):
        preprocessing.replace(max_pixels=100).pixels(jpeg(), "x.jpg")


@pytest.mark.parametrize("name", ["auto", *OTHERS])
def test_nasty_images_have_the_same_outcome(real, name):
    skip_without("simplejpeg" if name == "auto" else name)
    root, preprocessing = real / "nasty_images", Preprocessing(size=8)
    with (root / "manifest.csv").open() as file:
        names = [row["file"] for row in csv.DictReader(file) if "11000" not in row["file"]]
    for file in names:
        raw = (root / "images" / file).read_bytes()
        try:
            expected = np.array(preprocessing.decode(raw, file))
        except BadImage as error:
            with pytest.raises(BadImage) as found:
                preprocessing.pixels(raw, file, decoder=name)
            assert str(found.value) == str(error)
        else:
            assert np.array_equal(preprocessing.pixels(raw, file, decoder=name), expected), file


def test_a_decoder_with_other_pixels_is_refused(monkeypatch):
    simplejpeg = pytest.importorskip("simplejpeg")
    select.cache_clear()
    original = simplejpeg.decode_jpeg
    monkeypatch.setattr(simplejpeg, "decode_jpeg", lambda *a, **k: original(*a, **k, fastdct=True, fastupsample=True))
    try:
        assert select("auto") is None and not equals_pillow(jpeg_decoders._simplejpeg())
        with pytest.raises(DataError, match="data.decoder=simplejpeg: its pixels differ from those of Pillow"):
            select("simplejpeg")
    finally:
        select.cache_clear()


def test_a_decoder_whose_import_fails_without_a_text_is_named(monkeypatch):
    def fails():
        raise RuntimeError

    monkeypatch.setattr(jpeg_decoders, "_torchcodec", fails)
    select.cache_clear()
    with pytest.raises(DataError, match=r"torchcodec cannot be imported \(RuntimeError\); install it"):
        select("torchcodec")


def test_a_missing_decoder_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "simplejpeg", None)
    select.cache_clear()
    try:
        assert select("auto") is None
        with pytest.raises(DataError, match=r"pip install 'vitwright\[jpeg\]', or set data.decoder=auto"):
            select("simplejpeg")
    finally:
        select.cache_clear()
    with pytest.raises(ValueError, match="decoder='turbo' is not one of auto, pillow"):
        select("turbo")


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_torch_resizes_crops_like_torchvision(photos, interpolation):
    rng = np.random.default_rng(0)
    for path in sorted(photos.rglob("*.jpg")):
        image = Image.open(path).convert("RGB")
        for _ in range(4):
            left, top = int(rng.integers(0, image.width - 20)), int(rng.integers(0, image.height - 20))
            right, bottom = int(rng.integers(left + 10, image.width + 1)), int(rng.integers(top + 10, image.height + 1))
            found = resize_box(np.array(image), (left, top, right, bottom), (48, 40), interpolation, "torch")
            expected = pil_to_tensor(resized_crop(image, top, left, bottom - top, right - left, [48, 40],
                                                  InterpolationMode(interpolation)))
            difference = (found.int() - expected.int()).abs()
            assert difference.max() <= 1 and difference.float().mean() < 0.25


def test_both_libraries_give_the_same_crops(photos):
    split = folder(photos, fractions=(1, 0, 0)).splits["train"]
    keys, sizing = [(0, i) for i in range(6)], RandomResizedCrop((0.2, 1.0))
    for interpolation, most in (("bicubic", 0.5), ("nearest", 0)):
        preprocessing = Preprocessing(size=32, interpolation=interpolation)
        made = [ImageDataset(split, preprocessing, sizing, resampling=library, cache=False).__getitems__(keys)["image"]
                for library in ("torch", "pillow")]
        assert (made[0].float() - made[1].float()).abs().mean() <= most
        assert all(images.is_contiguous() and images.dtype == torch.uint8 for images in made)
    with pytest.raises(ValueError, match="resampling='cv2' is not one of torch, pillow"):
        ImageDataset(split, preprocessing, sizing, resampling="cv2")


def test_a_box_of_fractions_is_rounded_inside_the_image():
    pixels = np.arange(100, dtype=np.uint8).reshape(10, 10)
    assert resize_box(pixels, (9.9, 9.9, 10.0, 10.0), (1, 1), "bilinear", "torch").item() == 99
    assert resize_box(pixels, (0.2, 0.2, 0.4, 0.4), (1, 1), "bilinear", "torch").item() == 0
