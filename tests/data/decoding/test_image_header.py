"""Headers of images, compared with those that Pillow reads."""

import io

import numpy as np
import pytest
from PIL import Image

from vit.data import BadImage
from vit.data.decoding.decode import open_image
from vit.data.decoding.image_header import HEADER_BYTES, ordinary_jpeg_size, read_header

PIXELS = np.random.default_rng(0).integers(0, 256, (19, 23, 3), dtype=np.uint8)
ORDINARY = {
    "RGB": ("RGB", {}), "grey": ("L", {}), "progressive": ("RGB", {"progressive": True}),
    "fine": ("RGB", {"quality": 99}), "whole chroma": ("RGB", {"subsampling": 0}),
    "resolution": ("RGB", {"dpi": (300, 300)}), "optimized": ("RGB", {"optimize": True}),
}


def encoded(mode="RGB", format="JPEG", **options):
    file = io.BytesIO()
    Image.fromarray(PIXELS).convert(mode).save(file, format, **options)
    return file.getvalue()


def exif(orientation):
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


@pytest.mark.parametrize("mode, options", ORDINARY.values(), ids=ORDINARY)
def test_an_ordinary_image_needs_no_pillow(tmp_path, mode, options):
    data = encoded(mode, **options)
    assert ordinary_jpeg_size(data) == ordinary_jpeg_size(data[:HEADER_BYTES]) == (23, 19)
    (tmp_path / "a.jpg").write_bytes(data)
    assert read_header(tmp_path / "a.jpg", "a", 500) == read_header(data, "a", 500) == ("JPEG", "RGB", (23, 19), 1, 1)
    with pytest.raises(BadImage, match="23x19 pixels are more than max_pixels=400"):
        read_header(data, "a", 400)


def test_pillow_reads_all_others(tmp_path):
    frames = [Image.fromarray(PIXELS), Image.fromarray(PIXELS[::-1])]
    others = {
        ("JPEG", "RGB", (23, 19), 6, 1): encoded(exif=exif(6)),
        ("JPEG", "CMYK", (23, 19), 1, 1): encoded("CMYK"),
        ("MPO", "RGB", (23, 19), 1, 2): encoded(format="MPO", save_all=True, append_images=frames[1:]),
        ("PNG", "RGBA", (23, 19), 1, 1): encoded("RGBA", "PNG"),
    }
    for expected, data in others.items():
        assert ordinary_jpeg_size(data) is None and read_header(data, "a", 500) == expected
    comment = encoded(comment="x" * 2 * HEADER_BYTES)
    assert ordinary_jpeg_size(comment) is None and read_header(comment, "a", 500).size == (23, 19)
    short_table = encoded().replace(b"\xff\xdb\x00\x43\x00", b"\xff\xdb\x00\x42")
    for data in (b"", b"\xff\xd8", encoded()[:300], short_table):
        assert ordinary_jpeg_size(data) is None
        with pytest.raises(BadImage):
            read_header(data, "a", 500)
    with pytest.raises(BadImage):
        read_header(tmp_path / "absent.jpg", "a", 500)


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_a_damaged_header_is_what_pillow_finds(mode):
    """Of images with changed, missing and cut bytes."""
    random, whole, sizes = np.random.default_rng(0), encoded(mode), 0
    end = min(640, len(whole))  # of the header
    for _ in range(3000):
        data = bytearray(whole)
        for at in random.integers(0, end, random.integers(1, 3)):
            data[at] = random.choice([0, 1, 2, 8, 0xC0, 0xDA, 0xFF, random.integers(256)])
        if random.random() < 0.2:
            del data[(at := random.integers(0, end)):at + random.integers(1, 20)]
        if random.random() < 0.2:
            del data[random.integers(1, len(data)):]
        size = ordinary_jpeg_size(bytes(data))
        if size is not None:
            sizes += 1
            with open_image(bytes(data), "a", 2**32) as image:
                assert (image.format, image.size) == ("JPEG", size) and image.mode in ("RGB", "L")
                assert image.getexif().get(0x0112, 1) == 1 and getattr(image, "n_frames", 1) == 1
    assert sizes > 100


def test_damaged_exif_leaves_the_image_upright():
    data = encoded(exif=b"Exif\0\0damaged tags")
    assert ordinary_jpeg_size(data) is None and read_header(data, "a", 500) == ("JPEG", "RGB", (23, 19), 1, 1)
