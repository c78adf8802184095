"""Unusual image files have their documented outcome in audit, training and predict: the same pixels, or a named error.

The files are created here; those in VIT_TEST_DATA/nasty_images are also tested if it is set.
"""

import hashlib
import io
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from PIL import Image, ImageCms, ImageOps

from tests.faults.promise import Case, Promise
from vit.data import BadImage, ImageDataset, Preprocessing, RandomResizedCrop
from vit.data.quality.audit import audit
from vit.data.source import Source
from vit.data.splits.split import file_split
from vit.inference import Predictor

SIZE = 16
CONTRACT = Preprocessing(size=SIZE, resize="squash")
Check = Callable[[torch.Tensor], bool]
WHITE: Check = lambda pixels: bool((pixels == 255).all())  # noqa: E731


@cache
def photo(mode: str = "RGB", width: int = SIZE, height: int = SIZE) -> Image.Image:
    """Noise, which reveals a wrong rotation or a missing row."""
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(pixels).convert(mode)


def encoded(image: Image.Image, kind: str, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def exact(pixels: torch.Tensor) -> bool:
    return np.array_equal(pixels.permute(1, 2, 0).numpy(), np.asarray(photo()))


def spread(pixels: torch.Tensor) -> bool:
    """Whether pixels are neither saturated nor nearly black."""
    return 60 < pixels.float().mean() < 200 and pixels.float().std() > 30


def with_orientation(kind: str, orientation: int) -> bytes:
    """The photo rotated so that its EXIF orientation restores it."""
    turns = {2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE", 6: "ROTATE_90",
             7: "TRANSVERSE", 8: "ROTATE_270"}
    image, exif = photo(), Image.Exif()
    exif[0x0112] = orientation
    if orientation in turns:
        image = image.transpose(getattr(Image.Transpose, turns[orientation]))
    return encoded(image, kind, exif=exif)


def png(width: int, height: int, depth: int, colour: int, rows: bytes) -> bytes:
    """A PNG written chunk by chunk, for content that Pillow does not write."""
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def deep_png() -> bytes:
    values = np.asarray(photo()).astype(">u2") * 257
    return png(SIZE, SIZE, 16, 2, b"".join(b"\0" + row.tobytes() for row in values))


def changed(data: bytes, position: int, *, length: int = 1) -> bytes:
    return data[:position] + bytes(b ^ 0xFF for b in data[position : position + length]) + data[position + length :]


def heic() -> bytes:
    import pillow_heif

    buffer = io.BytesIO()
    pillow_heif.from_pillow(photo("RGB", 64, 64)).save(buffer)
    return buffer.getvalue()


def alpha(mode: str, value: int) -> Image.Image:
    image = photo(mode).copy()  # photo() is cached
    image.putalpha(value)
    return image


def frames(kind: str, **options) -> bytes:
    others = [ImageOps.invert(photo())]
    return encoded(photo(), kind, save_all=True, append_images=others, **options)


def floats(scale: float) -> bytes:
    return encoded(Image.fromarray(np.asarray(photo("L")).astype(np.float32) / 255 * scale), "TIFF")


def deep_gray(kind: str) -> bytes:
    return encoded(Image.fromarray(np.asarray(photo("L")).astype(np.uint16) * 257), kind)


JPEG = partial(encoded, kind="JPEG", quality=95)
PNG = partial(encoded, kind="PNG")
TIFF = partial(encoded, kind="TIFF")
LARGE = partial(photo, "RGB", 64, 64)

# name → (its bytes, the check of its pixels)
GOOD: dict[str, tuple[Callable[[], bytes], Check | None]] = {
    "baseline.jpg": (lambda: JPEG(photo()), None),
    "gray.jpg": (lambda: JPEG(photo("L")), None),
    "cmyk.jpg": (lambda: JPEG(photo("CMYK")), None),
    "progressive.jpg": (lambda: JPEG(photo(), progressive=True), None),
    "quality_1.jpg": (lambda: encoded(photo(), "JPEG", quality=1), None),
    "icc.jpg": (lambda: JPEG(photo(), icc_profile=ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()),
                None),
    "broken_icc.jpg": (lambda: JPEG(photo(), icc_profile=b"no profile"), None),
    "broken_exif.jpg": (lambda: JPEG(photo(), exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff"), None),
    "two_pictures.mpo": (lambda: frames("MPO"), None),
    "two_pictures.jpg": (lambda: frames("MPO"), None),
    "after_the_end.jpg": (lambda: JPEG(photo()) + b"trailing bytes" * 10, None),
    "CAPITALS.JPG": (lambda: JPEG(photo()), None),
    "png_named.jpg": (lambda: PNG(photo()), exact),
    "rgb.png": (lambda: PNG(photo()), exact),
    "gray_alpha.png": (lambda: PNG(alpha("LA", 128)), None),
    "invisible.png": (lambda: PNG(alpha("RGBA", 0)), WHITE),
    "invisible_gray.png": (lambda: PNG(alpha("LA", 0)), WHITE),
    "opaque.png": (lambda: PNG(alpha("RGBA", 255)), exact),
    "palette.png": (lambda: PNG(photo("P")), spread),
    "palette_invisible.png": (lambda: PNG(photo("P"), transparency=bytes(256)), WHITE),
    "palette_one_clear.png": (lambda: PNG(photo("P"), transparency=3), spread),
    "rgb_one_clear.png": (lambda: PNG(Image.new("RGB", (8, 8), (1, 2, 3)), transparency=(1, 2, 3)), WHITE),
    "one_bit.png": (lambda: PNG(photo("1")), lambda pixels: set(pixels.unique().tolist()) == {0, 255}),
    "gray_16_bit.png": (lambda: deep_gray("PNG"), spread),
    "colour_16_bit.png": (deep_png, exact),
    "animated.png": (lambda: frames("PNG"), exact),
    "all_the_same.png": (lambda: PNG(Image.new("RGB", (40, 30), (7, 7, 7))), lambda pixels: bool((pixels == 7).all())),
    "one_pixel.png": (lambda: PNG(Image.new("RGB", (1, 1), (9, 9, 9))), lambda pixels: bool((pixels == 9).all())),
    "wide.png": (lambda: PNG(Image.new("RGB", (65500, 1), (5, 5, 5))), lambda pixels: bool((pixels == 5).all())),
    "high.png": (lambda: PNG(Image.new("RGB", (1, 65500), (5, 5, 5))), lambda pixels: bool((pixels == 5).all())),
    "wide.jpg": (lambda: JPEG(Image.new("RGB", (65500, 1), (5, 5, 5))), None),
    "long_text.png": (lambda: PNG(photo(), pnginfo=text_chunk(100_000)), exact),
    "still.gif": (lambda: encoded(photo(), "GIF"), spread),
    "animated.gif": (lambda: frames("GIF"), spread),
    "clear.gif": (lambda: encoded(alpha("RGBA", 0), "GIF"), WHITE),
    "lossy.webp": (lambda: encoded(photo(), "WEBP"), None),
    "lossless.webp": (lambda: encoded(photo(), "WEBP", lossless=True), exact),
    "invisible.webp": (lambda: encoded(alpha("RGBA", 0), "WEBP", lossless=True), WHITE),
    "animated.webp": (lambda: frames("WEBP", lossless=True), exact),
    "rgb.bmp": (lambda: encoded(photo(), "BMP"), exact),
    "one_bit.bmp": (lambda: encoded(photo("1"), "BMP"), None),
    "palette.bmp": (lambda: encoded(photo("P"), "BMP"), spread),
    "rgb.tif": (lambda: TIFF(photo()), exact),
    "lzw.tiff": (lambda: TIFF(photo(), compression="tiff_lzw"), exact),
    "deflate.tif": (lambda: TIFF(photo(), compression="tiff_adobe_deflate"), exact),
    "cmyk.tif": (lambda: TIFF(photo("CMYK")), exact),
    "lab.tif": (lambda: TIFF(Image.new("LAB", (8, 8), (128, 128, 128))), None),
    "gray_16_bit.tif": (lambda: deep_gray("TIFF"), spread),
    "floats_to_1.tif": (lambda: floats(1), spread),
    "pages.tif": (lambda: frames("TIFF"), exact),
    "photo.avif": (lambda: encoded(photo(), "AVIF"), None),
    "photo.jp2": (lambda: encoded(photo(), "JPEG2000"), exact),
    "icon.ico": (lambda: encoded(photo("RGBA"), "ICO", sizes=[(SIZE, SIZE)]), exact),
    "photo.ppm": (lambda: encoded(photo(), "PPM"), exact),
    "photo.pgm": (lambda: encoded(photo("L"), "PPM"), None),
    "photo.heic": (heic, None),
    **{f"exif_{i}.jpg": (partial(with_orientation, "JPEG", i), None) for i in (*range(1, 9), 99)},
    **{f"exif_{i}.png": (partial(with_orientation, "PNG", i), exact) for i in (*range(1, 9), 99)},
    **{f"exif_{i}.tif": (partial(with_orientation, "TIFF", i), exact) for i in range(1, 9)},
}

# name → (its bytes, part of the reason)
BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty.jpg": (lambda: b"", "empty (0 bytes)"),
    "one_byte.jpg": (lambda: b"\xff", "cannot be opened"),
    "page.jpg": (lambda: b"<!DOCTYPE html><html><body>404 Not Found</body></html>", "not one of JPEG, PNG"),
    "drawing.png": (lambda: b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>", "not one of JPEG, PNG"),
    "script.jpg": (lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not one of JPEG, PNG"),
    "archive.png": (lambda: b"PK\x03\x04" + bytes(60), "not one of JPEG, PNG"),
    "zeros.jpg": (lambda: bytes(5000), "not one of JPEG, PNG"),
    "half.jpg": (lambda: half(JPEG(LARGE())), "cannot be decoded"),
    "without_its_end.jpg": (lambda: JPEG(LARGE())[:-100], "cannot be decoded"),
    "header_only.jpg": (lambda: JPEG(LARGE())[:30], "cannot be"),
    "half.png": (lambda: half(PNG(LARGE())), "cannot be decoded"),
    "bad_crc.png": (lambda: changed(PNG(LARGE()), 200, length=4), "cannot be decoded"),
    "bad_header_crc.png": (lambda: changed(PNG(LARGE()), 30), "cannot be opened"),
    "signature_only.png": (lambda: PNG(LARGE())[:8], "cannot be opened"),
    "no_width.png": (lambda: png(0, 5, 8, 2, b""), "cannot be"),
    "bomb.png": (lambda: png(30_000, 30_000, 1, 0, b""), "raise the limit"),
    "above_our_limit.png": (lambda: png(11_000, 11_000, 1, 0, b""), "max_pixels=100000000"),
    "text_bomb.png": (lambda: PNG(photo(), pnginfo=text_chunk(80_000_000)), "cannot be opened"),
    "half.gif": (lambda: encoded(LARGE(), "GIF")[:500], "cannot be"),
    "half.webp": (lambda: half(encoded(LARGE(), "WEBP", lossless=True)), "cannot be"),
    "half.bmp": (lambda: half(encoded(LARGE(), "BMP")), "cannot be decoded"),
    "half.tif": (lambda: half(TIFF(LARGE())), "cannot be"),
    "damaged_lzw.tif": (lambda: changed(TIFF(LARGE(), compression="tiff_lzw"), 300, length=2000), "cannot be decoded"),
    "half.avif": (lambda: half(encoded(LARGE(), "AVIF")), "cannot be"),
    "half.heic": (lambda: half(heic()), "cannot be"),
    "half.ppm": (lambda: half(encoded(LARGE(), "PPM")), "cannot be decoded"),
}

NASTY_BAD = {
    "broken.png", "broken_data_stream.png", "truncated_image.png", "truncated_end_chunk.png",
    "unknown_compression_method.png", "zero_width.gif", "decompression_bomb.gif", "png_decompression_dos.png",
    "ultrahdr.jpg", "empty_file.jpg", "text_renamed.jpg", "photo_cut_in_half.jpg", "huge_1bit_30000x30000.png",
    "large_1bit_11000x11000.png",
}


def half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def text_chunk(size: int):
    from PIL.PngImagePlugin import PngInfo

    info = PngInfo()
    info.add_text("comment", "x" * size, zip=True)
    return info


class Recorder(torch.nn.Module):
    """A model that records its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.images = torch.nn.Parameter(torch.zeros(2)), []

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.images += list(images)
        return self.weight.expand(len(images), 2)


def outcomes(root: Path, name: str) -> dict[str, torch.Tensor | str]:
    """The outcome of one file in each use: its pixels (3,H,W), or the reason of the error."""
    photo().save(root / "good.png")
    split = file_split(root, [name, "good.png"], np.array([0, 1]))
    found: dict[str, torch.Tensor | str] = {}
    report = audit(Source("odd", ["a", "b"], {"train": split}), CONTRACT, seconds=None)
    found["audit"] = next((sample.reason for sample in report.unreadable if sample.name == name), "")
    for use, sizing in (("validation", None), ("crops", RandomResizedCrop(seed=0))):
        batch = ImageDataset(split, CONTRACT, sizing, cache=False, on_bad_sample="skip").__getitems__([(0, 0), (0, 1)])
        (_, found[use]), = batch["bad"] if "bad" in batch else [(name, batch["image"][0])]
    model = Recorder()
    bundle = SimpleNamespace(model=model, classes=["a", "b"], preprocessing=CONTRACT, calibration=None)
    predictor = Predictor(bundle, "cpu")
    (prediction,) = predictor.stream([root / name])
    found["predict"] = prediction.reason if isinstance(prediction, BadImage) else model.images[0]
    if isinstance(prediction, BadImage):
        assert name in str(prediction) and "\n" not in str(prediction)
    return found


def has_its_outcome(root: Path, name: str, make: Callable[[], bytes], reason: str | None, check: Check | None) -> None:
    path = root / name
    path.write_bytes(make())
    before = hashlib.sha256(path.read_bytes()).digest()
    found = outcomes(root, name)
    assert hashlib.sha256(path.read_bytes()).digest() == before, "the file was changed"
    if reason is not None:
        assert all(isinstance(each, str) and each and reason in each for each in found.values()), found
        return
    assert found["audit"] == "" and not any(isinstance(each, str) and each for each in found.values()), found
    assert found["crops"].shape == (3, SIZE, SIZE)
    assert torch.equal(CONTRACT.normalize(found["validation"][None])[0], found["predict"]), "other pixels in predict"
    assert check is None or check(found["validation"]), "wrong pixels"


def cases() -> Iterator[Case]:
    for name, (make, check) in GOOD.items():
        yield Case(name, partial(has_its_outcome, name=name, make=make, reason=None, check=check), quick=True)
    for name, (make, reason) in BAD.items():
        quick = name != "text_bomb.png"
        yield Case(name, partial(has_its_outcome, name=name, make=make, reason=reason, check=None), quick=quick)
    nasty = Path(os.environ.get("VIT_TEST_DATA", "")) / "nasty_images" / "images"
    for path in sorted(nasty.iterdir()) if nasty.is_dir() else ():
        reason = "" if path.name in NASTY_BAD else None
        yield Case(f"nasty {path.name}",
                   partial(has_its_outcome, name=path.name, make=path.read_bytes, reason=reason, check=None))


PROMISE = Promise("unusual images have their documented outcome, and the same pixels everywhere", cases)
