"""Images of more than eight bits per sample, against NumPy arithmetic."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from vit.bundle.timm_folder import unsupported_preprocessing
from vit.data import BadImage, DataError, ImageDataset, LinePreprocessing, Preprocessing, folder
from vit.data.decoding.bit_depth import measure_range
from vit.data.splits.split import ReadArray, Split
from vit.data.statistics import resolve_range
from vit.exchange.preprocessing import to_transformers

P8 = Preprocessing(size=8)


def noise(low, high, dtype, shape=(8, 8), seed=0):
    values = np.random.default_rng(seed).uniform(low, high, shape)
    values.flat[:2] = low, high
    return values.astype(dtype)


def png(pixels: np.ndarray, depth: int = 16, clear: np.ndarray | None = None) -> bytes:
    """A PNG of (H,W,C) with `depth` bits per sample, optionally with a transparent colour (C,); Pillow cannot save
    most of them.
    """
    height, width, channels = pixels.shape
    bits = ["".join(f"{int(value):0{depth}b}" for value in row.flat) for row in pixels]
    rows = b"".join(b"\0" + int(row, 2).to_bytes(len(row) // 8, "big") for row in bits)
    header = struct.pack(">IIBBBBB", width, height, depth, {1: 0, 2: 4, 3: 2, 4: 6}[channels], 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    parts[1:1] = [] if clear is None else [(b"tRNS", clear.astype(">u2").tobytes())]
    chunks = (struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def tiff(pixels: np.ndarray, order: str = "<", deflate: bool = False, white: int = 1) -> bytes:
    """A TIFF of (H,W) or (H,W,3) numbers of any type, in either byte order, optionally compressed."""
    channels = pixels.shape[2] if pixels.ndim == 3 else 1
    kind = {"u": 1, "i": 2, "f": 3}[pixels.dtype.kind]
    data = np.ascontiguousarray(pixels).astype(pixels.dtype.newbyteorder(order)).tobytes()
    data = zlib.compress(data) if deflate else data
    tags = {256: [pixels.shape[1]], 257: [pixels.shape[0]], 258: [pixels.dtype.itemsize * 8] * channels}
    tags |= {259: [8 if deflate else 1], 262: [2 if channels > 1 else white], 273: [0], 277: [channels]}
    tags |= {278: [pixels.shape[0]], 279: [len(data)], 339: [kind] * channels}
    free = 8 + 2 + 12 * len(tags) + 4  # behind the directory: what is longer than 4 bytes, then the pixels
    tags[273] = [free + sum(2 * len(values) for values in tags.values() if len(values) > 2)]
    entries = beyond = b""
    for tag, values in tags.items():
        letter = "I" if tag in (273, 279) else "H"
        packed = struct.pack(f"{order}{len(values)}{letter}", *values)
        entries += struct.pack(f"{order}HHI", tag, 4 if letter == "I" else 3, len(values))
        entries += packed.ljust(4, b"\0") if len(packed) <= 4 else struct.pack(f"{order}I", free + len(beyond))
        beyond += packed if len(packed) > 4 else b""
    start = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}IH", 8, len(tags))
    return start + entries + struct.pack(f"{order}I", 0) + beyond + data


def test_a_tile_beyond_the_limit_is_refused_before_it_is_decoded():
    """Pillow decodes the whole tile, whatever the size of the image is."""
    tags = {256: 16, 257: 16, 258: 8, 259: 1, 262: 1, 277: 1, 322: 1 << 15, 323: 1 << 15, 324: 134, 325: 1 << 30}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    raw = b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4)
    with pytest.raises(BadImage, match="a TIFF with tiles of 1073741824 pixels, more than max_pixels=100000000"):
        P8.image(raw)


def expected(values, low, high):
    """(..., H, W) -> uint8"""
    share = (np.asarray(values, np.float64) - low) / (high - low)
    return np.rint(np.minimum(np.maximum(share, 0), 1) * 255).astype(np.uint8)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [
        (np.uint16, 210, 1530),
        (np.int16, -1024, 3071),
        (np.int32, -5, 100_000),
        (np.int32, 0, 1023),
        (np.float32, -0.25, 7.5),
        (np.float32, 0.001, 0.002),
    ],
)
def test_a_range_is_mapped_to_0_to_255(dtype, low, high, order):
    values = noise(low, high, dtype)
    cut = low + (high - low) / 10, high - (high - low) / 10  # a tenth at either end is clipped
    for span in ((low, high), cut):
        contract = P8.replace(range=span)
        for raw in (tiff(values, order), tiff(values, order, deflate=True), values):
            assert np.array_equal(contract.image(raw)[1].numpy(), expected(values, *span))


@pytest.mark.parametrize("channels", [3, 4])
def test_16_bit_colour_uses_the_lower_bytes(channels):
    values = noise(300, 1900, np.uint16, (8, 8, channels))
    values[..., 3:] = 65535
    files = [png(values), *(tiff(values[..., :3], o, d) for o in "<>" for d in (False, True) if channels == 3)]
    for raw in files:
        assert np.array_equal(P8.image(raw).permute(1, 2, 0).numpy(), values[..., :3] >> 8)
        for source in (raw, Image.open(io.BytesIO(raw))):
            found = P8.replace(range=(300, 1900)).image(source).permute(1, 2, 0).numpy()
            assert np.array_equal(found, expected(values[..., :3], 300, 1900))


def test_alpha_is_not_mapped():
    values = noise(300, 1900, np.uint16, (8, 8, 4))
    values[..., 3] = 0
    assert (P8.replace(range=(300, 1900)).image(png(values)) == 255).all()  # all background


def test_8_bit_images_are_unchanged():
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    for raw in (pixels, buffer.getvalue(), Image.fromarray(pixels[..., 0]), pixels[..., 0] > 100):
        assert np.array_equal(P8.replace(range=(5, 90)).image(raw), P8.image(raw))


@pytest.mark.parametrize(
    ("values", "span"),
    [
        (noise(0, 65535, np.uint16), "full"),
        (noise(2000, 40000, np.uint16), "full"),  # at least half of what the format holds
        (noise(3, 4001, np.uint16), (0, 4095)),  # 12 bits
        (noise(0, 1023, np.int32), (0, 1023)),
        (noise(100, 12000, np.uint16), (0, 16383)),
        (noise(1500, 2800, np.uint16), (1500, 2800)),  # no number of bits is half filled
        (noise(40000, 50000, np.uint16), (40000, 50000)),
        (noise(-1000, 3000, np.int16), (-1000, 3000)),
        (noise(0, 1, np.float32), "full"),
        (noise(0, 255, np.float32), (0, 255)),
        (noise(0, 0.25, np.float32), (0, 0.25)),
        (np.full((8, 8), 7, np.uint16), (7, 8)),
    ],
)
def test_the_range_of_auto(values, span):
    assert measure_range([values], "auto").range == span
    assert measure_range([values], "full").range == "full"


def test_hot_pixels_and_percentiles():
    images = [noise(1500, 2800, np.uint16, (200, 200), seed) for seed in range(4)]
    images[2][17, 3] = 65535
    low, high = measure_range(images, "auto").range
    assert 1499 < low < 1510 and 2790 < high < 2801
    together = np.concatenate([image.ravel() for image in images])
    found = measure_range(images, "percentile").range
    assert np.allclose(found, np.percentile(together, (0.5, 99.5)), atol=10)
    assert measure_range([], "auto") is None
    broken = images[0].astype(np.float32)
    broken[0, 0] = np.nan
    assert measure_range([broken], "auto").range == (1500, 2800)


def write_twelve_bits(root):
    for number, name in enumerate(["cells", "debris"]):
        (root / name).mkdir(parents=True)
        for i in range(10):
            values = noise(1500 + 400 * number, 2000 + 800 * number, np.uint16, (16, 16), seed=i)
            (root / name / f"{i}.tif").write_bytes(tiff(values))
    return root


def test_the_range_is_that_of_the_training_images(tmp_path):
    split = folder(write_twelve_bits(tmp_path)).splits["train"]
    contract, text = resolve_range(split, P8, "auto")
    assert contract.range == (1500, 2800)
    seen = f"values 1500..2800 in {len(split)} training images of more than 8 bits"
    assert f"{seen}; 1500..2800 is mapped to 0..255" in text
    assert "range=full would leave 6 grey levels" in text
    assert resolve_range(split, P8, "full")[0] == P8
    line = LinePreprocessing(height=8, max_width=16, patch_size=(8, 8))
    mapped = resolve_range(split, line, "auto")[0]
    assert mapped.range == (1500, 2800) and mapped.image(split.read(0)).max() > 60


def test_older_preprocessing_has_the_full_range():
    known = P8.to_dict()
    del known["range"]
    assert Preprocessing.from_dict(known).range == "full"
    contract = P8.replace(range=(1500, 2800))
    assert contract.to_dict()["range"] == [1500, 2800] and Preprocessing.from_dict(contract.to_dict()) == contract
    for wrong in ("half", [5, 5], [1], [0, float("nan")], True):
        with pytest.raises(ValueError, match="must be full or \\[low, high\\]"):
            P8.replace(range=wrong)


def test_scaled_floats_are_refused():
    with pytest.raises(BadImage, match="the model was trained on values 1500..2800; pass unscaled values"):
        P8.replace(range=(1500, 2800)).image(noise(0, 1, np.float32), "scaled.tif")


def test_ranges_that_other_libraries_lack_are_reported():
    contract = P8.replace(range=(1500, 2800))
    assert "do not map 1500..2800 to 0..255" in to_transformers(contract)[1]
    assert "do not map 1500..2800 to 0..255" in unsupported_preprocessing(contract)
    assert not to_transformers(P8)[1] and not unsupported_preprocessing(P8)


def test_grey_with_alpha_uses_the_lower_bytes():
    values = noise(0, 4095, np.uint16)
    pixels = np.stack([values, np.full_like(values, 65535)], axis=-1)
    seen = P8.replace(range=(0, 4095)).image(png(pixels)).numpy()
    assert (seen == expected(values, 0, 4095)).all()
    pixels[0, 0, 1] = 0  # transparent: the background
    seen = P8.replace(range=(0, 4095)).image(png(pixels)).numpy()
    assert (seen[:, 0, 0] == 255).all() and (seen[:, 1:] == expected(values, 0, 4095)[1:]).all()
    stored = P8.high_bit_depth_values(png(pixels))
    assert (stored[..., 0] == values).all() and stored.max() == 4095  # alpha is not a value


@pytest.mark.parametrize("channels", [3, 4])
def test_the_range_excludes_alpha(channels):
    pixels = noise(0, 4095, np.uint16, (8, 8, channels))
    pixels[..., 3:] = 65535
    assert P8.high_bit_depth_values(png(pixels)).max() == 4095


@pytest.mark.parametrize("deflate", [False, True])
def test_white_is_zero_is_inverted(deflate):
    values = noise(0, 65535, np.uint16)
    with pytest.raises(BadImage, match="16 bits per sample .*photometric interpretation 0, big-endian"):
        P8.image(tiff(values, ">", deflate, white=0))  # which Pillow refuses
    raw = tiff(values, "<", deflate, white=0)
    assert (P8.image(raw).numpy() == P8.image(tiff(65535 - values)).numpy()).all()
    assert (P8.high_bit_depth_values(raw) == 65535 - values).all()


def test_signed_bytes():
    values = noise(-100, 100, np.int8)
    assert (P8.high_bit_depth_values(tiff(values)) == values).all()
    seen = P8.replace(range=(-100, 100)).image(tiff(values)).numpy()
    assert (seen == expected(values, -100, 100)).all()
    with pytest.raises(BadImage, match="values -100..100 are outside 0..65535 .* data.preprocessing.range=auto"):
        P8.image(tiff(values))
    positive = noise(0, 127, np.int8)
    assert (P8.image(tiff(positive)).numpy() == positive).all()


@pytest.mark.parametrize("order", ["<", ">"])
def test_unsupported_sample_formats_are_named(order):
    with pytest.raises(BadImage, match=r"x.tif: is a TIFF of 64 bits per sample \(floats, .*; save it with"):
        P8.image(tiff(noise(0, 1, np.float64), order), "x.tif")
    with pytest.raises(BadImage, match="cut.tif: .*not one of JPEG"):
        P8.image(tiff(noise(0, 1, np.float32), order)[:40], "cut.tif")


WIDE = [np.int8, np.int16, np.int32, np.uint32, np.int64, np.uint64]


def arrays(high, dtype):
    values = noise(0, high, np.float64, (20, 8, 8, 3)).round().astype(dtype)
    values[3] = values[3] % 90  # a dark image
    return values, Split(np.arange(20) % 2, [str(i) for i in range(20)], ReadArray(values))


@pytest.mark.parametrize("dtype", WIDE)
def test_wide_integers_of_eight_bits_need_a_range(dtype):
    values, split = arrays(np.iinfo(dtype).max if dtype == np.int8 else 255, dtype)
    high, name = int(values.max()), np.dtype(dtype).name
    with pytest.raises(BadImage, match=f"{name} values 0..{high} may be of 8 or of 16 bits; pass uint8 or uint16"):
        P8.image(values[0])
    found, text = resolve_range(split, P8, "auto")
    assert found.range == (0, high) and f"values 0..{high} in " in text and f"({name} arrays)" in text
    if high == 255:
        assert all(np.array_equal(found.image(each), P8.image(each.astype(np.uint8))) for each in values)
    with pytest.raises(DataError, match=f"range=full: .* {name} arrays with values 0..{high}, which may be of 8 or of "
                       r"16 bits; set 'data.preprocessing.range=\[0,255\]'"):
        resolve_range(split, P8, "full")


@pytest.mark.parametrize("dtype", WIDE[2:])
@pytest.mark.parametrize("rule", ["auto", "full"])
def test_dark_images_of_wide_integers_are_those_of_16_bits(dtype, rule):
    values, split = arrays(65535, dtype)
    found, text = resolve_range(split, P8, rule)
    assert found.range == (0, 65535) and "0..65535 is mapped to 0..255" in text
    assert all(np.array_equal(found.image(each), P8.image(each.astype(np.uint16))) for each in values)
    every = np.arange(65536).reshape(256, 256)
    assert np.array_equal(P8.replace(size=256, range=(0, 65535)).image(every.astype(dtype)),
                          P8.replace(size=256).image(every.astype(np.uint16)))


@pytest.mark.parametrize("cache", [True, False])
def test_a_data_set_of_wide_integers_for_a_model_with_the_full_range(cache):
    """As in an evaluation of a model that was trained on uint16, or of a run before there was a stated range."""
    values, split = arrays(65535, np.int32)
    dataset = ImageDataset(split, P8, cache=cache)
    assert all(np.array_equal(dataset[i]["image"][0], P8.image(values[i].astype(np.uint16))) for i in range(20))
    for high, reason in ((255, "int32 values 0..255 may be of 8 or of 16 bits"), (70_000, "are outside 0..65535")):
        dataset = ImageDataset(arrays(high, np.int32)[1], P8, cache=cache, on_bad_sample="skip")
        assert any(reason in fault for i in range(20) for _, fault in dataset[i].get("bad", ()))


@pytest.mark.parametrize(("depth", "channels"), [(1, 1), (2, 1), (4, 1), (8, 1), (16, 1), (8, 3), (16, 3)])
def test_a_transparent_colour_is_compared_with_all_bits(depth, channels):
    values = np.random.default_rng(1).integers(0, 2, (8, 8, channels))
    values = values * (2 if depth > 1 else 1) + (1 if depth > 1 else 0)  # 16 bits that differ in the lower byte only
    clear = values[2, 3]
    shown = np.where((values == clear).all(-1, keepdims=True), 255, values * 255 / (2**depth - 1))
    found = P8.image(png(values, depth, clear)).permute(1, 2, 0).numpy()
    np.testing.assert_allclose(found, np.broadcast_to(shown, (8, 8, 3)), atol=0.5)
    image = Image.open(io.BytesIO(png(values, depth, clear)))
    assert np.array_equal(P8.image(image).permute(1, 2, 0), found)
    assert np.array_equal(P8.image(image).permute(1, 2, 0), found)  # an image that has been decoded


def test_pixels_of_eight_bits_have_no_other_stored_values():
    assert P8.high_bit_depth_values(np.zeros((8, 8), np.uint8)) is None
    assert P8.high_bit_depth_values(np.zeros((8, 8), bool)) is None
    values = np.full((8, 8), 4000, np.uint16)
    assert P8.high_bit_depth_values(values) is values
