"""The preprocessing against torchvision and Pillow, and on files that other loaders read wrong."""

import csv
import io
import json
import struct
import warnings

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms

from vit.data import BadImage, LinePreprocessing, PairSplit, Preprocessing
from vit.data.decoding import decode
from vit.data.pairs.line_widths import line_size
from vit.data.splits.split import ReadFile

P8 = Preprocessing(size=8)


def encoded(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def noise(height=40, width=30, channels=3, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


@pytest.mark.parametrize("crop_pct", [1.0, 0.875, 0.9])
@pytest.mark.parametrize("shape", [(40, 30), (30, 40), (37, 101), (24, 24)])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "nearest"])
def test_shorter_equals_torchvision(shape, crop_pct, interpolation):
    image = Image.fromarray(noise(*shape))
    mode = transforms.InterpolationMode(interpolation)
    steps = [transforms.Resize(int(24 / crop_pct), mode), transforms.CenterCrop(24), transforms.PILToTensor()]
    expected = transforms.Compose(steps)(image)
    found = Preprocessing(size=24, crop_pct=crop_pct, interpolation=interpolation).image(image)
    assert torch.equal(found, expected)


def test_squash_and_pad_equal_pillow():
    image = Image.fromarray(noise(40, 30))
    squashed = Preprocessing(size=(20, 26), resize="squash").image(image)
    assert torch.equal(squashed.permute(1, 2, 0), torch.from_numpy(np.array(image.resize((26, 20), Image.BICUBIC))))
    padded = Preprocessing(size=(20, 26), resize="pad", background=(1, 2, 3)).image(image)
    inner = np.array(image.resize((15, 20), Image.BICUBIC))
    assert torch.equal(padded[:, :, 5:20].permute(1, 2, 0), torch.from_numpy(inner))
    assert padded[:, 0, 0].tolist() == [1, 2, 3] and padded[:, 19, 25].tolist() == [1, 2, 3]


def test_non_square_cover():
    for shape in ((40, 30), (30, 90), (16, 16), (7, 50)):
        found = Preprocessing(size=(12, 30), crop_pct=0.8).image(noise(*shape))
        assert found.shape == (3, 12, 30)


def test_photo_equals_torchvision(photos):
    path = sorted(photos.rglob("*.jpg"))[0]
    steps = [
        transforms.Resize(72, transforms.InterpolationMode.BICUBIC),
        transforms.CenterCrop(64),
        transforms.PILToTensor(),
    ]
    with Image.open(path) as image:
        expected = transforms.Compose(steps)(image.convert("RGB"))
    preprocessing = Preprocessing(size=64, crop_pct=64 / 72)
    for raw in (path, str(path), path.read_bytes(), Image.open(path), np.array(Image.open(path))):
        assert torch.equal(preprocessing.image(raw), expected)


def test_normalize_equals_torchvision():
    images = torch.from_numpy(noise(8, 8).transpose(2, 0, 1).copy())[None]
    preprocessing = Preprocessing(size=8, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    expected = transforms.Normalize(preprocessing.mean, preprocessing.std)(images.float() / 255)
    assert torch.allclose(preprocessing.normalize(images), expected, atol=1e-6)
    assert images.dtype == torch.uint8


def test_all_orientations_give_the_same_pixels():
    upright = Image.fromarray(noise(24, 16))
    stored = {
        1: upright,
        2: upright.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
        3: upright.transpose(Image.Transpose.ROTATE_180),
        4: upright.transpose(Image.Transpose.FLIP_TOP_BOTTOM),
        5: upright.transpose(Image.Transpose.TRANSPOSE),
        6: upright.transpose(Image.Transpose.ROTATE_90),
        7: upright.transpose(Image.Transpose.TRANSVERSE),
        8: upright.transpose(Image.Transpose.ROTATE_270),
    }
    preprocessing = Preprocessing(size=16)
    expected = preprocessing.image(upright)
    for orientation, image in stored.items():
        exif = Image.Exif()
        exif[0x0112] = orientation
        assert torch.equal(preprocessing.image(encoded(image, "PNG", exif=exif)), expected), orientation
    ignored = preprocessing.replace(exif=False).image(encoded(stored[3], "PNG", exif=exif))
    assert torch.equal(ignored, preprocessing.image(stored[3]))


def test_sixteen_bits_are_scaled():
    values = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
    expected = np.rint(values / 257).astype(np.uint8)
    for raw in (values, encoded(Image.fromarray(values)), encoded(Image.fromarray(values), "TIFF")):
        assert np.array_equal(P8.image(raw)[0].numpy(), expected)


def test_float_images_are_scaled_or_refused():
    values = np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)
    tiff = encoded(Image.fromarray(values), "TIFF")
    for raw in (values, tiff):
        assert np.array_equal(P8.image(raw)[0].numpy(), np.rint(values * 255).astype(np.uint8))
    for bad in (values * 255, values - 1, np.full((8, 8), np.nan, np.float32)):
        with pytest.raises(BadImage, match="holiday.tif: float32 values .* are outside 0..1 for floats"):
            P8.image(encoded(Image.fromarray(bad), "TIFF"), "holiday.tif")


def test_transparency_is_composited_on_the_background():
    pixels = np.zeros((8, 8, 4), np.uint8)
    pixels[:, :4] = (200, 100, 50, 255)
    image = Image.fromarray(pixels)
    for raw in (image, encoded(image), encoded(image, "WEBP", lossless=True), encoded(image, "TIFF")):
        found = Preprocessing(size=8, background=(10, 20, 30)).image(raw)
        assert found[:, 0, 0].tolist() == [200, 100, 50] and found[:, 0, 7].tolist() == [10, 20, 30]
    palette = Image.new("P", (8, 8), 1)
    palette.putpalette([0, 0, 0, 9, 9, 9])
    assert (P8.image(encoded(palette, "PNG", transparency=1)) == 255).all()
    deep = np.full((8, 8), 65535, np.uint16)
    deep[0, 0] = 300
    png = encoded(Image.fromarray(deep), "PNG")
    assert P8.image(png)[0, 0, 0] == 1


def test_modes():
    gray = noise(8, 8, 1)[:, :, 0]
    assert P8.image(gray).shape == (3, 8, 8) and torch.equal(P8.image(gray)[0], P8.image(gray)[2])
    one = Preprocessing(size=8, mode="L", mean=(0.5,), std=(0.5,))
    assert torch.equal(one.image(gray)[0], torch.from_numpy(gray)) and one.channels == 1
    colour = Image.fromarray(noise(8, 8))
    assert np.array_equal(one.image(colour)[0].numpy(), np.array(colour.convert("L")))
    for mode, kind in (("CMYK", "JPEG"), ("1", "PNG"), ("P", "GIF")):
        assert P8.image(encoded(colour.convert(mode), kind)).shape == (3, 8, 8)
    assert P8.image(colour.convert("YCbCr")).shape == (3, 8, 8)  # Pillow 12 cannot read its own TIFF files of this mode


def test_tensors_as_images():
    pixels = torch.from_numpy(noise(8, 8).transpose(2, 0, 1).copy())
    assert torch.equal(P8.image(pixels), pixels)


def test_draft_keeps_twice_the_input_size_on_both_sides():
    pixels = np.random.default_rng(0).integers(0, 256, (60, 900, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG")
    full, draft = (Preprocessing(size=32, resize="squash", draft=d).image(file.getvalue()) for d in (False, True))
    assert torch.equal(full, draft)  # 60 rows are fewer than twice 32


def test_draft_gives_nearly_the_same_pixels_faster(photos):
    path = sorted(photos.rglob("*.jpg"))[0]
    full, draft = (Preprocessing(size=32, draft=d).image(path).float() for d in (False, True))
    assert 0 < (full - draft).abs().mean() < 4


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"size": 0}, "at least 1"),
        ({"resize": "crop"}, "not one of shorter, squash, pad, none"),
        ({"mode": "L"}, "1 channel, but mean has 3"),
        ({"std": (0, 1, 1)}, "above 0"),
        ({"std": (1, float("nan"), 1)}, "above 0"),
        ({"crop_pct": 1.2}, "crop_pct=1.2"),
        ({"resize": "pad", "crop_pct": 0.9}, "no effect"),
        ({"max_pixels": 10**12}, "max_pixels"),
        ({"max_pixels": None}, "max_pixels=None must be in"),
        ({"size": None}, "size=None must be a list of numbers"),
        ({"mean": 0.5}, "mean=0.5 must be a list of numbers"),
        ({"mean": (0, float("nan"), 0)}, r"mean=\[0.0, nan, 0.0\] must be a finite number in every channel"),
        ({"std": (1, float("inf"), 1)}, "and finite in every channel"),
        ({"background": (255, None, 0)}, r"background=\(255, None, 0\) must be a list of numbers"),
        ({"crop_pct": "0.9"}, "crop_pct=0.9 must be"),
        ({"exif": "false"}, "exif='false' must be true or false"),
        ({"draft": "no"}, "draft='no' must be true or false"),
    ],
)
def test_invalid_preprocessing_is_refused(change, text):
    with pytest.raises(ValueError, match=text):
        Preprocessing(**{"size": 8} | change)


def test_json_round_trip():
    contract = Preprocessing(size=(8, 16), resize="squash", mean=(0.1, 0.2, 0.3), draft=True)
    assert Preprocessing.from_dict(json.loads(json.dumps(contract.to_dict()))) == contract
    with pytest.raises(ValueError, match="unknown preprocessing key 'sise'"):
        Preprocessing.from_dict({"sise": 8})


def test_libtiff_prints_nothing(capfd):
    data = bytearray(encoded(Image.fromarray(noise(64, 64)), "TIFF", compression="tiff_lzw"))
    data[60:400] = b"\xff" * 340
    with pytest.raises(BadImage, match="x.tif: cannot be decoded"):
        P8.image(bytes(data), "x.tif")
    assert capfd.readouterr().err == ""


def test_max_pixels_raises_the_limit_of_pillow(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50)
    monkeypatch.setattr(decode, "PILLOW_LIMIT", 100)
    raw = encoded(Image.new("RGB", (12, 10)))
    with pytest.raises(BadImage, match="120 pixels are more than max_pixels=100; .*data.preprocessing.max_pixels"):
        P8.replace(max_pixels=100).image(raw)
    assert P8.replace(max_pixels=120).image(raw).shape == (3, 8, 8)


@pytest.mark.parametrize(("left", "limit", "message"), [
    (0, 100_000_000, "400000000 pixels are more than max_pixels=100000000; .*raise the limit"),
    (0, 300_000_000, "20000x20000 pixels are more than max_pixels=300000000; .*raise the limit"),
    (2**16 - 1, 2**31, "5605536225 pixels are more than max_pixels=2147483648, which can be at most 4294967296; "),
])
def test_the_limit_that_applies_and_the_pixels_of_a_frame_are_stated(monkeypatch, left, limit, message):
    """The frame of a GIF may be larger than the image that its header states."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 89_478_485)
    height = 20_000 if left == 0 else 2**16 - 1
    raw = b"GIF89a" + struct.pack("<HH3B", 32, 32, 0, 0, 0) + b"," + struct.pack("<HHHHB", left, 0, 20_000, height, 0)
    with pytest.raises(BadImage, match=message):
        P8.replace(max_pixels=limit).image(raw + b"\x02\x00;")


def test_a_limit_of_pillow_below_that_of_vit_is_named(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50)
    with pytest.raises(BadImage, match="is refused by Pillow, whatever max_pixels is .*120 pixels"):
        P8.image(encoded(Image.new("RGB", (12, 10))))


def test_errors_name_the_file_on_one_line(tmp_path):
    path = tmp_path / "odd\nname.jpg"
    path.write_bytes(b"<html>")
    with pytest.raises(BadImage) as error:
        P8.image(path)
    assert "\n" not in str(error.value) and "odd\\nname.jpg: cannot be opened (not one of JPEG" in str(error.value)
    with pytest.raises(BadImage, match="no-such.jpg: cannot be read"):
        P8.image(tmp_path / "no-such.jpg")
    with pytest.raises(BadImage, match="x: the file is empty"):
        P8.image(b"", "x")
    with pytest.raises(BadImage, match="12x10 pixels are more than max_pixels=100"):
        P8.replace(max_pixels=100).image(encoded(Image.new("RGB", (12, 10))))
    with pytest.raises(BadImage, match="is 12x10, but resize=none requires 8x8"):
        P8.replace(resize="none").image(encoded(Image.new("RGB", (12, 10))))
    with pytest.raises(BadImage, match=r"shape \(5,\)"):
        P8.image(np.zeros(5, np.uint8))


def test_nasty_images(real):
    """Images that decode according to the manifest do (within max_pixels); the others are a BadImage with the name."""
    root = real / "nasty_images"
    with (root / "manifest.csv").open() as file:
        rows = list(csv.DictReader(file))
    preprocessing = Preprocessing(size=32)
    for row in rows:
        path = root / "images" / row["file"]
        if row["pillow_outcome"] == "decodes" and row["file"] != "large_1bit_11000x11000.png":
            assert preprocessing.image(path).shape == (3, 32, 32), row
        else:
            with pytest.raises(BadImage, match=row["file"]):
                preprocessing.image(path)
    for i in range(3, 9):
        turned, straight = (preprocessing.image(root / "images" / f"hopper_orientation_{k}.jpg").int() for k in (i, 2))
        assert (turned - straight).abs().float().mean() < 2
    with Image.open(root / "images" / "16bit.cropped.tif") as deep:
        expected = np.rint(np.array(deep) / 257)
    assert np.array_equal(Preprocessing(size=64).image(root / "images" / "16bit.cropped.tif")[0].numpy(), expected)


def test_an_iterator_of_fewer_images_is_a_batch():
    images, preprocessing = torch.randint(0, 256, (3, 3, 4, 5), dtype=torch.uint8), Preprocessing((4, 5))
    for count in (0, 2, 3):
        assert torch.equal(preprocessing.batch(iter(images[:count]), 3), images[:count])
    assert torch.equal(preprocessing.batch(list(images)), images)


def test_a_file_of_which_only_the_header_is_read_is_closed(tmp_path):
    path = tmp_path / "a.png"
    Image.fromarray(noise()).save(path)
    split = PairSplit(["a"], ["a.png"], None, ReadFile(tmp_path, ["a.png"]))
    with warnings.catch_warnings(record=True) as caught, Image.open(path) as image:
        warnings.simplefilter("always", ResourceWarning)
        assert P8.high_bit_depth_values(path) is None
        assert line_size(split, 0, LinePreprocessing(16, 64, (8, 4))) == (30, 40)
        assert P8.high_bit_depth_values(image) is None and image.getpixel((0, 0))  # the caller's image remains open
    assert not caught
